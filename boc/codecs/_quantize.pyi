from typing import Any

from numpy.typing import NDArray

def quantize(weights: NDArray[Any], frequencies: NDArray[Any], temperature: float, top: int, /) -> None: ...
