"""A ZIP of pictures, written while it is sent."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from boc.types import Item
from boc.web.http.responses import ProblemError

PICTURES = 500  # pictures of a ZIP at most
BYTES = 1_000_000_000  # of their files at most
CHUNK = 1 << 18  # bytes read at a time


def files(items: Sequence[Item]) -> list[tuple[Path, str]]:
    """Return the files of pictures, and their names in the ZIP. ProblemError if one is missing, or they are too
    large."""
    entries, names, total = [], set(), 0
    for item in items:
        path = item.path
        try:
            total += path.stat().st_size
        except OSError as error:
            raise ProblemError(404, f"{path.name}: cannot be read ({error.strerror}); leave it out") from error
        name = _name(item)
        while name.lower() in names:
            name = f"{Path(name).parent / Path(name).stem}_{Path(name).suffix}"
        names.add(name.lower())
        entries.append((path, name))
    if total > BYTES:
        raise ProblemError(413, f"the pictures have {total:,} bytes, the limit is {BYTES:,}; choose fewer")
    return entries


def stream(chosen: Sequence[tuple[Path, str]]) -> Iterator[bytes]:
    """Yield the bytes of a ZIP, uncompressed since pictures are, in chunks of at most about ``CHUNK``."""
    sink = _Sink()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_STORED) as archive:  # type: ignore[call-overload]
        for path, name in chosen:
            with path.open("rb") as source, archive.open(zipfile.ZipInfo.from_file(path, name), "w") as target:
                while chunk := source.read(CHUNK):
                    target.write(chunk)
                    yield sink.take()
    yield sink.take()


def _name(item: Item) -> str:
    """Return the id as a path that stays below the folder where the ZIP is unpacked, with the suffix of the file."""
    parts = [re.sub(r'[\\:*?"<>|\x00-\x1f]', "_", part) for part in item.id.split("/") if part not in ("", ".", "..")]
    name, suffix = "/".join(parts) or "picture", item.path.suffix
    return name if Path(name).suffix.lower() == suffix.lower() else name + suffix


class _Sink:
    """A file that is written only, and whose bytes are taken away."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._parts.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        pass

    def take(self) -> bytes:
        data, self._parts = b"".join(self._parts), []
        return data
