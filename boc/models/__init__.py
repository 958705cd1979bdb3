"""Manage pretrained encoders: short names, and the folder to which ``boc model get`` downloads
models.

Models are stored in ``$BOC_MODELS``, by default ``boc/models`` in ``$XDG_DATA_HOME``
(``~/.local/share``). Each model has its own folder, which can be copied to another machine and
contains a record of the origin of the files.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path

from boc.atomic_files import feed, sha256, write_text
from boc.errors import BocError


@dataclass(frozen=True)
class ModelEntry:
    """Model that has a short name.

    ``revision`` is the commit to download, and ``digests`` contains the SHA-256 digests of files in
    the repository. ``licence`` and ``size`` (approximate, in bytes) are as published by the
    authors.
    """

    repository: str
    revision: str
    digests: Mapping[str, str]
    licence: str
    size: int
    about: str


CATALOGUE = {
    "clip": ModelEntry(
        "Xenova/clip-vit-base-patch32",
        "d15189d7028b43f1d3e65039190477f6af591c2a",
        {
            "onnx/text_model.onnx": (
                "3f6571f5bad13a97c469c1622e1cfc4d9aef78b79fdbfcff804ca357bfada8cc"
            ),
            "onnx/vision_model.onnx": (
                "fd6e1402a588279d1723c7534d4bcba5bc0b14b47dfab0e46f8c47b8270d7d40"
            ),
            "onnx/text_model_quantized.onnx": (
                "73baab855d406190da9faa498cfedf65f15cf309f4cc7385b7b032e6d08e5c3a"
            ),
            "onnx/vision_model_quantized.onnx": (
                "583fd1110a514667812fee7d684952aaf82a99b959760c8d7dca7e0ab9839299"
            ),
        },
        "mit",
        608_000_000,
        "small and fast enough for a CPU; English",
    ),
    "siglip2": ModelEntry(
        "onnx-community/siglip2-base-patch16-256-ONNX",
        "d1114256522a37ffa257a0a58017348ab0058db2",
        {
            "onnx/text_model.onnx": (
                "d3de4a6bbbfcb429b6615ac496790353cf4a4fc0f19fbbe7179e523ae60daaef"
            ),
            "onnx/vision_model.onnx": (
                "f5cb16728a704703f05516ded628397e11dbca4de2eb5db04b0c0bcee988aa7a"
            ),
            "onnx/text_model_fp16.onnx": (
                "80954edffdc689599e5d5bc6a1738380bc9e8139a18e5c8892485f248b6b4890"
            ),
            "onnx/vision_model_fp16.onnx": (
                "fe9ad8020a6d3d98d394c9be8f07064066135fc2f87ec11692de0b677c0ac4db"
            ),
            "onnx/text_model_quantized.onnx": (
                "6f59b39d880c413042314b79302b74d0dd93b273caf8fbfdb1eb2df61a7fefd4"
            ),
        },
        "apache-2.0",
        1_540_000_000,
        "more accurate, but needs four times as long per picture; many languages",
    ),
    "multilingual": ModelEntry(
        "onnx-community/siglip2-base-patch32-256-ONNX",
        "7efccb86b5b6601bfe9e14326e1c11b40b68d44c",
        {},
        "apache-2.0",
        1_550_000_000,
        "as fast per picture as clip; many languages",
    ),
}
"""Models with short names. For files without a digest here, later downloads must match the first
download."""


@dataclass(frozen=True)
class Pair:
    """File names of two ONNX networks, ``text`` and ``image``, of the ``tokenizer``, and of the
    preprocessing settings for pictures, ``pixels``."""

    text: str
    image: str
    tokenizer: str
    pixels: str

    @property
    def weights(self) -> list[str]:
        """Return the names of the network files. Large networks store their weights in a second
        file."""
        return [self.text, self.image, f"{self.text}_data", f"{self.image}_data"]

    @property
    def settings(self) -> list[str]:
        """Return the names of the files that determine the input of the networks."""
        folder = self.tokenizer.rpartition("/")[0]
        beside = [f"{folder}/{name}" if folder else name for name in SETTINGS]
        return list(dict.fromkeys([*beside, self.pixels, "config.json"]))


PRECISIONS = {"full": ("",), "half": ("_fp16",), "8bit": ("_quantized", "_int8")}
"""Suffixes of network files for each precision."""
LAYOUTS = (
    # Layout of Transformers.js, used by Xenova and onnx-community.
    Pair(
        "onnx/text_model{}.onnx",
        "onnx/vision_model{}.onnx",
        "tokenizer.json",
        "preprocessor_config.json",
    ),
    # Layout of Immich, exported from open_clip.
    Pair(
        "textual/model{}.onnx",
        "visual/model{}.onnx",
        "textual/tokenizer.json",
        "visual/preprocess_cfg.json",
    ),
    # Layout of Qdrant, which consists of two repositories.
    Pair(
        "text/model{}.onnx",
        "vision/model{}.onnx",
        "text/tokenizer.json",
        "vision/preprocessor_config.json",
    ),
)

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
"""Files that contain weights or list files with weights. The first existing file is read."""
KINDS = ("tern", "teran", "vsrn", "vsrnpp")  # kinds that boc train creates, as in config.json
ENCODERS = (*KINDS, "clip")
RECORD = "boc-model.json"
FORMAT = 1


@dataclass(frozen=True)
class Model:
    """Downloaded model. ``files`` contains the SHA-256 digest of each file, ``contents`` is the
    digest of all files that determine the output, ``revision`` is the commit, and ``licence`` is
    the licence stated in the model card."""

    repository: str
    revision: str
    licence: str
    files: Mapping[str, str]
    contents: str
    folder: Path

    @property
    def size(self) -> int:
        """Return the size of the model on disk in bytes."""
        return sum(
            path.stat().st_size for name in self.files if (path := self.folder / name).is_file()
        )


def repository(name: str) -> str:
    """Return the repository for a short name or for ``ORG/NAME``. Raises BocError for other
    names."""
    if name in CATALOGUE:
        return CATALOGUE[name].repository
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name, re.ASCII) or any(
        not part.strip(".") for part in name.split("/")
    ):
        raise BocError(
            f"unknown model {name!r}; use {', '.join(CATALOGUE)}, or the name ORG/NAME of a model "
            "on the hub",
        )
    return name


def entry(repository: str) -> ModelEntry | None:
    """Return the catalogue entry of a repository, or None if it has no short name."""
    return next((each for each in CATALOGUE.values() if each.repository == repository), None)


def spec(encoder: str) -> str:
    """Expand the short name of an encoder to ``clip:ORG/NAME``. Other names are returned
    unchanged."""
    return f"clip:{CATALOGUE[encoder].repository}" if encoder in CATALOGUE else encoder


def kind(folder: Path) -> str | None:
    """Return the kind of encoder in a folder according to its configuration, or None if the folder
    contains no model."""
    from boc.foreign import read_json

    if pair_in(folder) is not None:
        return "clip"
    try:
        config = read_json(folder / "config.json")
        named = config.get("kind")
    except (OSError, ValueError, AttributeError):
        return None
    if named in KINDS:
        return str(named)
    return "clip" if "vision_config" in config else None


def find_pair(has: Callable[[str], bool], precision: str | None = None) -> Pair | None:
    """Return the ONNX networks with the given ``precision``, by default the highest precision
    available. ``has`` returns whether a file name exists. Returns None if a network or its settings
    are missing."""
    chosen = PRECISIONS if precision is None else [precision]
    for layout in LAYOUTS:
        for ending in chain.from_iterable(PRECISIONS[each] for each in chosen):
            pair = replace(
                layout,
                text=layout.text.format(ending),
                image=layout.image.format(ending),
            )
            if all(map(has, (pair.text, pair.image, pair.tokenizer, pair.pixels))):
                return pair
    return None


def pair_in(folder: Path) -> Pair | None:
    """Return the third-party ONNX networks in ``folder``, or None."""
    return find_pair(lambda name: (folder / name).is_file())


def weights(folder: Path) -> list[str]:
    """Return the names of the weight files in ``folder``. If the weights are split, the file that
    lists the parts comes first."""
    pair = pair_in(folder)
    if pair is not None:
        return [name for name in pair.weights if (folder / name).is_file()]
    first = next((name for name in WEIGHTS if (folder / name).is_file()), None)
    if first is None:
        return []
    if not first.endswith(".index.json"):
        return [first]
    from boc.foreign import read_json

    index = read_json(folder / first)
    return [first, *sorted(set(index["weight_map"].values()))]


def settings(folder: Path) -> list[str]:
    """Return the possible names of the settings files for the model in ``folder``."""
    pair = pair_in(folder)
    return [*SETTINGS] if pair is None else pair.settings


def contents(folder: Path, weights: Sequence[str]) -> str:
    """Compute the SHA-256 digest of the names, sizes and contents of the files that determine the
    output."""
    digest = hashlib.sha256()
    for name in (*settings(folder), *weights):
        path = folder / name
        if path.is_file():
            digest.update(f"{name} {path.stat().st_size}\n".encode())
            feed(digest, path)
    return digest.hexdigest()


def home() -> Path:
    """Return the folder for all models, which may not exist yet. Raises BocError if the user has no
    home folder."""
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    try:
        return Path(os.environ.get("BOC_MODELS") or f"{data}/boc/models").expanduser()
    except RuntimeError:
        raise BocError(
            "this user has no home folder in which to store models; set BOC_MODELS to a folder",
        ) from None


def place(repository: str) -> Path:
    """Return the folder for a repository, which may not exist yet."""
    return home() / repository.replace("/", "--")


def find(repository: str) -> Model | None:
    """Return the downloaded model of a repository, or None if it was not downloaded. Raises
    BocError if the record is damaged."""
    return read(place(repository))


def models() -> Iterator[Model]:
    """Yield all downloaded models, sorted by name."""
    for path in sorted(home().glob(f"*/{RECORD}")):
        model = read(path.parent)
        if model is not None:
            yield model


def read(folder: Path) -> Model | None:
    """Return the model in ``folder``, or None if there is no record. Raises BocError if the record
    is damaged or has another format."""
    from boc.foreign import read_json, typed

    path = folder / RECORD
    try:
        record = read_json(path)
        if record.pop("format") != FORMAT:
            raise ValueError("unknown format")
        return typed({**record, "folder": folder}, Model)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BocError(
            f"{path}: not a model record ({error}); delete {folder} and download the model again",
        ) from error


def write(model: Model) -> None:
    """Write the record of a model to its folder."""
    record = {"format": FORMAT, **asdict(model)}
    del record["folder"]
    write_text(model.folder / RECORD, json.dumps(record, indent=1) + "\n")


def verify(model: Model) -> list[str]:
    """Return the names of files that are missing or whose content has changed since the
    download."""
    paths = {name: model.folder / name for name in model.files}
    return [
        name
        for name, path in paths.items()
        if not path.is_file() or sha256(path) != model.files[name]
    ]
