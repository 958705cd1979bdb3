"""The files of ``deploy/`` name commands, options, variables and files that exist."""

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.helpers import parse

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
UNIT, CONTAINER, COMPOSE = (
    (DEPLOY / name).read_text() for name in ("boc.service", "Containerfile", "compose.yaml")
)


def commands() -> list[list[str]]:
    """The arguments of boc in the files."""
    (start,) = re.findall(r"^ExecStart=\S+/boc (.*)$", UNIT, re.M)
    (default,) = re.findall(r"^CMD (\[.*\])$", CONTAINER, re.M)
    (composed,) = re.findall(r"^ +command: \[(.*)\]$", COMPOSE, re.M)
    return [
        shlex.split(start),
        json.loads(default),
        [word.strip().strip('"') for word in composed.split(",")],
        *(line.split() for line in re.findall(r"run --rm boc (.*)$", COMPOSE, re.M)),
    ]


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_commands_parse(words: list[str]):
    assert not parse(words[0], words[1:]).args


def test_variables_are_those_that_boc_reads():
    named = set(re.findall(r"\bBOC_\w+", UNIT + CONTAINER + COMPOSE))
    pages = "".join(path.read_text() for path in (ROOT / "docs").rglob("*.md"))
    assert {"BOC_AT", "BOC_TOKEN", "BOC_MODELS", "BOC_PASSWORD"} <= named
    assert {name for name in named if name not in pages} == set()


def test_what_the_container_is_built_of_is_sent_to_the_builder():
    sent = {
        line[1:]
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    needed = {
        "boc",
        "encoders",
        "indexing",
        "setup.py",
        "setup.cfg",
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "deploy/constraints.txt",
    }
    assert sent == needed
    assert all((ROOT / name).exists() for name in sent)
