"""Names, captions and queries in any script, Unicode form and code page mean the same text."""

import json
from pathlib import Path
from unicodedata import normalize

import pytest
from click.testing import CliRunner
from hypothesis import given, strategies as st

from boc.cli import main
from boc.paths import forms, nfc, words_of
from tests.boc.manage.collections_of_files import CODE, Counting
from tests.helpers import boc, run

NAME = "Málaga/Müller.png"
ODD = "Málaga/हिन्दी 猫😀.png"


@pytest.fixture
def at(tmp_path: Path, monkeypatch) -> str:
    """An index of pictures whose names are in NFD on disk, with captions and a table in NFC."""
    Counting.installed(monkeypatch)
    for name in ("plain.png", NAME, ODD):
        path = tmp_path / "pictures" / normalize("NFD", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (tmp_path / "table.csv").write_text(f"id,tag\n{NAME},grün\n", encoding="utf-8")
    (tmp_path / "captions.csv").write_text(f"image,caption\n{NAME},größe\n", encoding="utf-8")
    place = f"--at=file:{tmp_path / 'at'}"
    made = (tmp_path / "pictures", "--encoder=test:counting", f"--code={CODE}", place)
    run("index", "x", *made, f"--metadata={tmp_path / 'table.csv'}")
    run(
        "index",
        "captions",
        tmp_path / "captions.csv",
        f"--images={tmp_path / 'pictures'}",
        *made[1:],
    )
    return place


def found(*arguments: object) -> list[str]:
    hits = json.loads(run("search", "x", "--json", *arguments).stdout)["hits"]
    return [normalize("NFC", hit["id"]) for hit in hits]


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_forms_of_text_are_one(at: str, form: str):
    def typed(text):
        return normalize(form, text)

    assert set(
        found(
            "a",
            "--filter",
            typed("folder=Málaga"),
            at,
        ),
    ) == {NAME, ODD}
    assert found(
        "a",
        "--filter",
        typed("tag=grün"),
        at,
    ) == [NAME]
    assert set(found("--like", typed(NAME), at)) == {"plain.png", ODD}
    assert found("--hybrid=words", typed("Müller"), at) == [NAME]
    assert found(typed("größe"), at) == found(normalize("NFC", "größe"), at)
    assert (
        run(
            "search",
            "captions",
            typed("größe"),
            "--find=text",
            at,
        ).stdout.split()[1]
        == "1.0000"
    )
    run("explain", "x", "a", typed(NAME), at)
    assert (
        run(
            "delete",
            "x",
            typed(NAME),
            typed(ODD),
            at,
        ).stdout
        == "x: 2 items deleted\n"
    )


@given(st.text())
def test_forms_of_a_path(path: str):
    there = list(forms(path))
    assert there[0] == path
    assert {nfc(each) for each in there} == {nfc(path)}
    assert nfc(path) in there


def test_words_keep_their_marks():
    assert words_of("हिन्दी_IMG-12 (ไทย).x") == "हिन्दी IMG 12 ไทย x"


NAMES = {
    "IMG_1234.png": ["IMG_1234", "IMG_1234.png", "img_1234.PNG"],
    "100_2550.png": ["100_2550"],
    "don't panic.png": ["don't", "don\u2019t", "DON'T PANIC"],
    "2024.05.01 Straße.png": ["2024.05.01", "strasse", "STRASSE"],
    "İstanbul Café.png": ["istanbul", "cafe", "CAFÉ"],
    "می\u200cروم.png": ["می\u200cروم"],
}


def test_a_name_as_it_stands_finds_its_file(
    tmp_path: Path,
    monkeypatch,
):
    Counting.installed(monkeypatch)
    (tmp_path / "pictures").mkdir()
    for name in NAMES:
        (tmp_path / "pictures" / name).write_text(name)
    at = f"--at=file:{tmp_path / 'at'}"
    run("index", "x", tmp_path / "pictures", "--encoder=test:counting", f"--code={CODE}", at)
    for name, typed in NAMES.items():
        for each in typed:
            assert found("--hybrid=words", each, at) == [name]
            assert name in found("--hybrid=rrf", "-k2", each, at)


@pytest.mark.parametrize(
    "charset",
    ["latin-1", "cp437", "utf-8"],
)
def test_no_code_page_loses_a_hit(at: str, charset: str):
    for more in ([], ["--json"]):
        result = CliRunner(charset=charset).invoke(
            main,
            ["search", "x", "a", at, *more],
        )
        assert result.exit_code == 0
        assert result.stdout_bytes.count(b".png\n") == 3 or more
    hits = json.loads(result.stdout_bytes.decode(charset))["hits"]
    assert {nfc(hit["id"]) for hit in hits} == {"plain.png", NAME, ODD}


def test_a_query_may_begin_with_a_minus(at: str):
    wanted = found("a red kite -snow", at)
    assert found("-snow a red kite", at) == found(at, "--", "-snow a red kite") == wanted
    assert found("-5 degrees", "-k2", at) == found(at, "--", "-5 degrees")[:2]
    assert found("-k", 1, "-kite flies", at) == found(at, "--", "-kite flies")[:1]
    assert found("--like", "plain.png", "-snow", at)
    for wrong in ("--colapse", "--filtr=x"):
        assert "No such option" in boc("search", "x", "a", wrong, at).stderr
