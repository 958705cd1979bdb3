"""Convert bytes to and from the binary fields of documents."""

import binascii


def to_base64(data: bytes) -> str:
    """Encode in Base64, the format of binary fields."""
    return binascii.b2a_base64(data, newline=False).decode("ascii")


def from_base64(text: str) -> bytes:
    """Return the bytes of a binary field. OpenSearch responds in the URL alphabet without
    padding."""
    return binascii.a2b_base64(text.replace("-", "+").replace("_", "/") + "=" * (-len(text) % 4))
