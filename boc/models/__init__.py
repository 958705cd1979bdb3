"""Encoders that others trained: their short names, and the folder that ``boc model get`` downloads
them to.

The folder of all models is ``$BOC_MODELS``, else ``boc/models`` in ``$XDG_DATA_HOME``
(``~/.local/share``). It has a folder per model, which can be copied to another machine as it is,
with a record of where its files are from.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from boc.atomic_files import feed, sha256, write_text
from boc.errors import BocError


@dataclass(frozen=True)
class ModelEntry:
    """A model with a short name.

    ``revision`` is the commit of the repository to download, ``sha256`` the digest of its weights,
    empty if not pinned. ``licence`` and ``size`` (bytes, about) are what the authors publish.
    """

    repository: str
    revision: str
    sha256: str
    licence: str
    size: int
    about: str


CATALOGUE = {
    "clip": ModelEntry(
        "laion/CLIP-ViT-B-32-256x256-DataComp-s34B-b86K",
        "4afec35ffe57a943d569ff7ee888061830164da8",
        "92c26d60d3200ed5ed040dff31a8d19f8140648da8007216c25744c478deef27",
        "mit",
        608_000_000,
        "small, for a CPU; English",
    ),
    "siglip2": ModelEntry(
        "google/siglip2-base-patch16-256",
        "3f9f96cb90da5dbc758b01813f2f6f1aee24c1ab",
        "6125cacc01fa93bdc98a0c5101cefcd69b2ed1f8ab4f38d86f4ad5984f5dc863",
        "apache-2.0",
        1_540_000_000,
        "better, four times the work per picture; many languages",
    ),
    "multilingual": ModelEntry(
        "google/siglip2-base-patch32-256",
        "9e7ee68506177b546b2d5dc578f54afdc5e425f1",
        "",
        "apache-2.0",
        1_550_000_000,
        "as quick per picture as clip; many languages",
    ),
}

SETTINGS = (
    "config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
)
WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
"""Files with weights, or lists of such files; the first that is there is read."""
KINDS = ("tern", "teran", "vsrn", "vsrnpp")  # that boc train makes, and names in config.json
ENCODERS = (*KINDS, "clip")
RECORD = "boc-model.json"
FORMAT = 1


@dataclass(frozen=True)
class Model:
    """A downloaded model. ``files`` has the SHA-256 of each file, ``contents`` that of what
    determines the output; ``revision`` is the commit, ``licence`` what its card says."""

    repository: str
    revision: str
    licence: str
    files: Mapping[str, str]
    contents: str
    folder: Path

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        return sum(
            path.stat().st_size for name in self.files if (path := self.folder / name).is_file()
        )


def repository(name: str) -> str:
    """Return the repository of a short name, or of ``ORG/NAME``. BocError for anything else."""
    if name in CATALOGUE:
        return CATALOGUE[name].repository
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name, re.ASCII) or any(
        not part.strip(".") for part in name.split("/")
    ):
        raise BocError(
            f"no model {name!r}; take one of {', '.join(CATALOGUE)}, or ORG/NAME of the hub",
        )
    return name


def entry(repository: str) -> ModelEntry | None:
    """Return the entry of a repository that has a short name."""
    return next((each for each in CATALOGUE.values() if each.repository == repository), None)


def spec(encoder: str) -> str:
    """Return the full name of an encoder: a short name becomes ``clip:ORG/NAME``, any other text
    stays."""
    return f"clip:{CATALOGUE[encoder].repository}" if encoder in CATALOGUE else encoder


def kind(folder: Path) -> str | None:
    """Return the kind of encoder that a folder holds, by its configuration alone; None if it holds
    no model."""
    from boc.foreign import read_json

    try:
        config = read_json(folder / "config.json")
        named = config.get("kind")
    except (OSError, ValueError, AttributeError):
        return None
    if named in KINDS:
        return str(named)
    return "clip" if "vision_config" in config else None


def weights(folder: Path) -> list[str]:
    """Return the names of the files in ``folder`` that hold the weights. A list comes before its
    parts."""
    first = next((name for name in WEIGHTS if (folder / name).is_file()), None)
    if first is None:
        return []
    if not first.endswith(".index.json"):
        return [first]
    from boc.foreign import read_json

    index = read_json(folder / first)
    return [first, *sorted(set(index["weight_map"].values()))]


def contents(folder: Path, weights: Sequence[str]) -> str:
    """Return the SHA-256 over names, sizes and contents of the files that determine the output."""
    digest = hashlib.sha256()
    for name in (*SETTINGS, *weights):
        path = folder / name
        if path.is_file():
            digest.update(f"{name} {path.stat().st_size}\n".encode())
            feed(digest, path)
    return digest.hexdigest()


def home() -> Path:
    """Return the folder of all models, which may not exist. BocError if this user has no home."""
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    try:
        return Path(os.environ.get("BOC_MODELS") or f"{data}/boc/models").expanduser()
    except RuntimeError:
        raise BocError(
            "this user has no home folder to keep models in; set BOC_MODELS to a folder",
        ) from None


def place(repository: str) -> Path:
    """Return the folder of a repository, which may not exist."""
    return home() / repository.replace("/", "--")


def find(repository: str) -> Model | None:
    """Return the model of a repository, None if it was not downloaded. BocError if its record is
    damaged."""
    return read(place(repository))


def models() -> Iterator[Model]:
    """Yield all downloaded models, ordered by name."""
    for path in sorted(home().glob(f"*/{RECORD}")):
        model = read(path.parent)
        if model is not None:
            yield model


def read(folder: Path) -> Model | None:
    """Return the model in ``folder``, None without a record. BocError for a damaged record or one
    of another format."""
    from boc.foreign import read_json, typed

    path = folder / RECORD
    try:
        record = read_json(path)
        if record.pop("format") != FORMAT:
            raise ValueError("another format")
        return typed({**record, "folder": folder}, Model)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BocError(
            f"{path}: is no record of a model ({error}); delete {folder} and get the model again",
        ) from error


def write(model: Model) -> None:
    """Write the record of a model into its folder."""
    record = {"format": FORMAT, **asdict(model)}
    del record["folder"]
    write_text(model.folder / RECORD, json.dumps(record, indent=1) + "\n")


def verify(model: Model) -> list[str]:
    """Return the names of the files that are missing, or have other bytes than were downloaded."""
    paths = {name: model.folder / name for name in model.files}
    return [
        name
        for name, path in paths.items()
        if not path.is_file() or sha256(path) != model.files[name]
    ]


def remove(repository: str) -> int:
    """Remove a model, or what was left of a download; return the bytes. BocError if there is
    none."""
    folder = place(repository)
    if not folder.is_dir():
        present = ", ".join(model.repository for model in models()) or "none"
        raise BocError(f"no model {repository} in {home()}; there: {present}")
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    shutil.rmtree(folder)
    return size
