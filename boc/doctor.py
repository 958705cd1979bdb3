"""Check the installation (packages, C modules, models) without changing it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from boc import __version__, models
from boc.errors import BocError, worded

State = Literal["ok", "note", "problem"]
USES = {
    "search": "search, index and serve without PyTorch",
    "encoders": "train, convert, and encode on a GPU",
    "heic": "HEIC pictures from phones",
    "ocr": "boc index --ocr",
    "elastic": "indexes on Elasticsearch",
    "opensearch": "indexes on OpenSearch",
    "minilm": "the pretrained text tower",
    "eyes": "regions from an EfficientNet",
    "words": "text towers with whole-word vocabularies",
    "detectors": "regions from detectors",
    "web": "boc serve",
    "watch": "boc sync --watch",
}
"""The purpose of each extra. Extras for developers are not checked."""
ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Finding:
    """Result of one check: its subject, a one-line finding and the next step. A ``problem``
    prevents searches."""

    state: State
    about: str
    what: str
    todo: str = ""


def examine() -> Iterator[Finding]:
    """Yield findings about the installation and the models."""
    yield Finding(
        "ok",
        "boc",
        f"{__version__}, on Python {sys.version.split()[0]} ({sys.executable})",
    )
    yield from packages()
    yield from compiled_modules()
    yield from downloaded_models()


def packages() -> Iterator[Finding]:
    """Yield findings about the required packages and the packages of each extra."""
    try:
        requirements = metadata.requires("boc") or []
    except metadata.PackageNotFoundError:
        what = "boc runs from a source folder and is not installed"
        yield Finding("note", "packages", what, "pip install -e FOLDER")
        return
    for extra, use in {"": "all required packages", **USES}.items():
        names = [
            re.split(r"[^\w.-]", line)[0]
            for line in requirements
            if "python_version" not in line and line.partition('extra == "')[2].strip('"') == extra
        ]
        versions = {}
        for name in names:
            with suppress(metadata.PackageNotFoundError):
                versions[name] = metadata.version(name)
        about = f"extra {extra}" if extra else "packages"
        if lacks := ", ".join(name for name in names if name not in versions):
            todo = f"pip install 'boc[{extra}]'" if extra else "pip install boc"
            yield Finding("note" if extra else "problem", about, f"{use}: lacks {lacks}", todo)
        else:
            shown = ", ".join(f"{name} {version}" for name, version in versions.items())
            yield Finding("ok", about, f"{use}: {shown}")


def compiled_modules() -> Iterator[Finding]:
    """Yield a finding about the C modules, which are identified by their stub files."""
    stubs = [stub for package in ("boc", "indexing") for stub in (ROOT / package).rglob("_*.pyi")]
    names = sorted(".".join(stub.relative_to(ROOT).with_suffix("").parts) for stub in stubs)
    slow = [name for name in names if not is_compiled(name)]
    if slow:
        yield Finding(
            "note",
            "C modules",
            f"not compiled: {', '.join(slow)}; searches are several times slower",
            "install a C compiler, then reinstall boc; the results stay the same",
        )
    else:
        yield Finding("ok", "C modules", ", ".join(names))


def is_compiled(name: str) -> bool:
    """Return whether a module was built from C."""
    spec = find_spec(name)
    return spec is not None and (spec.origin or "").endswith(tuple(EXTENSION_SUFFIXES))


def downloaded_models() -> Iterator[Finding]:
    """Yield a finding about the downloaded models."""
    try:
        folder = models.home()
        present = list(models.models())
    except BocError as error:
        what, _, todo = worded(error, str).rpartition("; ")
        yield Finding("problem", "models", what or todo, todo)
        return
    if names := ", ".join(model.repository for model in present):
        yield Finding("ok", "models", names)
    else:
        todo = "download a pretrained model: boc model get clip"
        yield Finding("note", "models", f"none in {folder}", todo)
