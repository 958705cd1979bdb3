"""Benchmarks that need more than random data run on the tiny library, and print what they promise."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import boc

BENCH = Path(__file__).resolve().parent.parent / "bench"


def run(script: str, *arguments: object) -> str:
    command = [sys.executable, BENCH / script, *arguments]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_table_one_has_the_rows_of_the_paper_and_a_verdict_for_each_ordering(library: Path, tmp_path: Path) -> None:
    pytest.importorskip("spellchecker")
    alone, plain = tmp_path / "alone.h5", library / "photos.h5"
    encoder = f"tern:{library / 'model'}?alone"
    assert boc("extract", library / "captions.csv", "-o", alone, "--encoder", encoder).exit_code == 0
    table = tmp_path / "rows.csv"
    options = ("--alone-train", alone, "--alone-dev", alone, "--clusters", 9, "--csv", table)
    told = run("table1.py", plain, "--fit", plain, *options)
    rows = list(csv.DictReader(table.read_text(encoding="utf-8").splitlines()))
    assert [row["model"] for row in rows][:13] == [
        "TERN", "Deep Permutation", "Scalar Quantization",
        "No context", "With context", "No cont., no stop-words", "With cont., no stop-words",
        "No cont., no stop-words (inference)", "English dict.",
        "MAX-aggr No-cont.", "SUM-aggr No-cont.", "MAX-aggr W-cont.", "SUM-aggr W-cont.",
    ]  # fmt: skip
    dense = boc("evaluate", plain).stdout
    assert f"R@10 {float(rows[0]['image R@10']):5.1f}" in dense.splitlines()[1]
    assert sum(line.startswith(("- held", "- NOT held")) for line in told.splitlines()) == 15
    assert told.count("% of the variance of concepts within items") == 4


def test_labels_are_judged_for_every_kind(library: Path) -> None:
    plain = library / "photos.h5"
    rows = list(csv.DictReader(run("labels.py", plain, plain, "--clusters", 4, "--pictures", 3).splitlines()))
    assert [row["labels"] for row in rows] == ["scalar", "dictionary", "concepts", "codebook"]
    assert all(0 <= float(row["hits"]) <= 1 for row in rows if int(row["with words"]))


def test_recall_and_postings_of_the_codes_over_concepts(library: Path, tmp_path: Path) -> None:
    book = tmp_path / "book.npz"
    assert boc("build-codebook", library / "photos.h5", "-o", book, "--clusters", 9).exit_code == 0
    told = run("recall_postings.py", library / "photos.h5", "--only", "none", "--codebook", book)
    rows = list(csv.DictReader(told.splitlines()))
    assert {row["code"] for row in rows} == {"hard", "soft", "mixed"}
    everything = [row for row in rows if row["setting"] == "all of 9"]
    assert everything
    assert all(float(row["recall"]) == 1 for row in everything)  # 40 pictures, all of them re-ranked


def test_alignment_over_an_index_has_a_row_for_each_metric(library: Path) -> None:
    plain = library / "photos.h5"
    told = run("alignment_rerank.py", plain, "--fit", plain, "--rm", 1, "--rm", 4, "--timed", 2)
    rows = list(csv.DictReader(told.splitlines()))
    assert len(rows) == 2 * 2 * (6 + 5)
    everything = next(r for r in rows if (r["metric"], r["Rm"], r["direction"]) == ("dot", "4", "text to image"))
    assert f"R@10 {float(everything['R@10']):5.1f}" in boc("evaluate", plain).stdout.splitlines()[1]


def test_the_table_of_encoders_agrees_with_the_command(library: Path) -> None:
    plain = library / "photos.h5"
    told = run("encoders_table.py", f"one={plain}", f"two={plain}+{plain}", f"words={plain},mrsw").splitlines()
    assert [line.split(" | ")[0] for line in told[2:]] == ["| one, dot", "| two, dot", "| words, mrsw"]
    assert told[2].split(" | ")[1:] == told[3].split(" | ")[1:]
