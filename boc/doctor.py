"""Checks of the installation and of backends. They change nothing, except for trial indexes that
they remove."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from boc import __version__, models, plugins
from boc.errors import BocError, worded

State = Literal["ok", "note", "problem"]
USES = {
    "search": "search, index and serve without torch",
    "encoders": "train, convert, encode on a GPU",
    "heic": "HEIC pictures of telephones",
    "ocr": "boc index --ocr",
    "elastic": "indexes on Elasticsearch",
    "opensearch": "indexes on OpenSearch",
    "minilm": "the pretrained text tower",
    "eyes": "regions from an EfficientNet",
    "words": "text towers that read whole words",
    "detectors": "regions from detectors",
    "web": "boc serve",
    "watch": "boc sync --watch",
}
"""The purpose of each extra; extras of developers are not checked."""
ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Finding:
    """The result of one check: its subject, the finding in one line, the next step. A problem stops
    a search."""

    state: State
    about: str
    what: str
    todo: str = ""


def examine(places: Iterable[str]) -> Iterator[Finding]:
    """Yield findings on the installation, the models, and the backend at each of ``places``."""
    yield Finding(
        "ok",
        "boc",
        f"{__version__}, on Python {sys.version.split()[0]} ({sys.executable})",
    )
    yield from packages()
    yield from compiled_modules()
    yield from downloaded_models()
    for at in places:
        yield from backend(at)


def packages() -> Iterator[Finding]:
    """Yield findings on the packages that boc always needs, and on the packages of each extra."""
    try:
        requirements = metadata.requires("boc") or []
    except metadata.PackageNotFoundError:
        what = "boc runs from a folder and is not installed"
        yield Finding("note", "packages", what, "pip install -e FOLDER")
        return
    for extra, use in {"": "all that boc always needs", **USES}.items():
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
    """Yield a finding on the modules in C, each of which has a stub file beside it."""
    stubs = [stub for package in ("boc", "indexing") for stub in (ROOT / package).rglob("_*.pyi")]
    names = sorted(".".join(stub.relative_to(ROOT).with_suffix("").parts) for stub in stubs)
    slow = [name for name in names if not is_compiled(name)]
    if slow:
        yield Finding(
            "note",
            "C modules",
            f"not compiled: {', '.join(slow)}; searches take several times longer",
            "install a C compiler, then boc again; results stay the same",
        )
    else:
        yield Finding("ok", "C modules", ", ".join(names))


def is_compiled(name: str) -> bool:
    """Return whether a module was built from C."""
    spec = find_spec(name)
    return spec is not None and (spec.origin or "").endswith(tuple(EXTENSION_SUFFIXES))


def downloaded_models() -> Iterator[Finding]:
    """Yield a finding on the downloaded models."""
    try:
        folder = models.home()
        present = list(models.models())
    except BocError as error:
        yield _problem("models", error)
        return
    if names := ", ".join(model.repository for model in present):
        yield Finding("ok", "models", names)
    else:
        todo = "to search pictures without training: boc model get clip"
        yield Finding("note", "models", f"none in {folder}", todo)


def backend(at: str) -> Iterator[Finding]:
    """Yield findings on the backend at an address: whether it can be used, and what it holds."""
    try:
        if at.startswith("file:"):
            plugins.backend(at)
            yield from folder_findings(at, Path(at.removeprefix("file:")).expanduser())
        else:
            yield from server_findings(at)
    except BocError as error:
        yield _problem(re.sub(r"//[^/]*@", "//", at), error)  # without the user


def folder_findings(at: str, folder: Path) -> Iterator[Finding]:
    """Yield findings on a folder of indexes."""
    above = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not above.is_dir():
        todo = "name another folder with --at"
        yield Finding("problem", at, f"{above} is a file, must be a folder", todo)
        return
    if not os.access(above, os.R_OK | os.X_OK):
        what = f"{above} may not be read by this user"
        yield Finding("problem", at, what, f"chmod u+rx {above}, or ask its owner")
        return
    if not os.access(above, os.W_OK):
        todo = "to make indexes, choose another place with --at, or change its permissions"
        yield Finding("note", at, f"{above} can be read and not be written", todo)
    names = plugins.backend(at).names() if above == folder else []
    for name in names:
        about = f"index {name}"
        try:
            spec = plugins.backend(at).open(name).manifest.identity.spec
            yield Finding("ok", about, f"encoder {spec}; boc info tells more")
        except (BocError, OSError) as error:
            again = f"boc delete {name} --all, and make it again"
            yield Finding("problem", about, worded(error, str), again)
    if names:
        yield Finding("ok", at, f"{len(names)} indexes")
    else:
        yield Finding("note", at, "no index yet", "boc index NAME SOURCE makes one")


def server_findings(at: str) -> Iterator[Finding]:
    """Yield findings on a server: its indexes, and whether it scores exactly."""
    # A request that takes more seconds fails.
    if "request_timeout=" not in at:
        at += f"{'&' if '?' in at else '?'}request_timeout=20"
    server = plugins.backend(at)
    about = server.about()
    address = about["address"]
    known = f"{about['engine']} {about['version']}"
    indexes = f"indexes: {', '.join(server.names()) or 'no index yet'}"
    if reasons := about.pop("unreadable", ""):
        what = f"cannot be read: {reasons}"
        yield Finding("problem", f"indexes at {address}", what, "boc info NAME says what to do")
    exact = [field for field, support in about.items() if support.startswith("exact")]
    if exact:
        yield Finding("ok", address, f"{known} scores exactly, by {', '.join(exact)}; {indexes}")
        return
    tried = "; ".join(f"{field}: {support}" for field, support in about.items())
    what = f"not known to score exactly ({tried}); {indexes}"
    if "not known" in tried:
        todo = "to make indexes, ask for the rights in docs/reference/servers.md"
        yield Finding("note", address, what, todo)
    else:
        yield Finding("problem", address, what, "see docs/servers.md")


def _problem(about: str, error: BocError) -> Finding:
    what, _, todo = worded(error, str).rpartition("; ")
    if not what:
        return Finding("problem", about, todo, "correct that, then run boc doctor again")
    return Finding("problem", about, what, todo)
