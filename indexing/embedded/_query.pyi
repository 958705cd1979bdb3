from typing import Any

from numpy.typing import NDArray

def plan(code: tuple[Any, ...], temperature: float, top: int, parts: tuple[tuple[Any, ...], ...], /) -> object: ...
def answer(
    plan: object,
    queries: NDArray[Any],
    parts: NDArray[Any],
    rows: NDArray[Any],
    scores: NDArray[Any],
    counts: NDArray[Any],
    z: int,
    cells: int,
    depth: int,
    size: int,
    /,
) -> bool: ...
