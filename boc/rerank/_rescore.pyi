from typing import Any

from numpy.typing import NDArray

def best(
    queries: NDArray[Any],
    rows: NDArray[Any],
    offsets: NDArray[Any],
    chosen: NDArray[Any],
    found: NDArray[Any],
    scores: NDArray[Any],
    /,
) -> None: ...
def dot(query: NDArray[Any], rows: NDArray[Any], out: NDArray[Any], chosen: NDArray[Any] = ..., /) -> None: ...
