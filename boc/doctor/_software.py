"""Checks of the installed packages by their metadata. Nothing heavy is imported, and torch only in a separate
process."""

from __future__ import annotations

import json
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path

from packaging.markers import Marker
from packaging.requirements import Requirement

from boc import __version__

from ._finding import Finding

SHOWN = ("numpy", "scipy", "faiss-cpu", "torch", "transformers", "elasticsearch", "opensearch-py")
C_MODULES = {
    "indexing.embedded._strings": "words",
    "boc.clustering._nearest": "nearest centroids",
    "boc.rerank._rescore": "dot products",
    "indexing.embedded._search": "searching",
}
USES = {
    "encoders": "encode sentences and pictures, train",
    "heic": "HEIC pictures of telephones",
    "ocr": "boc index --ocr",
    "codebook": "boc build-codebook --dictionary",
    "elastic": "indexes on Elasticsearch",
    "opensearch": "indexes on OpenSearch",
    "minilm": "the pretrained text tower",
    "eyes": "regions from an EfficientNet",
    "tflite": "regions from a MobileNet",
    "words": "text towers that read whole words",
    "detectors": "regions from detectors",
    "web": "boc serve",
    "watch": "boc sync --watch",
}
"""The purpose of each extra; those of developers are not checked."""
PROBE = (
    "import json, torch; n = torch.cuda.device_count() if torch.cuda.is_available() else 0; "
    "print(json.dumps([torch.version.cuda, [torch.cuda.get_device_name(i) for i in range(n)]]))"
)
DRIVER = Path("/proc/driver/nvidia/version")


def versions() -> dict[str, str]:
    """Versions of the main packages by name."""
    from boc.manifest import FORMAT

    found = {"Python": platform.python_version()}
    found |= {name: _version(name) or "not installed" for name in SHOWN}
    compiled = [name for name in C_MODULES if _compiled(name)]
    return {**found, "index format": str(FORMAT), "C modules": ", ".join(compiled) or "none compiled in"}


def software() -> Iterator[Finding]:
    """Findings on Python, boc, its core packages, each extra, the C modules, and the GPU."""
    yield Finding("ok", "boc", f"{__version__}, on Python {platform.python_version()} ({sys.executable})")
    try:
        core = requirements()
    except metadata.PackageNotFoundError:
        yield Finding("note", "boc", "runs from a folder and is not installed", f"{_pip()} -e FOLDER")
    else:
        yield _group("packages", "all that boc always needs", core)
        for extra, use in USES.items():
            yield _group(f"extra {extra}", use, requirements(extra), optional=True)
    for name, use in C_MODULES.items():
        if _compiled(name):
            yield Finding("ok", "C modules", f"{name} is compiled in ({use})")
        else:
            todo = "install a C compiler, then boc again; nothing else changes"
            yield Finding("note", "C modules", f"{name} is not compiled: {use} takes longer", todo)
    yield _gpu()


def requirements(extra: str = "") -> list[Requirement]:
    """The packages that the installed boc requires on this Python, or that an extra adds.

    PackageNotFoundError if boc is not installed.
    """
    every = [Requirement(line) for line in metadata.requires("boc") or []]
    return [each for each in every if _applies(each.marker, extra) and not (extra and _applies(each.marker, ""))]


def _applies(marker: Marker | None, extra: str) -> bool:
    return marker is None or marker.evaluate({"extra": extra})


def _met(requirement: Requirement) -> bool:
    """Whether the package is installed in a suitable version."""
    version = _version(requirement.name)
    return version is not None and requirement.specifier.contains(version, prereleases=True)


def install(extra: str) -> str:
    """The command that installs the missing packages of an extra; empty if none is missing."""
    try:
        return _line([each for each in requirements(extra) if not _met(each)])
    except metadata.PackageNotFoundError:
        return ""


def _group(about: str, use: str, group: list[Requirement], optional: bool = False) -> Finding:
    missing = [each for each in group if not _met(each)]
    if not group:
        return Finding("note", about, f"{use}: the installed boc is older than this", "install boc again")
    if not missing:
        packages = ", ".join(f"{each.name} {_version(each.name)}" for each in group)
        return Finding("ok", about, f"{use}: {packages}" if len(group) < 6 else f"{use}: {len(group)} packages")
    lacks = ", ".join(f"{each.name} ({_lack(each)})" for each in missing)
    return Finding("note" if optional else "problem", about, f"{use}: lacks {lacks}", _line(missing))


def _bounds(requirement: Requirement) -> str:
    """The versions that fit, the lower bound first."""
    return ",".join(sorted(map(str, requirement.specifier), reverse=True))


def _lack(requirement: Requirement) -> str:
    version = _version(requirement.name)
    return "not installed" if version is None else f"{version}, must be {_bounds(requirement)}"


def _line(missing: list[Requirement]) -> str:
    return f"{_pip()} {shlex.join(f'{each.name}{_bounds(each)}' for each in missing)}" if missing else ""


def _pip() -> str:
    python = shlex.quote(sys.executable)
    return f"{python} -m pip install" if find_spec("pip") else f"uv pip install --python {python}"


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _compiled(name: str) -> bool:
    spec = find_spec(name)
    return spec is not None and (spec.origin or "").endswith(tuple(EXTENSION_SUFFIXES))


def _gpu() -> Finding:
    if _version("torch") is None:
        return Finding("note", "GPU", "not looked for, since torch is not installed", install("encoders"))
    try:
        done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=120, check=False)
    except subprocess.TimeoutExpired:
        return Finding("problem", "GPU", "torch does not start within 120 s", "restart the machine, or its GPU driver")
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        todo = f"{_pip()} --force-reinstall torch"
        return Finding("problem", "GPU", f"torch is installed and does not start ({last[:200]})", todo)
    cuda, names = json.loads(done.stdout.splitlines()[-1])
    if names:
        return Finding("ok", "GPU", f"{', '.join(names)}; CUDA {cuda}")
    if DRIVER.exists():
        what = f"a driver is there, but torch (CUDA {cuda}) sees no GPU"
        return Finding("note", "GPU", what, "update the driver, or install the torch that fits it; the CPU does, too")
    return Finding("ok", "GPU", "none: encoders run on the CPU")
