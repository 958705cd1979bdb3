"""What is printed names the real cause, and gives a terminal nothing to obey."""

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from boc.cli.options import plain
from boc.types import MODALITIES, Batch, Embeddings, Item
from tests.helpers import boc
from tests.oracles import random_units, write_features

ODD = "a\x1b[2J\x1b]0;title\x07\nb\r\x9b31m\u202egpj\u2028c"


@given(text=st.text())
def test_plain_text_is_printable(text: str):
    shown = plain(text)
    assert all(char.isprintable() or char in "\u200c\u200d" for char in shown)
    if text.isprintable():
        assert shown == text


def test_output_is_printable(tmp_path: Path):
    batches = []
    for seed, modality in enumerate(MODALITIES):
        batches.append(
            Batch(
                [Item(f"{ODD}{modality}{i}", modality, ODD) for i in range(5)],
                Embeddings(modality, random_units(seed, 5, 16)),
            ),
        )
    write_features(tmp_path / "f.h5", *batches, spec=f"own:{ODD}")
    at = f"--at=file:{tmp_path / 'at'}"
    assert boc("index", "x", tmp_path / "f.h5", at).exit_code == 0
    for command in (
        ("search", "x", "--queries", tmp_path / "f.h5", at),
        (
            "search",
            "x",
            "--queries",
            tmp_path / "f.h5",
            at,
            "--find",
            "text",
        ),
        ("search", "x", "--like", f"{ODD}image0", at),
        ("search", "x", "--like", f"{ODD}none", at),
        ("info", "x", at),
        ("verify", "x", at),
        ("delete", "x", f"{ODD}none", at),
        ("delete", "x", f"{ODD}image1", at),
    ):
        result = boc(*command)
        assert all(line.isprintable() for line in result.output.split("\n")), (
            command,
            result.output,
        )


def test_a_filter_that_excludes_all_is_named(library: Path, tmp_path: Path):
    at = f"--at=file:{tmp_path / 'at'}"
    (tmp_path / "years.csv").write_text(
        "id,year:integer\n" + "".join(f"{i:03d}.png,2020\n" for i in range(40)),
    )
    assert (
        boc(
            "index",
            "x",
            library / "photos.h5",
            at,
            "--metadata",
            tmp_path / "years.csv",
        ).exit_code
        == 0
    )
    search = ("search", "x", "--like", "000.png", at)
    assert "filter" in boc(*search, "--filter", "year=1900").stderr
    assert boc(*search, "--filter", "year=2020").stderr == ""


@pytest.mark.parametrize(
    "count",
    [1, 5, 40],
)
def test_too_few_pictures_to_train_on_are_refused(
    library: Path,
    tmp_path: Path,
    count: int,
):
    (tmp_path / "ids.txt").write_text("".join(f"{i:03d}.png\n" for i in range(count)))
    result = boc(
        "train",
        library / "captions.csv",
        "--ids",
        tmp_path / "ids.txt",
        "-o",
        tmp_path / "model",
    )
    assert result.exit_code == 1
    assert f"{count} pictures are too few" in result.stderr
    assert "--set held_out=" in result.stderr
    assert not (tmp_path / "model" / "training").exists()


def test_too_long_cell_is_refused(library: Path, tmp_path: Path):
    (tmp_path / "t.csv").write_text(f"image,caption\n000.png,{'long ' * 30_000}\n")
    told = boc(
        "extract",
        tmp_path / "t.csv",
        "-o",
        tmp_path / "f.h5",
        "--regions",
        "grid",
    ).stderr
    assert "more than 131,072 characters" in told
    assert "UTF-8" not in told
    (tmp_path / "m.csv").write_text(f"id,tag\n000.png,{'x' * 40_000}\n")
    told = boc(
        "index",
        "x",
        library / "photos.h5",
        "--metadata",
        tmp_path / "m.csv",
        f"--at=file:{tmp_path}",
    ).stderr
    assert "line 2" in told
    assert len(told) < 500
