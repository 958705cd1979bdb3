r"""Represent paths and other text as UTF-8, whichever file names the file system allows and
whichever Unicode form users type.

A byte that is not valid UTF-8, as in file names on an old CD, is written as ``\xeb``. A backslash
that would look like such an escape is written as ``\x5c``. Text is compared in NFC, which has a
single code point for most accented letters. Ids keep the form of the names on disk.
"""

import re
from collections.abc import Iterator
from itertools import islice, product
from pathlib import Path
from unicodedata import category, normalize

FORMS = 64  # maximum number of spellings of a path to try

_MARKS = re.compile("[\u0300-\u036f\u00ad\u200c\u200d\ufe00-\ufe0f]")
"""Accents of Latin, Greek and Cyrillic letters, soft hyphens, joiners, and variation selectors."""

_BYTE = re.compile("[\udc80-\udcff]")
_LOOKS_SO = re.compile(r"\\(?=x[0-9a-f]{2})")
_ESCAPE = re.compile(r"\\x([0-9a-f]{2})")


def path_text(path: str) -> str:
    """Return a system path as text that ``system_path`` can convert back."""
    return escaped_bytes(_LOOKS_SO.sub(r"\\x5c", path))


def escaped_bytes(text: str) -> str:
    """Return ``text`` with escapes in place of bytes that are not valid UTF-8."""
    return _BYTE.sub(lambda match: f"\\x{ord(match[0]) - 0xDC00:02x}", text)


def system_path(text: str) -> str:
    """Return the system path that ``text`` represents."""
    return _ESCAPE.sub(
        lambda match: bytes.fromhex(match[1]).decode("ascii", "surrogateescape"),
        text,
    )


def path_of(text: str) -> Path:
    """Return the result of ``system_path`` as a Path."""
    return Path(system_path(text))


def nfc(text: str) -> str:
    """Return ``text`` in NFC."""
    return normalize("NFC", text)


def forms(path: str) -> Iterator[str]:
    """Yield ``path``, then its variants in which each name is in NFC or NFD."""
    yield path
    if not path.isascii():
        names = [
            sorted({normalize(form, name) for form in ("NFC", "NFD")}) for name in path.split("/")
        ]
        yield from map("/".join, islice(product(*names), FORMS))


def path_on_disk(folder: Path, name: str) -> Path:
    """Return the path of ``name`` in ``folder``, in the Unicode form that the name has on disk."""
    for form in () if name.isascii() else forms(name):
        path = folder / system_path(form)
        if path.exists():
            return path
    return folder / system_path(name)


def folded(text: str) -> str:
    """Return ``text`` folded for comparison, as in search engines: in NFKC and lower case, without
    ``_MARKS``. Marks in other scripts are kept, because removing them would change the word.

    >>> folded("Straße İstanbul CAFÉ ﬁ が")
    'strasse istanbul cafe fi が'
    """
    return normalize("NFC", _MARKS.sub("", normalize("NFKD", text)).casefold())


def words_of(text: str) -> str:
    """Return the words of ``text``, separated by spaces. Words consist of letters, digits and their
    marks."""
    marks = (char if category(char)[0] in "LNM" or _MARKS.match(char) else " " for char in text)
    return " ".join("".join(marks).split())


def name_words(name: str) -> str:
    """Return the words of a file name, followed by the parts of words that are in mixed case or
    contain digits.

    >>> name_words("BerlinTrip2019_IMG_12")
    'BerlinTrip2019 IMG 12 Berlin Trip 2019'
    """
    parts = re.sub(r"(?<=[^\W\d_])(?=\d)|(?<=\d)(?=[^\W\d_])|(?<=[a-z])(?=[A-Z])", " ", name)
    return " ".join(dict.fromkeys(words_of(f"{name} {parts}").split()))


def printable(text: str) -> str:
    """Return ``text`` as a single line, in which a single space replaces each run of spaces and
    unprintable characters."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())
