"""The servers that tests run against: fetched as pinned, started, killed, restarted, and never left behind."""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from boc.atomic_files import sha256
from tests import ports
from tests.servers import (
    KINDS,
    Cluster,
    MismatchError,
    RequestError,
    SecureServer,
    Server,
    StartError,
    UnavailableError,
    jdk,
)
from tests.servers import fetch as fetching
from tests.servers.catalogue import Kind
from tests.servers.fixtures import kinds
from tests.servers.provide import Given, fetched, given

Own = Callable[[Any], Any]


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kind:
    """A kind whose archive a stand-in for Maven copies, slowly; each call is a line in ``calls``."""
    source, tools = tmp_path / "server.zip", tmp_path / "bin"
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


def test_only_the_server_of_an_archive_is_kept(archive: Kind, tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"python -m tests\.servers fetch elasticsearch-9"):
        fetched(archive)
    home = fetching.fetch(archive)
    fetched(archive)
    assert (home / "lib" / "server.jar").read_text() == "a server"
    assert contents(tmp_path / "cache") == [home.name]


def test_an_archive_that_is_not_the_pinned_one_is_refused(archive: Kind, tmp_path: Path) -> None:
    with pytest.raises(MismatchError, match=f"elasticsearch-9: SHA-256 is {archive.sha256}, the catalogue pins 00"):
        fetching.fetch(replace(archive, sha256="0" * 64))
    assert contents(tmp_path / "cache") == []


@pytest.mark.parametrize("change", ["added", "altered", "missing"])
def test_jars_that_are_not_the_pinned_ones_are_refused(tmp_path: Path, change: str) -> None:
    for name in ("a.jar", "b.jar"):
        (tmp_path / name).write_text(name)
    kind = replace(KINDS["opensearch-3"], sha256=fetching.folder_digest(tmp_path))
    fetching.check(kind, fetching.folder_digest(tmp_path))
    if change == "added":
        (tmp_path / "c.jar").write_text("")
    elif change == "altered":
        (tmp_path / "b.jar").write_text("c")
    else:
        (tmp_path / "b.jar").unlink()
    with pytest.raises(MismatchError, match="opensearch-3"):
        fetching.check(kind, fetching.folder_digest(tmp_path))


def test_those_who_fetch_at_once_fetch_once_and_clear_what_a_killed_one_left(archive: Kind, tmp_path: Path) -> None:
    (tmp_path / "cache" / ".fetch-killed").mkdir(parents=True)
    with ThreadPoolExecutor(3) as pool:
        homes = set(pool.map(fetching.fetch, [archive] * 3))
    assert len(homes) == 1
    assert contents(tmp_path / "cache") == [next(iter(homes)).name]
    assert (tmp_path / "calls").read_text() == ".\n"


def test_a_jdk_is_taken_for_its_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "javac").touch()
    (tmp_path / "release").write_text('IMPLEMENTOR="x"\nJAVA_VERSION="1234.0.1"\n')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert jdk.find(1000, 2000) == tmp_path
    with pytest.raises(UnavailableError, match=r"no JDK 2000 to 3000 .*1234.*; install one"):
        jdk.find(2000, 3000)


@pytest.mark.parametrize("kind", kinds("opensearch-3", "elasticsearch-9"))
def test_a_server_keeps_its_data_when_killed_and_leaves_no_process(own: Own, tmp_path: Path, kind: str) -> None:
    server = own(Server(kind, tmp_path))
    server.request("PUT", "photos/_doc/1", {"caption": "a dog"})
    url, first = server.url, server.pid
    server.kill()
    assert alive(first) == []
    server.restart()
    second = server.pid
    assert server.url == url
    assert server.request("GET", "photos/_doc/1")["_source"] == {"caption": "a dog"}
    server.stop()
    assert alive(second) == []
    assert not server.running


def alive(group: int) -> list[str]:
    """Processes of a group that are no zombies."""
    shown = subprocess.run(["ps", "-e", "-o", "pgid=,stat=,pid="], capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in shown.splitlines()]
    return [pid for pgid, state, pid in rows if int(pgid) == group and not state.startswith("Z")]


