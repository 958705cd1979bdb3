from typing import Any

from numpy.typing import NDArray

def nearest(
    queries: NDArray[Any],
    heads: NDArray[Any],
    head_scales: NDArray[Any],
    starts: NDArray[Any],
    vectors: NDArray[Any],
    scales: NDArray[Any],
    numbers: NDArray[Any],
    cosines: NDArray[Any],
    cells: int,
    /,
) -> None: ...
