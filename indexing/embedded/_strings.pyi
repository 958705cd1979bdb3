from typing import Any

from numpy.typing import NDArray

def strings(rows: NDArray[Any], /, *data_and_offsets: NDArray[Any]) -> list[list[str]]: ...
