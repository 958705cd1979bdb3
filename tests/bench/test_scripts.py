"""Every script of bench/ that is not tested elsewhere runs on tiny data, and prints rows to their
end."""

import json
from pathlib import Path

import pytest

from tests.bench.scripts import run_rows
from tests.helpers import boc

pytestmark = pytest.mark.slow


def test_growth(tmp_path: Path):
    rows = run_rows(
        "growth.py",
        f"--work {tmp_path} --n 100 --n 200 --dim 8 --queries 5 --rounds 1",
    )
    assert [row["n"] for row in rows] == ["100", "200"]
    assert all(any(row.values()) for row in rows)
    assert not any(row["server_ms"] or row["index"] for row in rows)


def test_all_codes(library: Path, tmp_path: Path):
    plain = library / "photos.h5"
    book = tmp_path / "book.npz"
    assert (
        boc(
            f"build-codebook {plain} -o {book} --clusters 9",
        ).exit_code
        == 0
    )
    codes = (
        "dictionary:2/8",
        "scalar:16/32",
        "late(terms=9)",
        f"hard(codebook={book})",
    )
    options = " ".join(f"--code '{code}'" for code in codes)
    rows = run_rows("all_codes.py", f"{plain} --fit {plain} {options}")
    assert len(rows) == len(codes)
    dense = next(iter(json.loads(boc(f"evaluate {plain} --json").stdout).values()))["text_to_image"]
    assert float(rows[1]["recall@100"]) == 1  # of 40 pictures
    assert float(rows[1]["R@10"]) == pytest.approx(dense["r10"], abs=0.01)
    for row in rows:
        assert 0 < float(row["R@10 code"]) <= 100
        assert float(row["postings"]) <= 40 * 64


def test_vsrnpp_tables(library: Path, tmp_path: Path):
    for name in ("train", "test"):
        numbers = range(30) if name == "train" else range(30, 40)
        (tmp_path / name).write_text("\n".join(f"{number:03d}.png" for number in numbers))
    small = "width=8 text=words epochs=1 batch_size=8 held_out=8 generation_hidden=8"
    sets = " ".join(f"--set {setting}" for setting in small.split())
    rows = run_rows(
        "vsrnpp_tables.py",
        f"{library}/regions.h5 --train {tmp_path}/train --test {tmp_path}/test "
        f"--out {tmp_path}/out --line 'visual GSR' {sets}",
    )
    assert [row["line"] for row in rows] == ["visual GSR"] * 6
    vectors = tmp_path / "out" / "vsrn-reasoning_layers=0.h5"
    text = boc(f"evaluate {vectors} --json").stdout
    recalls = next(iter(json.loads(text).values()))["text_to_image"]
    assert [float(row["found"]) for row in rows[:3]] == [
        round(recalls[name], 1) for name in ("r1", "r5", "r10")
    ]
