from typing import Any

from numpy.typing import NDArray

def dot(query: NDArray[Any], rows: NDArray[Any], chosen: NDArray[Any] | None, out: NDArray[Any], /) -> None: ...
def nearest(
    queries: NDArray[Any],
    heads: NDArray[Any],
    starts: NDArray[Any],
    vectors: NDArray[Any],
    cells: int,
    numbers: NDArray[Any],
    dots: NDArray[Any],
    /,
) -> None: ...
def paths() -> list[str]: ...
def use(name: str, /) -> None: ...
