"""The networks in ONNX beside the weights of a model, and the record that ties them to these
weights."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from boc.atomic_files import sha256, write_text
from boc.errors import EncoderError
from boc.foreign import read_json, typed
from boc.types import WIDEST

TEXT = "text.onnx"
IMAGE = "image.onnx"
RECORD = "onnx.json"


@dataclass(frozen=True)
class ModelFiles:
    """The files from which a model's networks in ONNX were made: small ``settings``, which are
    hashed on every use, and ``weights``, which are hashed again only if they are newer than the
    record. ``digest`` is the digest in the identity of the model."""

    settings: Sequence[str]
    weights: Sequence[str]
    digest: Callable[[], str]

    def hash(self, folder: Path) -> str:
        return sha256(*(path for path in map(folder.joinpath, self.settings) if path.is_file()))

    def size(self, folder: Path) -> int:
        return sum((folder / name).stat().st_size for name in self.weights)


@dataclass(frozen=True)
class OnnxRecord:
    """The record of networks in ONNX and their sources: ``digest`` and ``dim`` of the model's
    identity, the SHA-256 of its ``settings``, the number of bytes of its ``weights``. ``files`` has
    the SHA-256 of each network by file name; ``details`` has further data for the runtime."""

    digest: str
    dim: Annotated[int, Meta(gt=0, lt=WIDEST)]
    settings: str
    weights: int
    files: dict[str, str]
    details: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        folder: Path,
        parts: ModelFiles,
        dim: int,
        names: Iterable[str],
        **details: Any,
    ) -> OnnxRecord:
        """Make the record of the files ``names``, just written into ``folder``."""
        files = {name: sha256(folder / name) for name in names}
        return cls(parts.digest(), dim, parts.hash(folder), parts.size(folder), files, details)

    def write(self, folder: Path) -> None:
        write_text(folder / RECORD, json.dumps(asdict(self), indent=1, sort_keys=True))

    def is_whole(self, folder: Path) -> bool:
        """Return whether all networks have the bytes that were written."""
        return all(
            (folder / name).is_file() and sha256(folder / name) == self.files[name]
            for name in self.files
        )

    def check(self, folder: Path, name: str) -> Path:
        """Return the path of a file. EncoderError if the file was touched later and has other
        contents."""
        path = folder / name
        record = folder / RECORD
        untouched = (
            record.exists()
            and path.is_file()
            and path.stat().st_ctime_ns <= record.stat().st_ctime_ns
        )
        if not untouched and not (path.is_file() and sha256(path) == self.files[name]):
            raise EncoderError(
                f"{path}: missing or damaged",
                f"make it again with <boc convert {folder}>",
            )
        return path


def read_record(folder: Path, parts: ModelFiles) -> OnnxRecord | None:
    """Return the record in ``folder``; None without a record, or if the model has changed since."""
    path = folder / RECORD
    try:
        record = typed(read_json(path), OnnxRecord)
        if record.settings != parts.hash(folder) or record.weights != parts.size(folder):
            return None
        newest = max((folder / name).stat().st_ctime_ns for name in parts.weights)
        changed = newest > path.stat().st_mtime_ns and record.digest != parts.digest()
    except (OSError, ValueError):
        return None
    return None if changed else record
