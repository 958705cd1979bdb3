from typing import Any

from numpy.typing import NDArray

def encode(
    vectors: NDArray[Any],
    which: NDArray[Any],
    means: NDArray[Any],
    signs: NDArray[Any],
    codes: NDArray[Any],
    scales: NDArray[Any],
    /,
) -> None: ...
def estimate(
    query: NDArray[Any],
    signs: NDArray[Any],
    codes: NDArray[Any],
    scales: NDArray[Any],
    rows: NDArray[Any],
    out: NDArray[Any],
    /,
) -> None: ...
