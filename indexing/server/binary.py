"""Arrays as the binary fields of documents hold them."""

import binascii
from typing import Any

import numpy as np
from numpy.typing import NDArray


def raw(values: NDArray[Any]) -> bytes:
    """Return the bytes of an array, row by row."""
    return np.ascontiguousarray(values).tobytes()


def to_base64(data: bytes) -> str:
    """Encode in Base64, the format of binary fields."""
    return binascii.b2a_base64(data, newline=False).decode("ascii")


def from_base64(text: str) -> bytes:
    """Return the bytes of a binary field. OpenSearch answers in the URL alphabet without
    padding."""
    return binascii.a2b_base64(text.replace("-", "+").replace("_", "/") + "=" * (-len(text) % 4))
