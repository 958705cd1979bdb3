"""``boc doctor``: what is missing or wrong is found, and each finding that is not fine has a next
step."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from boc import doctor
from boc.doctor import Finding
from tests.helpers import Handler, boc, run, serving
from tests.ports import free_port
from tests.servers.fixtures import address


def one(findings: Iterator[Finding] | list[Finding], about: str) -> Finding:
    [finding] = [finding for finding in findings if finding.about == about]
    return finding


def test_findings_have_next_step(tmp_path: Path) -> None:
    findings = list(doctor.examine([f"file:{tmp_path}"]))
    for finding in findings:
        assert bool(finding.todo) == (finding.state != "ok"), finding
        assert finding.what.isprintable()
    assert one(findings, "packages").state == "ok"
    assert "numpy " in one(findings, "packages").what
    assert one(findings, "C modules").state in ("ok", "note")
    assert {f"extra {name}" for name in doctor.USES} <= {finding.about for finding in findings}


def test_missing_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        "numpy>=2",
        "nothing-like-it>=1",
        'tomli>=99; python_version < "3.0"',
        'click<99,>=8; extra == "web"',
        'ghost>=2; extra == "encoders"',
        'unchecked>=9; extra == "dev"',
    ]
    monkeypatch.setattr("importlib.metadata.requires", lambda name: lines)
    findings = list(doctor.packages())
    core = one(findings, "packages")
    assert core.state == "problem"
    assert core.what == "all that boc always needs: lacks nothing-like-it"
    assert core.todo == "pip install boc"
    assert one(findings, "extra web").state == "ok"
    encoders = one(findings, "extra encoders")
    assert (encoders.state, encoders.what) == (
        "note",
        f"{doctor.USES['encoders']}: lacks ghost",
    )
    assert encoders.todo == "pip install 'boc[encoders]'"
    assert not [finding for finding in findings if "unchecked" in finding.what]


def test_compiled_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        doctor,
        "is_compiled",
        lambda name: not name.endswith("_search"),
    )
    [finding] = doctor.compiled_modules()
    assert (
        finding.state,
        "indexing.embedded._search" in finding.what,
    ) == ("note", True)
    assert "C compiler" in finding.todo


def test_folder_with_indexes(library: Path, tmp_path: Path) -> None:
    findings = list(doctor.backend(f"file:{library / 'index'}"))
    assert {finding.state for finding in findings} == {"ok"}
    assert f"tern:{library / 'model'}" in findings[0].what
    shutil.copytree(library / "index", tmp_path / "index")
    (tmp_path / "index" / "photos" / "CURRENT").write_text("rubbish")
    result = boc("doctor", "--at", f"file:{tmp_path / 'index'}")
    assert result.exit_code == 1
    assert "problem  index photos" in result.stdout
    assert "boc delete photos --all" in result.stdout


def test_unusable_folders(tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    for at, state, words in (
        (f"file:{tmp_path / 'file'}", "problem", "is a file"),
        (f"file:{tmp_path / 'none' / 'deeper'}", "note", "no index yet"),
        (f"file:{tmp_path / 'empty'}", "note", "no index yet"),
        ("file:", "problem", "names no folder"),
        ("ftp://host", "problem", "ftp"),
    ):
        [finding] = doctor.backend(at)
        assert (finding.state, words in finding.what) == (state, True), finding
        assert finding.todo
    assert not (tmp_path / "none").exists()
    for denied, state in ((os.W_OK, "note"), (os.R_OK, "problem")):
        monkeypatch.setattr(
            doctor.os,
            "access",
            lambda path, mode, denied=denied: not mode & denied,
        )
        assert next(doctor.backend(f"file:{library / 'index'}")).state == state


Answer = tuple[int, dict[str, Any]]


@contextmanager
def answering(answer: Callable[[str, str], Answer]) -> Iterator[int]:
    """A server on loopback that answers each method and path so; its port."""

    class Engine(Handler):
        def _do(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            status, body = answer(
                self.command,
                self.path.partition("?")[0],
            )
            data = json.dumps(body).encode()
            self.send_response_only(status)
            headers = {"content-type": "application/json", "x-elastic-product": "Elasticsearch"}
            for name, value in {
                **headers,
                "content-length": str(len(data)),
            }.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _do  # noqa: N815

    with serving(Engine) as server:
        yield server.server_port


def test_server_without_rights() -> None:
    def searchable(method: str, path: str) -> Answer:
        """An Elasticsearch of which this user may search all and make nothing."""
        if path == "/":
            return 200, {"version": {"number": "9.4.3"}, "tagline": "You Know, for Search"}
        if method == "PUT":
            return 403, {"error": {"type": "security_exception", "reason": "no"}}
        return 200, {}

    pytest.importorskip("elastic_transport")
    with answering(searchable) as port:
        [finding] = doctor.backend(f"elastic+http://127.0.0.1:{port}")
    assert finding.state == "note"
    assert "not known to score exactly" in finding.what
    assert "ask for the rights" in finding.todo


def test_unusable_servers() -> None:
    pytest.importorskip("elastic_transport")
    [finding] = doctor.backend(f"elastic+http://127.0.0.1:{free_port()}")
    assert (finding.state, bool(finding.todo)) == ("problem", True)
    denied = (
        401,
        {
            "error": {
                "type": "security_exception",
                "reason": "missing authentication",
            },
        },
    )
    with answering(lambda method, path: denied) as port:
        [finding] = doctor.backend(f"elastic+http://127.0.0.1:{port}")
    assert finding.state == "problem"
    assert "BOC_PASSWORD" in finding.todo


def test_origin_of_settings(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "boc.toml").write_text('at = "file:places"\n[search]\nk = 3\n')
    monkeypatch.setenv("BOC_DEVICE", "cpu")
    monkeypatch.setenv("BOC_PASSWORD", "hidden-word")
    result = run("doctor")
    variables = "variables BOC_DEVICE, BOC_PASSWORD"
    for line in (
        "file boc.toml",
        variables,
        "file:places: no index yet",
    ):
        assert line in result.stdout
    assert "hidden-word" not in result.output
    monkeypatch.setenv("BOC_AT", "elastic+https://me:hidden-word@localhost:9200")
    result = boc("doctor")
    assert "BOC_PASSWORD" in result.stdout
    assert "hidden-word" not in result.output


def test_wrong_settings_file(here: Path) -> None:
    (here / "boc.toml").write_text("[search]\nkk = 3\n")
    result = boc("doctor")
    assert result.exit_code == 1
    assert "problem  settings: boc.toml: unknown 'kk'" in result.stdout
    assert "file:boc-data: no index yet" in result.stdout


def test_working_server(server: Any) -> None:
    [finding] = doctor.backend(address(server))
    assert finding.state == "ok"
    assert "scores exactly" in finding.what
