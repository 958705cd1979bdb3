"""The folder of downloaded models: one folder per repository, with a record of where its files are from.

It is ``$BOC_MODELS``, else ``boc/models`` in ``$XDG_DATA_HOME`` (``~/.local/share``). A folder can be copied to another
machine as it is.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from boc.atomic_files import sha256, write_text
from boc.errors import BocError

RECORD = "boc-model.json"
FORMAT = 1
PARTIAL = ".part"
"""End of the name of a folder that is being downloaded to."""


@dataclass(frozen=True)
class Model:
    """A downloaded model. ``files`` has the SHA-256 of each file, ``contents`` that of what determines the output.

    ``revision`` is the commit it is of, ``licence`` what its card says.
    """

    repository: str
    revision: str
    licence: str
    files: Mapping[str, str]
    contents: str
    folder: Path

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        return sum(path.stat().st_size for name in self.files if (path := self.folder / name).is_file())


def home() -> Path:
    """The folder of all models, which may not exist. BocError if this user has no home."""
    named, data = os.environ.get("BOC_MODELS"), os.environ.get("XDG_DATA_HOME")
    if named:
        return Path(named).expanduser()
    try:
        return (Path(data) if data else Path.home() / ".local" / "share") / "boc" / "models"
    except RuntimeError:
        raise BocError("this user has no home folder to keep models in; set BOC_MODELS to a folder") from None


def place(repository: str) -> Path:
    """The folder of a repository, which may not exist."""
    return home() / repository.replace("/", "--")


def find(repository: str) -> Model | None:
    """The model of a repository, None if it was not downloaded. BocError if its record is damaged."""
    return read(place(repository))


def models() -> Iterator[Model]:
    """Yield all downloaded models, ordered by name."""
    folder = home()
    if folder.is_dir():
        for path in sorted(folder.iterdir()):
            model = None if path.name.endswith(PARTIAL) else read(path)
            if model is not None:
                yield model


def read(folder: Path) -> Model | None:
    """The model in ``folder``, None if it holds no record. BocError if the record is damaged, or of another format."""
    path = folder / RECORD
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if record.pop("format") != FORMAT:
            raise ValueError("another format")
        return Model(**record, folder=folder)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BocError(f"{path}: is no record of a model ({error}); delete {folder} and get the model again") from error


def write(model: Model) -> None:
    """Write the record of a model into its folder."""
    record = {"format": FORMAT, **asdict(model)}
    del record["folder"]
    write_text(model.folder / RECORD, json.dumps(record, indent=1) + "\n")


def verify(model: Model) -> list[str]:
    """Names of the files that are missing, or have other bytes than were downloaded."""
    return [
        name
        for name, digest in model.files.items()
        if not (model.folder / name).is_file() or sha256(model.folder / name) != digest
    ]


def remove(repository: str) -> int:
    """Remove a model, and what was left of a download; return how many bytes. BocError if there is neither."""
    folders = [path for path in (place(repository), partial(repository)) if path.is_dir()]
    if not folders:
        there = ", ".join(model.repository for model in models()) or "none"
        raise BocError(f"no model {repository} in {home()}; there: {there}")
    size = sum(path.stat().st_size for folder in folders for path in folder.rglob("*") if path.is_file())
    for folder in folders:
        shutil.rmtree(folder)
    return size


def partial(repository: str) -> Path:
    """The folder that a repository is downloaded to."""
    folder = place(repository)
    return folder.with_name(folder.name + PARTIAL)
