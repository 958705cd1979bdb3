"""Convert bytes to and from the binary fields of documents."""

import binascii


def to_base64(data: bytes) -> str:
    """Encode bytes in Base64, the format of binary fields."""
    return binascii.b2a_base64(data, newline=False).decode("ascii")


def from_base64(text: str) -> bytes:
    """Decode the value of a binary field. OpenSearch uses the URL-safe alphabet without padding."""
    return binascii.a2b_base64(text.replace("-", "+").replace("_", "/") + "=" * (-len(text) % 4))
