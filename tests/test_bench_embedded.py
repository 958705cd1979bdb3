"""The comparison of the embedded engine with other libraries, and its growth, run on tiny random data."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parent.parent / "bench"
DRAWN = ("--dim", "16", "--asked", "20", "--rounds", "2", "--threads", "1")


def run(script: str, *arguments: object) -> tuple[list[dict[str, str]], list[str]]:
    """The rows that a script prints, and its remarks."""
    command = [sys.executable, BENCH / script, *arguments, *DRAWN]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    return rows, [line for line in lines if line.startswith("#")]


@pytest.mark.slow
def test_ours_and_others_find_the_exact_top_ten_and_are_compared(tmp_path: Path) -> None:
    names = ("boc bits:16", "scipy bits:16", "hnsw32")
    chosen = [part for name in names for part in ("--index", name)]
    rows, remarks = run("embedded.py", "--synthetic", 400, "--work", tmp_path, "--starts", 1, *chosen)
    assert {row["index"] for row in rows} == set(names)
    for name in names:
        best = max((row for row in rows if row["index"] == name), key=lambda row: float(row["validation"]))
        assert float(best["recall"]) > 0.9, best
        assert float(best["p50_least"]) <= float(best["p50_ms"]) <= float(best["p95_most"])
    compared = [line for line in remarks if " at 0.95: " in line]
    assert sorted(line.split(" / ")[1].split(" (")[0] for line in compared) == sorted(names[1:])
    assert sum(line.startswith("# kernel: boc bits:16") for line in remarks) == 1
    assert sum(line.startswith("# cold start: ") for line in remarks) == 1
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("built.json")}
    run("embedded.py", "--synthetic", 400, "--work", tmp_path, "--prepare", *chosen)
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("built.json")}
    assert len(before) == len(names) + 1  # and the code


@pytest.mark.slow
def test_growth_holds_the_recall_and_fits_exponents(tmp_path: Path) -> None:
    sizes = [part for n in (200, 800) for part in ("--n", n)]
    rows, remarks = run("embedded_growth.py", "--work", tmp_path, "--recall", 0.9, *sizes)
    assert [row["n"] for row in rows] == ["200", "800"]
    assert all(float(row["validation"]) >= 0.9 for row in rows)
    grows = {line.split()[1]: float(line.split("n^")[1].split()[0]) for line in remarks if " grows as " in line}
    assert 0.2 < grows["disk_mb"] < 1.2
