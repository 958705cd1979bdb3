"""Checks of the installation and of backends. They change nothing, except for trial indexes that
they remove."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
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
    "measures": "measures of runs of TREC",
    "minilm": "the pretrained text tower",
    "eyes": "regions from an EfficientNet",
    "words": "text towers that read whole words",
    "detectors": "regions from detectors",
    "web": "boc serve",
    "watch": "boc sync --watch",
}
"""The purpose of each extra; those of developers are not checked."""
ROOT = Path(__file__).resolve().parents[1]
WAIT = 20  # timeout in seconds of a request to a server


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
        f"{__version__}, on Python {platform.python_version()} ({sys.executable})",
    )
    yield from packages()
    yield from compiled_modules()
    yield from downloaded_models()
    for at in places:
        yield from backend(at)


def packages() -> Iterator[Finding]:
    """Yield findings on the packages that boc always needs, and on those of each extra."""
    try:
        requirements = metadata.requires("boc") or []
    except metadata.PackageNotFoundError:
        yield Finding(
            "note",
            "packages",
            "boc runs from a folder and is not installed",
            "pip install -e FOLDER",
        )
        return
    for extra, use in {"": "all that boc always needs", **USES}.items():
        marked = [
            line
            for line in requirements
            if extra == next(iter(re.findall(r'extra == "([\w-]+)"', line)), "")
        ]
        names = [re.split(r"[^\w.-]", line)[0] for line in marked if "python_version" not in line]
        lacks = [lack for line in marked if "python_version" not in line and (lack := _lack(line))]
        about = f"extra {extra}" if extra else "packages"
        if lacks:
            todo = f"pip install 'boc[{extra}]'" if extra else "pip install boc"
            yield Finding(
                "note" if extra else "problem",
                about,
                f"{use}: lacks {', '.join(lacks)}",
                todo,
            )
        else:
            yield Finding(
                "ok",
                about,
                f"{use}: {', '.join(f'{name} {metadata.version(name)}' for name in names)}",
            )


def _lack(requirement: str) -> str:
    """Return what is wrong with the installed version of a package, such as ``numpy>=2.0``; empty
    if nothing is."""
    name = re.split(r"[^\w.-]", requirement)[0]
    least = re.search(r">=\s*([\d.]+)", requirement)
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return f"{name} (not installed)"
    if least is None or _numbers(version) >= _numbers(least[1]):
        return ""
    return f"{name} ({version}, must be {least[1]} or newer)"


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: (2, 15) of 2.15rc1+cpu."""
    release = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, release[0].split("."))) if release else ()


def compiled_modules() -> Iterator[Finding]:
    """Yield a finding on the modules in C, each of which has a stub file beside it."""
    stubs = [
        stub for package in ("boc", "indexing") for stub in sorted((ROOT / package).rglob("_*.pyi"))
    ]
    names = [".".join(stub.relative_to(ROOT).with_suffix("").parts) for stub in stubs]
    slow = [name for name in names if not _is_compiled(name)]
    if slow:
        todo = "install a C compiler, then boc again; results stay the same"
        yield Finding(
            "note",
            "C modules",
            f"not compiled: {', '.join(slow)}; searches take several times longer",
            todo,
        )
    else:
        yield Finding("ok", "C modules", ", ".join(names))


def _is_compiled(name: str) -> bool:
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
    if present:
        yield Finding(
            "ok",
            "models",
            f"{', '.join(model.repository for model in present)}; boc model verify checks them",
        )
    else:
        yield Finding(
            "note",
            "models",
            f"none in {folder}",
            "to search pictures without training: boc model get clip",
        )


def backend(at: str) -> Iterator[Finding]:
    """Yield findings on the backend at an address: whether it can be used, and what it holds."""
    try:
        if at.startswith("file:"):
            plugins.backend(at)
            yield from _folder(at, Path(at.removeprefix("file:")).expanduser())
        else:
            yield from _server(at)
    except BocError as error:
        yield _problem(re.sub(r"//[^/]*@", "//", at), error)  # without the user


def _folder(at: str, folder: Path) -> Iterator[Finding]:
    above = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not above.is_dir():
        yield Finding(
            "problem",
            at,
            f"{above} is a file, must be a folder",
            "name another folder with --at",
        )
        return
    if not os.access(above, os.R_OK | os.X_OK):
        yield Finding(
            "problem",
            at,
            f"{above} may not be read by this user",
            f"chmod u+rx {above}, or ask its owner",
        )
        return
    free = f"{shutil.disk_usage(above).free / 1e9:.2f} GB free on its disk"
    if not os.access(above, os.W_OK):
        todo = "to make indexes, choose another place with --at, or change its permissions"
        yield Finding("note", at, f"{above} can be read and not be written", todo)
    names = plugins.backend(at).names() if above == folder else []
    for name in names:
        try:
            index = plugins.backend(at).open(name)
        except (BocError, OSError) as error:
            yield Finding(
                "problem",
                f"index {name}",
                worded(error, str),
                f"boc delete {name} --all, and make it again",
            )
        else:
            yield Finding(
                "ok",
                f"index {name}",
                f"encoder {index.manifest.identity.spec}; boc info tells more",
            )
    if names:
        yield Finding("ok", at, f"{len(names)} indexes, {free}")
    else:
        yield Finding("note", at, f"no index yet, {free}", "boc index NAME SOURCE makes one")


def _server(at: str) -> Iterator[Finding]:
    timeout = (
        "" if "request_timeout=" in at else f"{'&' if '?' in at else '?'}request_timeout={WAIT}"
    )
    server = plugins.backend(at + timeout)
    about = server.about()
    engine = about["engine"]
    version = about["version"]
    address = about["address"]
    indexes = f"indexes: {', '.join(server.names()) or 'none yet'}"
    if reasons := about.pop("unreadable", ""):
        yield Finding(
            "problem",
            f"indexes at {address}",
            f"cannot be read: {reasons}",
            "boc info NAME says what to do",
        )
    exact = [field for field, support in about.items() if support.startswith("exact")]
    if exact:
        yield Finding(
            "ok",
            address,
            f"{engine} {version} scores exactly, by {', '.join(exact)}; {indexes}",
        )
        return
    tried = "; ".join(f"{field}: {support}" for field, support in about.items())
    unknown = any(support.startswith("not known") for support in about.values())
    todo = (
        "to make indexes, ask for the rights in docs/reference/servers.md"
        if unknown
        else "see docs/servers.md"
    )
    yield Finding(
        "note" if unknown else "problem",
        address,
        f"not known to score exactly ({tried}); {indexes}",
        todo,
    )


def _problem(about: str, error: BocError) -> Finding:
    what, _, todo = worded(error, str).rpartition("; ")
    return Finding(
        "problem",
        about,
        what or todo,
        todo if what else "correct that, then run boc doctor again",
    )
