"""Read lines and tables exactly. Ids may begin or end with spaces, and may contain characters that
Python would treat as line ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from boc.errors import SourceError, check_system, leave_out

BOM = b"\xef\xbb\xbf"


def read_ids(path: Path) -> list[str]:
    """Return the ids in a file with one id per line. Empty lines are skipped, and lines that are
    not UTF-8 are skipped with a warning.

    Raises SourceError if the file cannot be read or is empty.
    """
    data = file_bytes(path, "name a list of ids, one per line")
    faults: list[str] = []
    ids = [line for line in text_lines(data, str(path), faults) if line]
    if not ids:
        raise SourceError(
            f"{path}: contains no ids{''.join(f' ({fault})' for fault in faults[:1])}; write one "
            "id per line",
        )
    leave_out(str(path), faults)
    return ids


def file_bytes(path: Path, step: str) -> bytes:
    """Return the bytes of a file. If the file cannot be read, raises a SourceError that ends with
    the next ``step``."""
    try:
        return path.read_bytes()
    except OSError as error:
        check_system(path, error, SourceError)
        raise SourceError(f"{path}: cannot be read ({error.strerror}); {step}") from error


def text_lines(data: bytes, name: str, faults: list[str] | None = None) -> list[str]:
    r"""Return the lines of ``data``, which is UTF-8 with or without a byte order mark. Lines end
    only at \n or \r\n.

    For a line that is not UTF-8, raises a SourceError that contains ``name`` and the line. With
    ``faults``, the line is skipped and reported in ``faults`` instead.
    """
    decoded = []
    for number, line in enumerate(data.removeprefix(BOM).split(b"\n"), 1):
        try:
            decoded.append(line.removesuffix(b"\r").decode())
        except UnicodeDecodeError as error:
            fault = f"line {number}: not UTF-8 ({line[:60]!r}, byte {error.start + 1})"
            if faults is None:
                raise SourceError(f"{name}, {fault}; save the file as UTF-8") from error
            faults.append(fault)
    return decoded


def json_lines(path: Path, faults: list[str]) -> Iterator[tuple[str, Any]]:
    """Yield each value in a JSON Lines file, after its place, such as "line 3". Lines that cannot
    be read are added to ``faults``. Raises SourceError if the file cannot be read."""
    from boc.foreign import parse_json  # imports NumPy, which shell completion does not need

    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    text = line.removeprefix(BOM).decode().strip()
                    if text:
                        yield f"line {number}", parse_json(text)
                except ValueError as error:
                    faults.append(f"line {number}: not JSON in UTF-8 ({error})")
    except OSError as error:
        check_system(path, error, SourceError)
        raise SourceError(
            f"{path}: cannot be read ({error.strerror or error}); use another file",
        ) from error


def check_text(text: str) -> str | None:
    """Return the reason why a text cannot be stored, or None if it can."""
    if "\0" in text:
        return "a NUL character, which cannot be stored; remove it"
    if text.encode(errors="ignore").decode() != text:
        return f"not UTF-8 ({text[:60]!a}); save the file as UTF-8"
    return None
