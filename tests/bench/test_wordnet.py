"""Synonyms by a folder of WordNet."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from bench.datasets.wordnet import PARTS, Synonyms

LINES = {
    "noun": """  1 a line of the licence
00000100 05 n 02 dog 0 domestic_dog 0 000 | an animal
00000200 18 n 03 child 0 kid 0 youngster 0 000 | a young person
00000300 05 n 02 kid 1 yearling 0 000 | a young goat
00000400 06 n 01 snow 0 000 | what falls
""",
    "verb": "00000100 38 v 02 run 0 race 0 000 01 + 02 00 | go fast\n00000200 38 v 01 ride 0 000 | sit on\n",
    "adj": "00000100 00 a 02 big 0 large(p) 0 000 | above average\n",
    "adv": "",
}


def folder_of(lines: dict[str, str], folder: Path) -> Path:
    for part in PARTS:
        (folder / f"data.{part}").write_text(lines[part], encoding="ascii")
    return folder


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("dogs", "dog", True), ("children", "kid", True), ("kids", "yearling", True), ("running", "races", True),
        ("riding", "rides", True), ("bigger", "large", True), ("dog's", "dog", True), ("unknown", "unknown", True),
        ("yearling", "child", False), ("dog", "snow", False), ("snowing", "snow", False), ("is", "i", False),
    ],
)  # fmt: skip
def test_words_are_the_same_by_their_base_forms_and_sets(tmp_path: Path, one: str, other: str, same: bool) -> None:
    synonyms = Synonyms(folder_of(LINES, tmp_path))
    assert bool(synonyms.meanings(one) & synonyms.meanings(other)) == same


def test_irregular_forms_are_read_where_they_are_listed(tmp_path: Path) -> None:
    assert not Synonyms(folder_of(LINES, tmp_path)).meanings("ran") & {"run"}
    (tmp_path / "verb.exc").write_text("ran run\n", encoding="ascii")
    assert "run" in Synonyms(tmp_path).meanings("ran")


def test_a_folder_without_wordnet_is_refused(tmp_path: Path) -> None:
    with pytest.raises(click.UsageError, match="give the folder dict of WordNet"):
        Synonyms(tmp_path)
