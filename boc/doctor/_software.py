"""What is installed, by its metadata: nothing heavy is imported, and torch only in a process of its own."""

from __future__ import annotations

import json
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path

from boc import __version__

from ._finding import Finding

SHOWN = ("numpy", "scipy", "faiss-cpu", "torch", "transformers", "elasticsearch", "opensearch-py")
C_MODULES = {
    "indexing.embedded._topk": "reading posting lists",
    "indexing.embedded._strings": "words",
    "boc._dots": "dot products",
}
USES = {
    "encoders": "encode sentences and pictures, train",
    "codebook": "boc build-codebook --dictionary",
    "elastic": "indexes on Elasticsearch",
    "opensearch": "indexes on OpenSearch",
    "minilm": "the pretrained text tower",
    "eyes": "regions from an EfficientNet",
    "tflite": "regions from a MobileNet",
    "words": "text towers that read whole words",
    "detectors": "regions from detectors",
    "web": "boc serve",
}
"""What each extra is for; those of developers are not looked at."""
PROBE = (
    "import json, torch; n = torch.cuda.device_count() if torch.cuda.is_available() else 0; "
    "print(json.dumps([torch.version.cuda, [torch.cuda.get_device_name(i) for i in range(n)]]))"
)
DRIVER = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True)
class Requirement:
    """``name`` with ``wanted`` versions, like ``>=8.15,<9``; of the extra ``extra``, none if empty."""

    name: str
    wanted: str
    extra: str

    def met(self) -> bool:
        """Whether it is installed, in a version that fits."""
        found = _version(self.name)
        return found is not None and all(_fits(found, bound) for bound in self.wanted.split(","))

    def __str__(self) -> str:
        return f"{self.name}{self.wanted}"


def versions() -> dict[str, str]:
    """The versions that matter, by name."""
    from boc.manifest import FORMAT

    found = {"Python": platform.python_version()}
    found |= {name: _version(name) or "not installed" for name in SHOWN}
    compiled = [name for name in C_MODULES if _compiled(name)]
    return {**found, "index format": str(FORMAT), "C modules": ", ".join(compiled) or "none compiled in"}


def software() -> Iterator[Finding]:
    """Python and boc, what boc cannot do without, each extra, the modules in C, the GPU."""
    yield Finding("ok", "boc", f"{__version__}, on Python {platform.python_version()} ({sys.executable})")
    try:
        needed = requirements()
    except metadata.PackageNotFoundError:
        yield Finding("note", "boc", "runs from a folder and is not installed", f"{_pip()} -e FOLDER")
    else:
        yield _group("packages", "all that boc always needs", [each for each in needed if not each.extra])
        for extra, use in USES.items():
            yield _group(f"extra {extra}", use, [each for each in needed if each.extra == extra])
    for name, use in C_MODULES.items():
        if _compiled(name):
            yield Finding("ok", "C modules", f"{name} is compiled in ({use})")
        else:
            todo = "install a C compiler, then boc anew; nothing else changes"
            yield Finding("note", "C modules", f"{name} is not compiled: {use} takes longer", todo)
    yield _gpu()


def requirements() -> list[Requirement]:
    """What the installed boc asks for, on this Python; PackageNotFoundError if it is not installed."""
    found = []
    for line in metadata.requires("boc") or []:
        need, _, marker = line.partition(";")
        older = re.search(r'python_version\s*<\s*"(\d+)\.(\d+)"', marker)
        if older and sys.version_info[:2] >= (int(older[1]), int(older[2])):
            continue
        extra = re.search(r"extra\s*==\s*[\"']([\w-]+)", marker)
        name = re.match(r"[\w.-]+", need.strip())
        if name:
            wanted = need.strip()[name.end() :].strip(" ()").replace(" ", "")
            found.append(Requirement(name[0], wanted, extra[1] if extra else ""))
    return found


def install(extra: str) -> str:
    """The command that installs what is missing of an extra, empty if nothing is."""
    try:
        needed = [each for each in requirements() if each.extra == extra and not each.met()]
    except metadata.PackageNotFoundError:
        needed = []
    return _line(needed)


def _group(about: str, use: str, group: list[Requirement]) -> Finding:
    missing = [each for each in group if not each.met()]
    if not group:
        return Finding("note", about, f"{use}: the installed boc is older than this", "install boc anew")
    if not missing:
        there = ", ".join(f"{each.name} {_version(each.name)}" for each in group)
        return Finding("ok", about, f"{use}: {there}" if len(group) < 6 else f"{use}: {len(group)} packages")
    lacks = ", ".join(f"{each.name} ({_lack(each)})" for each in missing)
    return Finding("note" if missing[0].extra else "problem", about, f"{use}: lacks {lacks}", _line(missing))


def _lack(requirement: Requirement) -> str:
    found = _version(requirement.name)
    return "not installed" if found is None else f"{found}, must be {requirement.wanted}"


def _line(missing: list[Requirement]) -> str:
    return f"{_pip()} {shlex.join(map(str, missing))}" if missing else ""


def _pip() -> str:
    python = shlex.quote(sys.executable)
    return f"{python} -m pip install" if find_spec("pip") else f"uv pip install --python {python}"


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _fits(version: str, bound: str) -> bool:
    """Whether a version is within a bound like >=8.15, by its leading numbers."""
    match = re.match(r"(>=|<)(.+)", bound)
    if match is None:
        return True
    return (_numbers(version) >= _numbers(match[2])) == (match[1] == ">=")


def _numbers(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(\.\d+)*", version)
    numbers = [int(each) for each in match[0].split(".")] if match else []
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def _compiled(name: str) -> bool:
    found = find_spec(name)
    return found is not None and (found.origin or "").endswith(tuple(EXTENSION_SUFFIXES))


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
