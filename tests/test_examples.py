"""The examples run as their docstrings say, and find what is there to be found."""

from __future__ import annotations

import re
import runpy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"

Run = Callable[..., list[str]]


@pytest.fixture
def run(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs an example as a program, in a folder with photos.h5 and the index ``photos``; the lines it prints."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(library / "index", "boc-data")
    shutil.copy(library / "photos.h5", "photos.h5")

    def start(name: str, *arguments: object) -> list[str]:
        monkeypatch.setattr("sys.argv", [f"{name}.py", *map(str, arguments)])
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    return start


@pytest.mark.slow
def test_a_folder_is_encoded_once_and_searched(run: Run, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = (library / "images", f"tern:{library / 'model'}", "a red box at the left")
    first = run("search_folder", *arguments)
    assert len(first) == 5
    assert all(Path(line.split()[1]).parent == library / "images" for line in first)
    monkeypatch.setattr("boc.inputs.extraction.Extraction.run", None)
    assert run("search_folder", *arguments) == first


def test_a_picture_finds_itself_and_sentences(run: Run, library: Path) -> None:
    found = run("search_by_picture", "photos", "file:boc-data", library / "images" / "007.png")
    assert found[0] == "1.000  007.png"
    assert len(found) == 6


@pytest.mark.slow
def test_an_index_without_sentences_says_so(run: Run, library: Path) -> None:
    run("search_folder", library / "images", f"tern:{library / 'model'}", "a red box")
    found = run("search_by_picture", "folder", "file:boc-data", library / "images" / "007.png")
    assert found[0] == "1.000  007.png"
    assert "pictures only" in found[-1]


@pytest.mark.slow
def test_a_vector_of_ones_own_finds_its_item(run: Run) -> None:
    assert run("own_vectors")[0] == "1.000  0007.jpg"


def test_what_is_loaded_scores_exactly(run: Run, tmp_path: Path) -> None:
    *_, last = run("load_into_server", "photos.h5", "file:boc-data")
    assert re.fullmatch(r"\d+ scores compared, all as they should be", last)
    assert sorted(path.name for path in (tmp_path / "boc-data").iterdir()) == ["photos"]


@pytest.mark.slow
def test_a_server_scores_exactly(run: Run, server: Any) -> None:
    scheme = {"elasticsearch": "elastic", "opensearch": "opensearch"}[server.kind.engine]
    *_, last = run("load_into_server", "photos.h5", f"{scheme}+{server.url}")
    assert re.fullmatch(r"\d+ scores compared, all as they should be", last)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [(), ("photos.h5",)])
def test_more_terms_never_read_less_and_find_more(run: Run, arguments: tuple[str, ...]) -> None:
    _, *lines = run("compare_codes", *arguments)
    rows = [line.split() for line in lines]
    for code in ("scalar", "permutation"):
        _, postings, recalls = zip(*(map(float, row[1:]) for row in rows if row[0] == code), strict=True)
        assert len(postings) == 4
        assert list(postings) == sorted(postings)
        if not arguments:  # of forty pictures each code finds most
            assert list(recalls) == sorted(recalls)


def test_the_terms_of_a_hit_are_told_and_drawn(run: Run, tmp_path: Path) -> None:
    head, *lines = run("explain_hit", "photos", "file:boc-data", "a red box at the left")
    score, count = map(int, re.fullmatch(r"\S+: (\d+), of (\d+) terms", head).groups())  # type: ignore[union-attr]
    shares = [float(line.split("%")[0]) for line in lines if "%" in line]
    assert score > 0
    assert len(shares) == min(5, count)
    assert shares == sorted(shares, reverse=True)
    assert "red: region" in "\n".join(lines)
    assert "a red box" in (tmp_path / "why.html").read_text(encoding="utf-8")


def test_filters_hold_and_words_count(run: Run) -> None:
    found = run("hybrid_and_filters", "photos.h5", "a red box at the left")
    titles = [i for i, line in enumerate(found) if not line.startswith(" ")]
    ends = [*titles[1:], len(found)]
    parts = [[line.split() for line in found[a + 1 : b]] for a, b in zip(titles, ends, strict=True)]
    assert [len(part) for part in parts] == [3, 3, 3, 3]
    assert {row[2] for row in parts[1]} == {"2025"}
    assert all("#" in row[1] for part in parts[2:] for row in part)


def test_the_page_has_a_route_more(library: Path) -> None:
    pytest.importorskip("fastapi")
    from fastapi.testclient import TestClient

    make = runpy.run_path(str(EXAMPLES / "serve_in_your_app.py"))["application"]
    asked = {"q": "a red box at the left"}
    with TestClient(make("photos", f"file:{library / 'index'}"), base_url="http://127.0.0.1") as client:
        best, hits = (
            client.get("/api/best", params=asked).json(),
            client.get("/api/search", params=asked).json()["hits"],
        )
    assert hits[0]["id"] == best["id"]
    assert hits[0]["score"] == pytest.approx(best["score"])
    with TestClient(make("photos", f"file:{library / 'index'}", "secret"), base_url="http://127.0.0.1") as client:
        assert client.get("/api/best", params=asked).status_code == 401


@pytest.mark.slow
def test_every_example_is_run_and_told() -> None:
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    here, page = Path(__file__).read_text(encoding="utf-8"), EXAMPLES.parent / "docs" / "examples.md"
    assert names == set(re.findall(r'(?:run\("|EXAMPLES / ")(\w+)(?:"|\.py)', here))
    assert names == set(re.findall(r"^```\{literalinclude\} \.\./examples/(\w+)\.py", page.read_text("utf-8"), re.M))


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_docstrings_say_how_to_run(path: Path) -> None:
    assert f"python examples/{path.name}" in path.read_text(encoding="utf-8").split('"""')[1]
