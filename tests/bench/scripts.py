"""Runs the scripts of ``bench/`` by their file names, which are distinct, as modules and from the root."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODULES = {
    path.name: ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in (ROOT / "bench").rglob("*.py")
    if path.name != "__init__.py"
}


def run_script(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """What the script printed, and its exit status."""
    command = [sys.executable, "-m", MODULES[script], *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
