from typing import Any

from numpy.typing import NDArray

def plan(
    parts: tuple[tuple[tuple[NDArray[Any] | None, ...], int], ...],
    d: int,
    signs: NDArray[Any] | None,
) -> object: ...
def code(mean: NDArray[Any], *centroids_and_numbers: NDArray[Any] | float) -> object: ...
def best(
    plan: object,
    code: object | None,
    depth: int,
    size: int,
    few: int,
    enough: int,
    usual: float,
    *arrays: Any,
) -> int: ...
def strings(rows: NDArray[Any], data: NDArray[Any], offsets: NDArray[Any], /) -> list[str]: ...
