"""What the command line tells of itself: sections, examples, versions, and what may be meant by a
typing error."""

import inspect
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from hypothesis import given, strategies as st

from boc import __version__
from boc.cli import SECTIONS, main
from boc.codecs import ARGUMENTS, CODES
from tests.helpers import boc, parse

ROOT = Path(__file__).resolve().parents[3]
ONE_WAY = {"convert", "doctor"}
"""Commands that there is one way to call."""


def examples(name: str) -> list[str]:
    """The lines of the block of examples of a command, at the end of its help."""
    text = inspect.cleandoc(main.commands[name].help or "").replace(
        "\x08\n",
        "\b\n",
    )
    first, *others = text.rpartition("\b\n")[2].splitlines()
    start = re.match(r"Examples?: ", first)
    assert start, f"{name}: the help does not end with Examples"
    for line in others:
        assert line[: start.end()].isspace(), f"{name}: {line!r} is not below the first example"
    return [line[start.end() :] for line in (first, *others)]


@pytest.mark.parametrize("name", sorted(main.commands))
def test_help_ends_with_examples_that_parse(name: str, monkeypatch):
    lines = examples(name)
    assert len(lines) >= (1 if name in ONE_WAY else 2)
    assert len(set(lines)) == len(lines)
    shown = boc(name, "--help").stdout
    for line in lines:
        assert line in shown
        variables, program, called = re.match(
            r"((?:[A-Z_]+=(?:\$\([^)]*\)|\S+) )*)(\S+) (.*)",
            line,
        ).groups()
        assert program == "boc", line
        first, *arguments = shlex.split(called)
        assert first == name
        context = parse(name, arguments)
        assert not context.args
        for variable in re.findall(r"([A-Z_]+)=", variables):
            assert variable.startswith("BOC_")


@pytest.mark.parametrize("name", sorted(main.commands))
def test_every_option_says_what_it_is(name: str):
    for parameter in main.commands[name].params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"boc {name} {parameter.opts[-1]}"
            assert parameter.help.endswith((".", "]")), (
                f"boc {name} {parameter.opts[-1]}: {parameter.help}"
            )


@pytest.mark.parametrize("name", ["index", "attach"])
def test_codes_are_listed_with_their_arguments(name: str):
    shown = boc(name, "--help").stdout.partition("Codes and their arguments:")[2]
    assert max(map(len, shown.splitlines())) < 80
    for code, kind in CODES.items():
        entry = re.search(rf"^    {code} +(.+(?:\n {{17}}.+)*)", shown, re.MULTILINE)
        assert entry, code
        about, _, arguments = " ".join(entry[1].split()).partition(": ")
        assert about == kind.about
        assert arguments.split(", ") == list(kind.rules)
    for argument in ARGUMENTS:
        assert re.search(
            rf"^    {argument} +\S",
            shown.partition("Arguments")[2],
            re.MULTILINE,
        ), argument


def test_every_command_stands_in_one_section():
    listed = [module.command.name for modules in SECTIONS.values() for module in modules]
    assert sorted(listed) == sorted(main.commands)
    shown = boc("--help").stdout
    places = [shown.index(f"\n{title}:") for title in SECTIONS]
    assert places == sorted(places)
    for name in main.commands:
        [line] = re.findall(rf"^  {name}  +(.+)$", shown, re.MULTILINE)
        assert len(line) > 10
        assert line.endswith(".")
        assert not line.endswith("...")


def test_no_arguments_show_the_commands():
    result = boc()
    for title in SECTIONS:
        assert f"\n{title}:" in result.output


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("searhc", "search"),
        ("Search", "search"),
        ("code", "build-codebook"),
    ],
)
def test_command_suggestions(typed: str, meant: str):
    result = boc(typed)
    assert result.exit_code == 2
    assert f"Did you mean {meant}?" in result.stderr


@pytest.mark.slow
@given(
    typed=st.text(
        st.characters(
            codec="utf-8",
            exclude_categories=["Cc", "Cs"],
        ),
        min_size=1,
        max_size=15,
    ),
)
def test_whatever_is_typed_is_told_in_words(typed: str):
    if typed in main.commands or typed.startswith("-"):
        return
    result = boc("", typed)
    assert result.exit_code == 2
    assert f"No such command {typed!r}. " in result.stderr
    assert result.stderr.rstrip().endswith(("?", "boc --help lists all commands."))


def test_the_version_is_shown():
    assert boc("--version").stdout == f"boc, version {__version__}\n"


@pytest.mark.slow
def test_completion_loads_nothing_heavy_and_no_settings(here: Path):
    (here / "boc.toml").write_text("wrong")
    words = {
        "COMP_WORDS": "boc\nsearch\nx\n--find\n",
        "COMP_CWORD": "4",
        "_BOC_COMPLETE": "bash_complete",
        "PYTHONPATH": str(ROOT),
    }
    code = "import sys, atexit; atexit.register(lambda: print(*sys.modules)); "
    code += "from boc.cli import main; main(prog_name='boc')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | words,
    )
    assert done.stdout.startswith("plain,image\nplain,text\n")
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert {"boc", "click"} <= loaded
    assert loaded.isdisjoint({"numpy", "torch", "h5py", "indexing", "encoders"})
