"""Runs the scripts of ``bench/`` by their file names, which are distinct, as modules and from the
root."""

import csv
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODULES = {
    path.name: ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in (ROOT / "bench").rglob("*.py")
    if path.name != "__init__.py"
}


def run_script(script: str, arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script as a process, with arguments as in a shell; return its output and exit
    status."""
    command = [
        sys.executable,
        "-m",
        MODULES[script],
        *shlex.split(arguments),
    ]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )


def run_rows(script: str, arguments: str) -> list[dict[str, str]]:
    """Return the rows that a script prints, by column; it prints them to their end."""
    process = run_script(script, arguments)
    assert process.returncode == 0, process.stderr
    assert process.stdout.startswith(f"# script: {script}\n")
    return read_rows(process.stdout)


def read_rows(text: str) -> list[dict[str, str]]:
    """Return complete rows by column."""
    lines = text.splitlines()
    assert lines[-1].startswith("# done: ")
    return list(csv.DictReader(line for line in lines if not line.startswith("# ")))
