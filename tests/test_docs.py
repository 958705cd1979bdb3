"""What the documents say is so: commands, options and targets exist, links lead somewhere, snippets run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
import shlex
from pathlib import Path

import pytest

import boc
from boc.cli import main

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
TEXTS = [page.read_text(encoding="utf-8") for page in PAGES]
SHELL = [line for text in TEXTS for block in re.findall(r"```sh\n(.*?)```", text, re.S) for line in block.splitlines()]


def test_every_command_is_in_the_table_and_no_other() -> None:
    named = set(re.findall(r"^\| `boc ([\w-]+)", README, re.M))
    assert named == set(main.commands)


@pytest.mark.parametrize("line", [line for line in SHELL if line.startswith("boc ")])
def test_shell_lines_parse(line: str) -> None:
    _, name, *arguments = shlex.split(line, comments=True)
    context = main.commands[name].make_context(name, arguments)
    assert not context.args


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    for text in (README, (ROOT / ".ci" / "run").read_text(encoding="utf-8")):
        for words in re.findall(r"(?:^|`)make ([\w =/.-]+)", text, re.M):
            assert {word for word in words.split() if "=" not in word} <= targets


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        assert target.startswith("http") or (page.parent / target).exists(), target


def test_python_snippets_run(library: Path, capsys: pytest.CaptureFixture[str]) -> None:
    snippets = re.findall(r"```python\n(.*?)```", README, re.S)
    assert len(snippets) == 2
    first = snippets[0].replace('"scenes"', '"photos"').replace("file:demo/index", f"file:{library / 'index'}")
    exec(first, {})
    assert len(capsys.readouterr().out.splitlines()) == 3
    exec(snippets[1], {})
    assert capsys.readouterr().out.strip() in snippets[1]


def test_docstring_examples_run() -> None:
    names = [m.name for m in pkgutil.walk_packages(boc.__path__, "boc.")]
    results = [doctest.testmod(importlib.import_module(name)) for name in names]
    assert sum(r.attempted for r in results) >= 5
    assert sum(r.failed for r in results) == 0
