"""Reads lines of text files exactly: ids may begin and end with spaces, and contain what Python takes for line ends."""

from __future__ import annotations

import csv
from pathlib import Path

from boc.errors import SourceError


def read_ids(path: Path) -> list[str]:
    """Return the ids in a file, one per line, unchanged; empty lines are skipped.

    SourceError for a file that cannot be read, is not UTF-8, or lists none.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror}); name a list of ids, one a line") from error
    ids = [line for line in text_lines(data, str(path)) if line]
    if not ids:
        raise SourceError(f"{path}: lists no ids; give one id a line")
    return ids


def text_lines(data: bytes, name: str) -> list[str]:
    r"""Return the lines of ``data``, UTF-8 with or without a byte order mark; they end at \n or \r\n and nowhere else.

    SourceError names ``name`` and the line that is not UTF-8.
    """
    lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    decoded = []
    for number, line in enumerate(lines, 1):
        try:
            decoded.append(line.removesuffix(b"\r").decode())
        except UnicodeDecodeError as error:
            raise SourceError(
                f"{name}, line {number}: not UTF-8 ({line[:60]!r}, byte {error.start + 1}); save the file as UTF-8"
            ) from error
    return decoded


def csv_fault(error: csv.Error) -> str:
    """Return the fault of a table that the csv module refused, and the next step."""
    if "field limit" in str(error):
        most = csv.field_size_limit()
        return f"a cell has more than {most:,} characters; shorten it, or close the quotes where it should end"
    return f"not a CSV file ({error}); check the quotes"
