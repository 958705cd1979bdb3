"""The servers that tests run against: fetched as pinned, started, killed, restarted, and never left
behind."""

import os
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from boc.atomic_files import sha256
from tests.servers import KINDS, MismatchError, UnavailableError, fetch as fetching, jdk
from tests.servers.catalogue import Kind
from tests.servers.fixtures import check_fetched


@pytest.fixture
def archive(tmp_path: Path, monkeypatch) -> Kind:
    """Return a kind whose archive a stand-in for Maven copies, slowly; each call is a line in
    ``calls``."""
    source = tmp_path / "server.zip"
    tools = tmp_path / "bin"
    with zipfile.ZipFile(source, "w") as file:
        file.writestr("product/elasticsearch/lib/server.jar", "a server")
        file.writestr("product/else", "of no use")
    tools.mkdir()
    script = f"""#!/bin/sh
echo . >> "{tmp_path}/calls"
sleep 0.3
for argument; do
    case $argument in -DoutputDirectory=*) cp "{source}" "${{argument#*=}}"; esac
done
"""
    (tools / "mvn").write_text(script, encoding="utf-8")
    (tools / "mvn").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("BOC_SERVERS", str(tmp_path / "cache"))
    monkeypatch.setattr(jdk, "find", lambda oldest, newest: tmp_path)
    digest = sha256(source)
    return replace(KINDS["elasticsearch-9"], inside="product/elasticsearch/", sha256=digest)


def contents(cache: Path) -> list[str]:
    return [path.name for path in cache.iterdir() if path.name != ".lock"]


def test_fetch_extracts_the_server(archive: Kind, tmp_path: Path):
    with pytest.raises(UnavailableError, match=r"python -m tests\.servers fetch elasticsearch-9"):
        check_fetched(archive)
    home = fetching.fetch(archive)
    check_fetched(archive)
    assert (home / "lib" / "server.jar").read_text() == "a server"
    assert contents(tmp_path / "cache") == [home.name]


def test_fetch_checks_the_digest(archive: Kind, tmp_path: Path):
    with pytest.raises(
        MismatchError,
        match=f"elasticsearch-9: SHA-256 is {archive.sha256}, the catalogue pins 00",
    ):
        fetching.fetch(replace(archive, sha256="0" * 64))
    assert contents(tmp_path / "cache") == []


def test_concurrent_fetch_runs_once(archive: Kind, tmp_path: Path):
    (tmp_path / "cache" / ".fetch-killed").mkdir(parents=True)
    with ThreadPoolExecutor(3) as pool:
        homes = set(pool.map(fetching.fetch, [archive] * 3))
    assert len(homes) == 1
    assert contents(tmp_path / "cache") == [next(iter(homes)).name]
    assert (tmp_path / "calls").read_text() == ".\n"
