from typing import Any

from numpy.typing import NDArray

def plan(parts: tuple[tuple[tuple[NDArray[Any] | None, ...], int], ...], d: int) -> object: ...
def code(
    mean: NDArray[Any],
    heads: NDArray[Any],
    head_scales: NDArray[Any],
    starts: NDArray[Any],
    vectors: NDArray[Any],
    scales: NDArray[Any],
    z: int,
    cells: int,
    temperature: float,
    top: int,
) -> object: ...
def best(
    plan: object,
    code: object | None,
    depth: int,
    parts: NDArray[Any],
    rows: NDArray[Any],
    scores: NDArray[Any],
    counts: NDArray[Any],
    vectors: NDArray[Any] | None,
    offsets: NDArray[Any] | None,
    terms: NDArray[Any] | None,
    weights: NDArray[Any] | None,
) -> int: ...
