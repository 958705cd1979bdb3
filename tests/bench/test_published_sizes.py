"""The commands of the published sizes run on tiny ones."""

from __future__ import annotations

import csv
from pathlib import Path

import click
import pytest

from bench.paper.published_sizes import Sizes, run

TINY = Sizes(
    pictures=12,
    fold=5,
    width=8,
    clusters=4,
    settings=tuple(f"{name}=8" for name in ("visual_width", "joint_width", "feedforward"))
    + tuple(f"{name}_layers=1" for name in ("visual", "joint", "text")),
    batch=4,
    layers=1,
    hidden=12,
)


@pytest.mark.slow
def test_each_row_is_a_command_over_drawn_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("evaluation", "codebook", "index-hard", "step")
    run(tmp_path, names, TINY)
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("# done: ")
    rows = list(csv.DictReader(line for line in lines if not line.startswith("# ")))
    assert tuple(row["task"] for row in rows) == names
    assert all(float(row["processor seconds"]) > 0 for row in rows)
    assert all(0.01 < float(row["GB"]) < 8 for row in rows)
    assert "mean over folds of 5 pictures" in (tmp_path / "evaluation.log").read_text()
    assert (tmp_path / "step" / "history.json").is_file()


@pytest.mark.slow
def test_a_failed_command_is_named_with_its_last_line(tmp_path: Path) -> None:
    (tmp_path / "5k.h5").write_text("no features")
    with pytest.raises(click.ClickException, match=r"^evaluate .*5k.h5: Error: .*evaluation.log"):
        run(tmp_path, ("evaluation",), TINY)


def test_a_task_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(click.UsageError, match="no task 'all'; known: evaluation, alignment-1k"):
        run(tmp_path, ("all",), TINY)
