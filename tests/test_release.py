"""What is released: the modules in C keep to Python's stable interface, and the version is in one
place."""

import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import boc

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted([*ROOT.glob("boc/**/*.c"), *ROOT.glob("indexing/**/*.c")])


def test_the_version_is_in_one_place_and_the_changelog_begins_with_it():
    assert f"version = {boc.__version__}" not in (ROOT / "setup.cfg").read_text()
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (\S+)", changes, re.M)[0] == boc.__version__


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_a_module_compiles_against_the_stable_interface(source: Path):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.version_info < (3, 11):
        pytest.skip("needs a compiler, and Python 3.11")
    include = sysconfig.get_path("include")
    options = [
        "-DPy_LIMITED_API=0x030B0000",
        "-Werror=implicit-function-declaration",
        "-fsyntax-only",
    ]
    done = subprocess.run(
        [compiler, *options, "-I", include, source],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_smoke_test_of_wheels_runs_from_the_source():
    done = subprocess.run(
        [sys.executable, ".ci/smoke.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if "No module named 'boc.clustering._nearest'" in done.stderr:
        pytest.skip("no modules in C here")
    assert done.returncode == 0, done.stderr
    assert "0 wrong" in done.stdout
