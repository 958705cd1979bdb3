from typing import Any

from numpy.typing import NDArray

def query_terms(
    queries: NDArray[Any],
    mean: NDArray[Any],
    heads: NDArray[Any],
    head_scales: NDArray[Any],
    starts: NDArray[Any],
    vectors: NDArray[Any],
    scales: NDArray[Any],
    numbers: NDArray[Any],
    frequencies: NDArray[Any],
    cells: int,
    temperature: float,
    top: int,
    /,
) -> bool: ...
