"""The examples run as their docstrings say, with the hits that they should have."""

import ast
import json
import re
import runpy
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"

Run = Callable[..., list[str]]


@pytest.fixture
def run(
    library: Path,
    tmp_path: Path,
    monkeypatch,
    capsys,
) -> Run:
    """Runs an example as a program, in a folder with photos.h5 and the index ``photos``; the lines
    it prints."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(library / "index", "boc-data")
    shutil.copy(library / "photos.h5", "photos.h5")

    def start(name, *arguments):
        monkeypatch.setattr("sys.argv", [f"{name}.py", *map(str, arguments)])
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    return start


@pytest.mark.slow
def test_a_folder_is_encoded_once_and_searched(run: Run, library: Path):
    arguments = (library / "images", f"tern:{library / 'model'}")
    first = run("search_folder", *arguments, "a red box at the left")
    assert len(first) == 5
    assert all(Path(line.split()[1]).parent == library / "images" for line in first)
    assert run("search_folder", *arguments, "a red box at the left") == first
    best, *_ = run("search_folder", *arguments, library / "images" / "007.png")
    assert best.split() == ["1.000", str(library / "images" / "007.png")]


def test_more_terms_never_read_less(run: Run):
    _, *lines = run("compare_codes", "photos.h5")
    rows = [line.split(maxsplit=2) for line in lines]
    assert len(rows) == 7
    for name in ("scalar", "permutation"):
        postings = [float(row[0]) for row in rows if row[2].startswith(name)]
        assert len(postings) == 3
        assert postings == sorted(postings)


def test_a_picture_is_the_best_under_a_code_of_ones_own(run: Run):
    best, *others = run("own_code", "photos.h5")
    assert best.split()[1] == "000.png"
    assert len(others) == 2


def test_filters_hold_and_words_count(run: Run):
    lines = run("filter_and_words", "photos.h5", "a red box at the left")
    titles = [i for i, line in enumerate(lines) if not line.startswith(" ")]
    ends = [*titles[1:], len(lines)]
    parts = [
        [line.split() for line in lines[a + 1 : b]]
        for a, b in zip(
            titles,
            ends,
            strict=True,
        )
    ]
    assert [len(part) for part in parts] == [3, 3, 3]
    assert {row[2] for row in parts[1]} == {"2025"}
    assert all("#" in row[1] for row in parts[2])


def test_the_page_has_another_route(library: Path):
    pytest.importorskip("fastapi")
    from fastapi.testclient import TestClient

    make = runpy.run_path(str(EXAMPLES / "serve_in_your_app.py"))["application"]
    query = {"q": "a red box at the left"}
    with TestClient(
        make("photos", f"file:{library / 'index'}"),
        base_url="http://127.0.0.1",
    ) as client:
        best = client.get("/api/best", params=query).json()
        hits = client.get("/api/search", params=query).json()["hits"]
    assert hits[0]["id"] == best["id"]
    assert hits[0]["score"] == pytest.approx(best["score"])
    with TestClient(
        make("photos", f"file:{library / 'index'}", "secret"),
        base_url="http://127.0.0.1",
    ) as client:
        assert client.get("/api/best", params=query).status_code == 401


@pytest.mark.slow
def test_the_notebook_runs_and_shows_its_hits(
    tmp_path: Path,
    monkeypatch,
):
    pytest.importorskip("onnxruntime", reason="networks in ONNX need the extra search")
    pytest.importorskip("pandas")
    (tmp_path / "demo").symlink_to(EXAMPLES.parent / "demo")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    cells = json.loads((EXAMPLES / "notebook.ipynb").read_text(encoding="utf-8"))["cells"]
    own = {}
    shown = []
    for cell in [cell for cell in cells if cell["cell_type"] == "code"]:
        assert (cell["outputs"], cell["execution_count"]) == ([], None)
        *lines, last = ast.parse("".join(cell["source"])).body
        exec(compile(ast.Module(lines, []), "notebook", "exec"), own)
        assert isinstance(last, ast.Expr)
        shown.append(
            eval(
                compile(
                    ast.Expression(last.value),
                    "notebook",
                    "eval",
                ),
                own,
            ),
        )
    report, hits, table, alike = shown
    assert report.images == 60
    assert hits._repr_html_().count("<img src=") == 6
    assert table["id"].tolist() == [hit.id for hit in hits]
    assert len(alike) == 3
    assert hits[0].id not in [hit.id for hit in alike]


@pytest.mark.slow
def test_every_example_is_run_and_documented():
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    here = Path(__file__).read_text(encoding="utf-8")
    page = EXAMPLES.parent / "docs" / "examples.md"
    assert names == set(re.findall(r'(?:run\("|EXAMPLES / ")(\w+)(?:"|\.py)', here))
    assert names == set(
        re.findall(
            r"^```\{literalinclude\} \.\./examples/(\w+)\.py",
            page.read_text("utf-8"),
            re.M,
        ),
    )