@pytest.mark.parametrize("kind", kinds("opensearch-3", "elasticsearch-9"))
def test_a_server_dies_with_the_process_that_started_it(tmp_path: Path, kind: str) -> None:
    try:
        fetched(KINDS[kind])
    except UnavailableError as missing:
        pytest.skip(str(missing))
    script = """
import sys, time, pathlib, tests.servers
server = tests.servers.Server(sys.argv[1], pathlib.Path(sys.argv[2]))
server.spawn()
print(server.pid, flush=True)
time.sleep(600)
"""
    starter = subprocess.Popen([sys.executable, "-c", script, kind, tmp_path], stdout=subprocess.PIPE, text=True)
    with starter:
        group = int(starter.stdout.readline())
        while len(alive(group)) < (2 if kind.startswith("elasticsearch") else 1):  # a launcher and its node
            assert starter.poll() is None
            time.sleep(0.1)
        starter.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 30
    while alive(group) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert alive(group) == []


@pytest.mark.slow
def test_a_server_that_cannot_start_shows_its_log(own: Own, tmp_path: Path) -> None:
    server = Server("opensearch-3", tmp_path, settings={"no.such.setting": 1})
    with pytest.raises(StartError, match=r"opensearch-3 died; the end of .*log.txt:\n(.|\n)*no.such.setting"):
        own(server)
    assert not server.running


def test_each_server_is_of_its_version_and_finds_what_it_is_given(server: Any) -> None:
    nodes = server.request("GET", "_nodes/_local?filter_path=nodes.*.version")["nodes"]
    assert f"{next(iter(nodes.values()))['version']}.".startswith(server.kind.name.split("-")[1] + ".")
    name = f"test-servers-{os.getpid()}"
    server.request("PUT", f"{name}/_doc/1?refresh=true", {"caption": "a dog"})
    found = server.request("POST", f"{name}/_search", {"query": {"match": {"caption": "dog"}}})
    server.request("DELETE", name)
    assert [hit["_id"] for hit in found["hits"]["hits"]] == ["1"]


def test_an_address_stands_for_the_kind_of_its_version(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"BOC_TEST_{server.kind.engine.upper()}", server.url)
    assert given(server.kind) == Given(server.kind, server.url)
    assert given(replace(server.kind, name=f"{server.kind.engine}-1")) is None
    monkeypatch.setenv(f"BOC_TEST_{server.kind.engine.upper()}", "http://127.0.0.1:1")
    with pytest.raises(UnavailableError, match=r"names http://127\.0\.0\.1:1, which does not answer"):
        given(server.kind)


def test_no_port_is_given_twice_while_two_processes_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "PORTS", range(19_000, 19_024))
    code = """
from tests import ports
ports.PORTS = range(19_000, 19_024)
print(*[ports.free_port() for _ in range(10)], flush=True)
input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        theirs = set(map(int, other.stdout.readline().split()))
        ours = {ports.free_port() for _ in range(10)}
        other.communicate("\n")
    assert len(ours | theirs) == 20


@pytest.mark.servers
def test_a_cluster_lives_on_without_one_of_its_nodes(own: Own, tmp_path: Path) -> None:
    cluster = own(Cluster(tmp_path))
    first, second, _ = cluster.nodes
    first.request("PUT", "photos", {"settings": {"number_of_replicas": 2}})
    first.request("PUT", "photos/_doc/1?wait_for_active_shards=all", {"caption": "a dog"})
    first.kill()
    assert second.request("GET", "photos/_doc/1")["found"]
    second.request("PUT", "photos/_doc/2", {"caption": "a cat"})
    first.restart()
    first.wait(nodes=3)
    assert first.request("GET", "photos/_doc/2")["found"]


@pytest.mark.servers
def test_a_secure_server_wants_its_authority_and_a_key_that_fits(secure: SecureServer) -> None:
    key = secure.api_key("drawings*")
    assert put(secure, key, "drawings-1").startswith("200")
    assert put(secure, key, "other").startswith("403")
    assert put(secure, "bm8gc3VjaDprZXk=", "drawings-2").startswith("401")
    with pytest.raises(RequestError, match="index_not_found"):
        secure.request("GET", "nothing")


@pytest.mark.servers
def test_an_expired_certificate_is_one_that_clients_refuse(own: Own, tmp_path: Path) -> None:
    server = own(SecureServer(tmp_path, expired=True))
    assert "expired" in put(server, server.api_key("photos*"), "photos")


def put(server: SecureServer, key: str, index: str) -> str:
    """Status and text, as a client sees them that checks certificates: create ``index`` with an API key."""
    headers = {"Authorization": f"ApiKey {key}"}
    request = urllib.request.Request(f"{server.url}/{index}", method="PUT", headers=headers)
    try:
        with urllib.request.urlopen(request, context=ssl.create_default_context(cafile=server.authority)) as answer:
            return f"{answer.status}"
    except urllib.error.HTTPError as error:
        with error:
            return f"{error.code}"
    except urllib.error.URLError as error:
        return str(error.reason)
