from typing import Any

from numpy.typing import NDArray

def top(
    starts: NDArray[Any],
    rows: NDArray[Any],
    frequencies: NDArray[Any],
    peaks: NDArray[Any],
    offsets: NDArray[Any],
    terms: NDArray[Any],
    weights: NDArray[Any],
    found_rows: NDArray[Any],
    found_scores: NDArray[Any],
    mask: NDArray[Any] | None,
    n: int,
    k: int,
    by_row: bool,
    /,
) -> list[int]: ...
