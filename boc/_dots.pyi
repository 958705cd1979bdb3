from typing import Any

from numpy.typing import NDArray

def best(
    query: NDArray[Any],
    rows: NDArray[Any],
    chosen: NDArray[Any],
    patience: float,
    found: NDArray[Any],
    scores: NDArray[Any],
    /,
) -> bool: ...
def dot(query: NDArray[Any], rows: NDArray[Any], chosen: NDArray[Any] | None, out: NDArray[Any], /) -> None: ...
def gram(rows: NDArray[Any], scales: NDArray[Any], chosen: NDArray[Any], out: NDArray[Any], /) -> None: ...
def halve(rows: NDArray[Any], out: NDArray[Any], /) -> bool: ...
def largest(rows: NDArray[Any], places: NDArray[Any], /) -> None: ...
def nearest(
    queries: NDArray[Any],
    heads: NDArray[Any],
    head_scales: NDArray[Any],
    starts: NDArray[Any],
    vectors: NDArray[Any],
    scales: NDArray[Any],
    cells: int,
    numbers: NDArray[Any],
    cosines: NDArray[Any],
    /,
) -> None: ...
def paths() -> list[str]: ...
def rounded(rows: NDArray[Any], out: NDArray[Any], scales: NDArray[Any], /) -> None: ...
def terms(
    numbers: NDArray[Any],
    weights: NDArray[Any],
    temperature: float,
    top: int,
    columns: NDArray[Any],
    frequencies: NDArray[Any],
    /,
) -> None: ...
def use(name: str, /) -> None: ...
