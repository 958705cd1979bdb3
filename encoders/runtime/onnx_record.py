"""Record of the weights from which the ONNX networks of a model were exported."""

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
    """Files from which the ONNX networks of a model were exported: small ``settings``, which are
    hashed on every use, and ``weights``, which are hashed again only if they are newer than the
    record. ``digest`` returns the digest in the model's identity."""

    settings: Sequence[str]
    weights: Sequence[str]
    digest: Callable[[], str]

    def hash(self, folder: Path) -> str:
        return sha256(*(path for path in map(folder.joinpath, self.settings) if path.is_file()))

    def size(self, folder: Path) -> int:
        return sum((folder / name).stat().st_size for name in self.weights)


@dataclass(frozen=True)
class OnnxRecord:
    """Record of ONNX networks and their sources: ``digest`` and ``dim`` from the model's identity,
    the SHA-256 of its ``settings``, and the size of its ``weights`` in bytes. ``files`` maps the
    file name of each network to its SHA-256; ``details`` contains further data for the runtime."""

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
        """Create a record of the files ``names``, which have just been written to ``folder``."""
        files = {name: sha256(folder / name) for name in names}
        return cls(parts.digest(), dim, parts.hash(folder), parts.size(folder), files, details)

    def write(self, folder: Path) -> None:
        write_text(folder / RECORD, json.dumps(asdict(self), indent=1, sort_keys=True))

    def is_whole(self, folder: Path) -> bool:
        """Return whether the bytes of all networks are unchanged."""
        return all(
            (folder / name).is_file() and sha256(folder / name) == self.files[name]
            for name in self.files
        )

    def check(self, folder: Path, name: str) -> Path:
        """Return the path of a file. Raises EncoderError if its contents have changed since the
        record was written."""
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
                f"recreate it with <boc convert {folder}>",
            )
        return path


def read_record(folder: Path, parts: ModelFiles) -> OnnxRecord | None:
    """Return the record in ``folder``, or None if it is missing or the model has changed since."""
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
