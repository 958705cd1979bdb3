r"""Paths as text: any name that a file system allows, in UTF-8.

A byte that is no UTF-8, as in names of an old CD, is written ``\xeb``; a backslash that would look so is ``\x5c``.
"""

from __future__ import annotations

import re
from pathlib import Path

_BYTE = re.compile("[\udc80-\udcff]")
_LOOKS_SO = re.compile(r"\\(?=x[0-9a-f]{2})")
_ESCAPE = re.compile(r"\\x([0-9a-f]{2})")


def path_text(path: str) -> str:
    """Return a path of the system as text, from which ``system_path`` makes it again."""
    return escaped_bytes(_LOOKS_SO.sub(r"\\x5c", path) if "\\" in path else path)


def escaped_bytes(text: str) -> str:
    """Return ``text`` with its bytes that are no UTF-8 as escapes."""
    return text if text.isascii() else _BYTE.sub(lambda match: f"\\x{ord(match[0]) - 0xDC00:02x}", text)


def system_path(text: str) -> str:
    """Return the path of the system that ``text`` stands for."""
    return _ESCAPE.sub(_unescaped, text) if "\\" in text else text


def path_of(text: str) -> Path:
    """Return ``system_path`` as a path."""
    return Path(system_path(text))


def _unescaped(match: re.Match[str]) -> str:
    byte = int(match[1], 16)
    return chr(byte if byte < 128 else 0xDC00 + byte)
