from typing import Any

from numpy.typing import NDArray

def dot(
    query: NDArray[Any],
    rows: NDArray[Any],
    out: NDArray[Any],
    chosen: NDArray[Any] = ...,
    /,
) -> None: ...
def align(
    query: NDArray[Any],
    rows: NDArray[Any],
    begins: NDArray[Any],
    ends: NDArray[Any],
    sums: NDArray[Any],
    scales: NDArray[Any] = ...,
    /,
) -> None: ...
def encode(
    rows: NDArray[Any],
    signs: NDArray[Any],
    codes: NDArray[Any],
    scales: NDArray[Any],
    /,
) -> None: ...
