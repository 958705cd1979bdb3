"""`boc serve --install` and `--uninstall`: a service of the user, which no other file is lost
for."""

import os
import plistlib
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from boc.cli import settings, user_service
from boc.cli.commands import serve
from tests.helpers import boc

ODD = 'folder %h $HOME "q" \\ end'


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file where a manager of services, which does nothing, writes what it is called with."""
    (tmp_path / "bin").mkdir()
    for name in ("systemctl", "launchctl"):
        program = tmp_path / "bin" / name
        program.write_text(f'#!/bin/sh\necho "$@" >> "{tmp_path}/calls"\n')
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    for name in [name for name in os.environ if name.startswith("BOC_")]:
        monkeypatch.delenv(name)
    (tmp_path / ODD).mkdir()
    monkeypatch.chdir(tmp_path / ODD)
    return tmp_path / "calls"


def words_of(unit: str, key: str) -> list[str]:
    """Read a line of a unit as systemd does, but for the variables: % is doubled, and $ in
    commands."""
    (line,) = [line for line in unit.splitlines() if line.startswith(f"{key}=")]
    assert "%" not in line.replace("%%", "")
    return [
        word.replace("%%", "%").replace("$$", "$") for word in shlex.split(line.partition("=")[2])
    ]


def test_a_unit_runs_the_command_here_at_each_login(
    calls: Path,
    tmp_path: Path,
    library: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "sys.orig_argv",
        ["python", "/bin/boc", "serve", "photos", "--install", "--port", "80", ODD],
    )
    monkeypatch.setenv("BOC_AT", f"file:{library / 'index'}")
    said = boc("serve", "photos", "--install", "--port", "80")
    path = tmp_path / ".config/systemd/user/boc-photos.service"
    assert said.stdout == f"photos is served on port 80 now, and from each login on (by {path})\n"
    unit = path.read_text(encoding="utf-8")
    assert words_of(unit, "ExecStart") == [
        sys.executable,
        "/bin/boc",
        "serve",
        "photos",
        "--port",
        "80",
        ODD,
    ]
    assert words_of(unit, "Environment") == [f"BOC_AT=file:{library / 'index'}"]
    assert f"WorkingDirectory={tmp_path / ODD}".replace("%", "%%") in unit.splitlines()
    assert unit.splitlines()[-1] == "WantedBy=default.target"
    assert (
        calls.read_text()
        == "--user reenable boc-photos.service\n--user restart boc-photos.service\n"
    )
    if shutil.which("systemd-analyze"):
        (tmp_path / "run").mkdir()
        environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path / "run")}
        subprocess.run(["systemd-analyze", "verify", "--user", path], check=True, env=environment)
    assert (
        boc("serve", "photos", "--install", "--open").exit_code == 0
    )  # again, as the desktop opens
    assert path.read_text(encoding="utf-8").splitlines()[-1] == "WantedBy=graphical-session.target"
    calls.unlink()
    assert boc("serve", "photos", "--uninstall").stdout == f"removed {path}\n"
    assert (
        calls.read_text() == "--user disable boc-photos.service\n--user stop boc-photos.service\n"
    )
    assert not list(path.parent.iterdir())


def test_a_file_that_boc_did_not_make_stays(calls: Path, tmp_path: Path, library: Path) -> None:
    path = tmp_path / ".config/systemd/user/boc-photos.service"
    path.parent.mkdir(parents=True)
    path.write_text("[Unit]\n")
    for words in (["--install", f"--at=file:{library / 'index'}"], ["--uninstall"]):
        result = boc("serve", "photos", *words)
        assert result.exit_code == 1
        assert str(path) in result.stderr
        assert path.read_text() == "[Unit]\n"
    assert not calls.exists()


def test_what_could_not_be_served_is_not_installed(
    calls: Path,
    tmp_path: Path,
    library: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "no index 'photos'" in boc("serve", "photos", "--install").stderr
    at = f"--at=file:{library / 'index'}"
    for name in ("BOC_TOKEN", "BOC_PASSWORD", "BOC_HEADERS"):
        monkeypatch.setenv(name, "sesame")
        said = boc("serve", "photos", "--install", at).stderr
        assert f"{name} is set" in said
        assert "sesame" not in said
        monkeypatch.delenv(name)
    assert not calls.exists()
    assert not (tmp_path / ".config" / "systemd").exists()


def test_a_manager_that_fails_is_named(calls: Path, tmp_path: Path, library: Path) -> None:
    (tmp_path / "bin" / "systemctl").write_text("#!/bin/sh\necho no bus >&2; exit 1\n")
    at = f"--at=file:{library / 'index'}"
    said = boc("serve", "photos", "--install", at)
    assert (said.exit_code, said.stderr.count("\n")) == (1, 1)
    assert "systemctl --user reenable boc-photos.service failed (no bus)" in said.stderr
    said = boc("serve", "photos", "--uninstall")  # the file goes nevertheless
    assert "failed (no bus)" in said.stderr
    assert not list((tmp_path / ".config/systemd/user").iterdir())


def test_an_agent_of_launchd(calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    path = user_service.install("photos", ["/bin/boc", "serve", ODD], "default.target")
    assert path == tmp_path / "Library/LaunchAgents/boc.photos.plist"
    ElementTree.parse(path)
    facts = plistlib.loads(path.read_bytes())
    assert facts["ProgramArguments"] == ["/bin/boc", "serve", ODD]
    assert (facts["Label"], facts["WorkingDirectory"]) == ("boc.photos", str(tmp_path / ODD))
    assert user_service.uninstall("photos") == path
    assert calls.read_text() == f"unload {path}\nload {path}\nunload {path}\n"
    assert not path.exists()


def test_no_setting_installs() -> None:
    assert "install" not in settings.settable(serve.command)
