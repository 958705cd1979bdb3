"""The files of a model that an encoder reads, and the digest that identifies the model."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from boc.atomic_files import feed

SETTINGS = (
    "config.json", "preprocessor_config.json", "processor_config.json", "tokenizer.json", "tokenizer_config.json",
    "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "vocab.txt", "spiece.model",
    "sentencepiece.bpe.model", "tokenizer.model", "open_clip_config.json",
)  # fmt: skip
WEIGHTS = (
    "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json",
    "open_clip_model.safetensors", "open_clip_pytorch_model.bin",
)  # fmt: skip
"""Files with weights, or lists of such files; the first that is there is read."""
PART = re.compile(r"(model-\d+-of-\d+\.safetensors)|(pytorch_model-\d+-of-\d+\.bin)")
CARDS = ("README.md", "LICENSE", "LICENSE.md", "LICENSE.txt", "NOTICE", "NOTICE.md")


def first_weights(names: Iterable[str]) -> str | None:
    """The one of ``names`` that the weights are read from."""
    there = set(names)
    return next((name for name in WEIGHTS if name in there), None)


def weights(folder: Path) -> list[str]:
    """Names of the files in ``folder`` that hold the weights, none if there are none. A list comes before its parts."""
    first = first_weights(path.name for path in folder.iterdir())
    if first is None:
        return []
    if not first.endswith(".index.json"):
        return [first]
    index = json.loads((folder / first).read_text(encoding="utf-8"))
    return [first, *sorted(set(index["weight_map"].values()))]


def is_wanted(name: str) -> bool:
    """Whether a file of a repository can be of use: settings, weights, or the card with the licence."""
    return name in {*SETTINGS, *WEIGHTS, *CARDS} or PART.fullmatch(name) is not None


def wanted(names: Collection[str]) -> list[str]:
    """The needed ones of ``names``: settings, one set of weights, the model card."""
    first = first_weights(names)
    parts = {first}
    if first is not None and first.endswith(".index.json"):
        stem, _, suffix = first.removesuffix(".index.json").rpartition(".")
        parts |= set(fnmatch.filter(names, f"{stem}-*-of-*.{suffix}"))
    return sorted(name for name in names if name in parts or name in SETTINGS or name in CARDS)


def contents(folder: Path, weights: Sequence[str]) -> str:
    """SHA-256 over the names, sizes and contents of the files that determine the output."""
    digest = hashlib.sha256()
    for name in (*SETTINGS, *weights):
        path = folder / name
        if path.is_file():
            digest.update(f"{name} {path.stat().st_size}\n".encode())
            feed(digest, path)
    return digest.hexdigest()
