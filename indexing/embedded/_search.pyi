from typing import Any

from numpy.typing import NDArray

from boc.plan import Plan

def parts(
    parts: tuple[tuple[tuple[NDArray[Any] | None, ...], int], ...],
    d: int,
    signs: NDArray[Any] | None,
    block: int,
) -> object: ...
def code(mean: NDArray[Any], *centroids_and_numbers: NDArray[Any] | float) -> object: ...
def best(
    parts: object,
    plan: Plan,
    k: int,
    vectors: NDArray[Any] | None,
    terms: object,
) -> tuple[bytes, bytes, bytes, bytes, int, int]: ...
def find(value: str, data: NDArray[Any], offsets: NDArray[Any], /) -> int | None: ...
def strings(rows: NDArray[Any], data: NDArray[Any], offsets: NDArray[Any], /) -> list[str]: ...
