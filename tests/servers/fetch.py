"""Fetches servers through Maven, once, into a folder for all projects: BOC_SERVERS or
~/.cache/boc-servers.

What arrives is compared with the digest of the catalogue before anything of it is used. A server
appears in the folder as a whole or not at all, so that a process that dies while fetching, or two
that fetch at once, do no harm.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from boc.atomic_files import sha256

from . import jdk
from .catalogue import Kind
from .errors import MismatchError, UnavailableError

HERE = Path(__file__).parent
DEPENDENCY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1"


def cache() -> Path:
    """Return the folder that holds fetched servers."""
    return Path(os.environ.get("BOC_SERVERS") or Path.home() / ".cache" / "boc-servers")


def place(kind: Kind) -> Path:
    """Where ``kind`` lies once fetched; another name when its pinned digest or the Java sources
    change."""
    digest = hashlib.sha256(kind.sha256.encode())
    for source in _sources(kind):
        digest.update(source.read_bytes())
    return cache() / f"{kind.name}-{digest.hexdigest()[:12]}"


def fetch(kind: Kind) -> Path:
    """Home of ``kind``, fetched if it is not there: ``lib/`` and what else it came with.

    ``UnavailableError`` without a fitting JDK, Maven or a network; ``MismatchError`` if not the
    pinned files arrived.
    """
    home = place(kind)
    if home.exists():
        return home
    compiler = jdk.find(*kind.java) / "bin" / "javac"
    if shutil.which("mvn") is None:
        raise UnavailableError("fetching needs Maven; install it (apt install maven)")
    with _alone(home.parent) as folder:
        if not home.exists():
            made = _archive(kind, folder) if kind.inside else _jars(kind, folder, compiler)
            made.rename(home)
    return home


@contextmanager
def _alone(place: Path) -> Iterator[Path]:
    """One process fetches at a time, in a folder of its own; what a killed one left there is
    removed."""
    place.mkdir(parents=True, exist_ok=True)
    with (place / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for rest in place.glob(".fetch-*"):
            shutil.rmtree(rest)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=place) as folder:
            yield Path(folder)


def check(kind: Kind, found: str) -> None:
    """``MismatchError`` unless ``found`` is the pinned SHA-256."""
    if found != kind.sha256:
        raise MismatchError(
            f"{kind.name}: SHA-256 is {found}, the catalogue pins {kind.sha256}; nothing is kept",
        )


def folder_digest(folder: Path) -> str:
    """SHA-256 over the sorted lines ``NAME SHA256`` of the files of a flat folder, in hex."""
    lines = "".join(f"{path.name} {sha256(path)}\n" for path in sorted(folder.iterdir()))
    return hashlib.sha256(lines.encode()).hexdigest()


def _maven(folder: Path, *arguments: str) -> None:
    """Run Maven with a repository of its own, gone with ``folder``: the user's keeps no copy of
    large archives."""
    command = ["mvn", "-B", "-q", "-C", f"-Dmaven.repo.local={folder / 'repository'}", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        problem = next(
            (line for line in done.stdout.splitlines() if "ERROR" in line),
            done.stderr[-500:],
        )
        raise UnavailableError(f"Maven could not fetch it: {problem.strip()}")


def _archive(kind: Kind, folder: Path) -> Path:
    """Return the folder ``inside`` the archive."""
    _maven(
        folder,
        f"{DEPENDENCY}:copy",
        f"-Dartifact={kind.artifacts[0]}",
        f"-DoutputDirectory={folder}",
    )
    (archive,) = folder.glob("*.zip")
    check(kind, sha256(archive))
    with zipfile.ZipFile(archive) as file:
        file.extractall(folder, [name for name in file.namelist() if name.startswith(kind.inside)])
    return folder / kind.inside


def _jars(kind: Kind, folder: Path, compiler: Path) -> Path:
    """``lib/`` with the artifacts and all they depend on, ``classes/`` with the start class,
    plug-ins unpacked."""
    home = folder / "home"
    (folder / "pom.xml").write_text(_pom(kind), encoding="utf-8")
    _maven(folder, f"{DEPENDENCY}:copy-dependencies", f"-DoutputDirectory={home / 'lib'}")
    check(kind, folder_digest(home / "lib"))
    for archive in (home / "lib").glob("*.zip"):
        with zipfile.ZipFile(archive) as file:
            file.extractall(home / "plugin")
        archive.unlink()
    options = [
        "--release",
        str(kind.java[0]),
        "-cp",
        str(home / "lib" / "*"),
        "-d",
        str(home / "classes"),
    ]
    subprocess.run([compiler, *options, *_sources(kind)], check=True)
    return home


def _sources(kind: Kind) -> list[Path]:
    """Java sources that ``kind`` is started with."""
    if kind.inside:
        return []
    stubs = (HERE / "node" / "stubs").rglob("*.java") if kind.name.endswith("-knn") else ()
    return [HERE / "node" / "OpenSearchNode.java", *sorted(stubs)]


def _pom(kind: Kind) -> str:
    """Return a Maven project that depends on the artifacts."""
    dependencies = ""
    for artifact in kind.artifacts:
        group, name, version, form = (*artifact.split(":"), "jar")[:4]
        dependencies += (
            f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId>"
            f"<version>{version}</version><type>{form}</type></dependency>"
        )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>boc</groupId>"
        f"<artifactId>servers</artifactId><version>1</version><packaging>pom</packaging>"
        f"<dependencies>{dependencies}</dependencies></project>"
    )
