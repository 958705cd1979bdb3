"""A ZIP of pictures, written while it is sent."""

import re
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from boc.errors import ImageError
from boc.types import Item
from boc.web.http.responses import ProblemError
from boc.web.pictures.content import open_content

PICTURES = 500  # pictures of a ZIP at most
BYTES = 1_000_000_000  # of their files at most


def named(items: Sequence[Item]) -> list[tuple[Item, str]]:
    """Return pictures with their names in the ZIP. ProblemError if one cannot be read, or they are too large."""
    entries, names, total = [], set(), 0
    for item in items:
        try:
            with open_content(item) as content:
                total += content.status.st_size
        except ImageError as error:
            raise ProblemError(404, f"{error}; or leave it out") from error
        name = _name(item)
        while name.lower() in names:
            name = f"{Path(name).parent / Path(name).stem}_{Path(name).suffix}"
        names.add(name.lower())
        entries.append((item, name))
    if total > BYTES:
        raise ProblemError(413, f"the pictures have {total:,} bytes, the limit is {BYTES:,}; choose fewer")
    return entries


def stream(chosen: Sequence[tuple[Item, str]]) -> Iterator[bytes]:
    """Yield the bytes of a ZIP, uncompressed since pictures are, in small chunks.

    A picture that was replaced meanwhile by what is refused is left out.
    """
    sink = _Sink()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_STORED) as archive:  # type: ignore[call-overload]
        for item, name in chosen:
            with suppress(ImageError), open_content(item) as content:
                entry = zipfile.ZipInfo.from_file(content.path, name, strict_timestamps=False)
                with archive.open(entry, "w") as target:
                    for chunk in content.read():
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
