"""What Tab offers, asked as shells ask: by click's protocol, and by a real bash with the script that is printed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import get_completion_class

from boc.cli import main, settings
from boc.codecs import CODES
from boc.models import CATALOGUE
from tests.helpers import boc

ROOT = Path(__file__).resolve().parents[3]
BASH = """
source "$1"
COMP_LINE="$2"
COMP_POINT=${#COMP_LINE}
COMP_WORDBREAKS=$' \\t\\n"\\'><=;|&(:'
COMP_WORDS=($COMP_LINE)
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
compopt() { :; }
_boc_completion boc
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with two places of indexes, and a user without settings."""
    for name in os.environ:
        if name.startswith(("BOC_", "COMP_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))
    for index in ("boc-data/photos", "boc-data/places", "boc-data/videos", "other/scenes"):
        (tmp_path / index).mkdir(parents=True)
        (tmp_path / index / "CURRENT").write_text("commit-0.json")
    (tmp_path / "boc-data" / "photos-unfinished").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def asked(line: str, shell: str = "bash") -> dict[str, str]:
    """What the script of a shell puts into the environment when Tab is pressed at the end of a line."""
    words = line.split(" ")
    if shell == "fish":
        return {"COMP_WORDS": line, "COMP_CWORD": words[-1]}
    return {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}


def parsed(answer: str, shell: str) -> list[str]:
    """The words of an answer that are no hint to look for files."""
    lines = answer.splitlines()
    if shell == "zsh":
        return [value for kind, value in zip(lines[::3], lines[1::3], strict=True) if kind == "plain"]
    return [line.split(",", 1)[1].split("\t")[0] for line in lines if line.startswith("plain,")]


def offered(line: str, shell: str = "bash", **environment: str) -> list[str]:
    """The answers to Tab at the end of a line."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**asked(line, shell), **environment}.items():
            patch.setenv(name, value)
        found = get_completion_class(shell)
        assert found is not None
        return parsed(found(main, {}, "boc", "_BOC_COMPLETE").complete(), shell)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_commands_are_offered(shell: str) -> None:
    assert set(offered("boc ", shell)) == set(main.commands)
    assert set(offered("boc se", shell)) == {name for name in main.commands if name.startswith("se")}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_command_that_takes_a_name_is_offered_those_there_are(shell: str) -> None:
    commands = [name for name, command in main.commands.items() if [p.name for p in command.params][:1] == ["name"]]
    assert len(commands) > 8
    for command in commands:
        assert offered(f"boc {command} p", shell) == ["photos", "places"], command


def test_names_are_those_of_the_place_that_is_set(home: Path) -> None:
    assert offered("boc search ") == ["photos", "places", "videos"]
    assert offered("boc search --at file:other ") == ["scenes"]
    assert offered("boc search ", BOC_AT="file:other") == ["scenes"]
    assert offered("boc evaluate x.h5 --at file:other --name ") == ["scenes"]
    (home / "boc.toml").write_text('at = "file:other"')
    assert offered("boc search ") == ["scenes"]
    assert offered("boc search --at file:boc-data v") == ["videos"]


@pytest.mark.parametrize(
    "at", ["file:none", "file:", "file:boc-data/photos/CURRENT", "elastic+http://localhost:1", "x", "file:~nobody/x",
           "file:\x01", "file:" + "long" * 2000],
)  # fmt: skip
def test_other_places_offer_nothing_and_raise_nothing(at: str) -> None:
    assert offered("boc search ", BOC_AT=at) == []


def test_a_wrong_file_of_settings_is_no_obstacle(home: Path) -> None:
    (home / "boc.toml").write_text("wrong")
    assert offered("boc search p") == ["photos", "places"]


def test_addresses_are_offered_by_scheme_and_by_folder(home: Path) -> None:
    assert offered("boc search --at ") == [
        "file:", "elastic+https://", "elastic+http://", "opensearch+https://", "opensearch+http://",
    ]  # fmt: skip
    assert offered("boc search --at ela") == ["elastic+https://", "elastic+http://"]
    assert offered("boc doctor --at o") == ["opensearch+https://", "opensearch+http://"]
    assert offered("boc search --at file:") == ["file:boc-data/", "file:other/"]
    assert offered(f"boc search --at file:{home}/o") == [f"file:{home}/other/"]
    assert offered("boc search --at file:none/") == []


def test_kinds_of_encoders_and_regions_are_those_that_there_are() -> None:
    kinds = {path.stem for path in (ROOT / "encoders").glob("*.py") if not path.name.startswith("_")}
    assert {kind.rstrip(":") for kind in offered("boc extract x --encoder ")} == kinds | set(CATALOGUE)
    assert {"tern", "clip"} <= kinds
    assert offered("boc model get c") == ["clip"]
    assert offered("boc search x --encoder tern:o") == ["tern:other/"]
    assert "grid" in offered("boc train x --regions ")
    assert "tsv:" in offered("boc extract x --regions t")


def test_choices_and_options_are_offered() -> None:
    assert offered("boc search x --find ") == ["image", "text"]
    assert offered("boc index x y --code ") == list(CODES)
    assert offered("boc index x y --code s") == ["scalar", "soft"]
    assert offered("boc completion ") == ["bash", "zsh", "fish"]
    for name, command in main.commands.items():
        assert {f"--{option}" for option, _ in settings.options(command) if len(option) > 1} <= set(
            offered(f"boc {name} --")
        )


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_answered_and_nothing_heavy_is_loaded(shell: str) -> None:
    code = "from boc.cli import main; main(prog_name='boc')"
    called = [sys.executable, "-X", "importtime", "-c", code]
    given = {**asked("boc search p", shell), "_BOC_COMPLETE": f"{shell}_complete", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(called, capture_output=True, text=True, check=True, env={**os.environ, **given})
    assert parsed(done.stdout, shell) == ["photos", "places"]
    loaded = {line.rpartition("|")[2].strip().split(".")[0] for line in done.stderr.splitlines()}
    assert {"boc", "click"} <= loaded
    assert loaded.isdisjoint({"numpy", "torch", "h5py", "indexing", "encoders", "tomllib"})


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_printed_and_the_help_says_where_it_goes(shell: str) -> None:
    script = boc("completion", shell).stdout
    assert f"_BOC_COMPLETE={shell}_complete" in script
    assert "_boc_completion" in script
    told = boc("completion", "--help").stdout
    assert f"boc completion {shell}" in told
    place = {"bash": "~/.bashrc", "zsh": "~/.zshrc", "fish": "~/.config/fish/config.fish"}[shell]
    assert place in told


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("line", "answers"),
    [
        ("boc sea", ["search"]),
        ("boc search p", ["photos", "places"]),
        ("boc search --at file:other s", ["scenes"]),
        ("boc search --at=file:other s", ["scenes"]),
        ("boc search --at ela", ["elastic+https://", "elastic+http://"]),
        ("boc search --at file:o", ["other/"]),  # bash keeps what stands before the colon
        ("boc search --at=file:o", ["other/"]),
        ("boc extract x --encoder ter", ["teran:", "tern:"]),
        ("boc search photos --find i", ["image"]),
        ('boc search photos "a: b" --fin', ["--find"]),
        ("boc search nothing-like-this", [""]),
    ],
)
def test_bash_itself_is_offered_the_right_words(home: Path, line: str, answers: list[str]) -> None:
    (home / "bin").mkdir()
    starter = home / "bin" / "boc"
    starter.write_text(f"#!{sys.executable}\nfrom boc.cli import main\nmain(prog_name='boc')\n")
    starter.chmod(0o755)
    (home / "script").write_text(boc("completion", "bash").stdout.replace("complete -o nosort", ": complete"))
    path = f"{home / 'bin'}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "--norc", "-c", BASH, "bash", "./script", line],
        capture_output=True, text=True, check=True, env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.stdout.splitlines() == answers
