"""Tables, figures and pages follow their rows: every figure changes with them, and nothing comes
from elsewhere."""

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, strategies as st

from bench.report import docs, paper, views
from bench.report.rows import Rows, read
from tests.bench.scripts import ROOT

ROWS = ROOT / "docs" / "rows"
MARKERS = sorted(
    {
        (each.name, each.view, *each.words)
        for page in docs.pages(ROOT)
        for each in docs.markers(page.read_text(encoding="utf-8"))
    },
)
PLOTS = [marker for marker in MARKERS if marker[1] == "plot"]
TABLES = [marker for marker in MARKERS if marker[1] != "plot"]


@given(st.floats(-1e6, 1e6))
def test_fill_number(value: float) -> None:
    row = {"x": repr(value)}
    assert views.fill("{x:,.2f}", row) == f"{value:,.2f}"
    assert views.fill("{x}", row) == repr(value)
    assert float(views.fill("{x:.3s}", row)) == pytest.approx(round(value, 3))


POINTS = st.lists(
    st.tuples(
        st.sampled_from([0.7, 0.8, 0.9, 1.0]),
        st.integers(1, 9),
    ),
    min_size=1,
    max_size=12,
)


@given(POINTS)
def test_front_slow_loop(points: list[tuple[float, int]]) -> None:
    pandas = pytest.importorskip("pandas")
    figures = pytest.importorskip("bench.report.figures")
    table = pandas.DataFrame(
        points,
        columns=["cost", "gain"],
    )
    best = {
        *figures.front(
            table,
            table["cost"],
            table["gain"],
        ).itertuples(
            index=False,
            name=None,
        ),
    }
    expected = {
        (cost, gain)
        for cost, gain in points
        if not any(c <= cost and g >= gain and (c, g) != (cost, gain) for c, g in points)
    }
    assert best == expected


def run_docs(options: str) -> Result:
    return CliRunner().invoke(docs.main, options)


@pytest.mark.slow
def test_pages_of_tree_up_to_date() -> None:
    pytest.importorskip("matplotlib")
    result = run_docs("--check")
    assert result.exit_code == 0, result.stderr


def test_all_rows_and_plots_shown() -> None:
    pages = [page.read_text(encoding="utf-8") for page in docs.pages(ROOT)]
    names = {name for name, *_ in MARKERS}
    for path in ROWS.iterdir():
        assert path.stem in names or any(path.name in page for page in pages), path.name
    for path in (ROOT / "docs" / "figures").iterdir():
        assert any(f"figures/{path.name})" in page for page in pages), path.name


def test_one_command_makes_the_rows_of_all_pages() -> None:
    """All rows have a rule in bench/rows.mk, of a script in the tree."""
    said = subprocess.run(
        ["make", "-n", "results"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    pages = {page.stem for page in (ROOT / "docs" / "results").glob("*.md")}
    named = set(re.findall(r"docs/results/([\w-]+)\.md has the rows", said))
    assert named == pages - {"index"}
    assert {read(ROWS / f"{name}.csv").head["script"] for name, *_ in MARKERS} <= docs.SCRIPTS


CHOOSE = {
    "Rm",
    "R",
    "z",
    "n",
    "sparsity",
    "at",
    "ours",
    "table",
}  # columns that views choose by


def change_numbers(rows: Rows) -> Rows:
    """Return the same rows with other numbers."""

    def change(text):
        try:
            return str(3 * float(text) + 1.37)
        except ValueError:
            return text

    return replace(
        rows,
        table=[{k: v if k in CHOOSE else change(v) for k, v in row.items()} for row in rows.table],
    )


@pytest.mark.parametrize(
    "marker",
    TABLES,
    ids=" ".join,
)
def test_table_follows_rows(marker: tuple[str, ...]) -> None:
    name, view, *words = marker
    rows = read(ROWS / f"{name}.csv")
    lines, changed = (views.table(each, view, words).lines for each in (rows, change_numbers(rows)))
    assert lines
    for line in lines:
        if any(re.search(r"\d", cell) for cell in line[1:]):
            assert line not in changed, line


@pytest.mark.slow
@pytest.mark.parametrize(
    "marker",
    PLOTS,
    ids=" ".join,
)
def test_plot_units_names_deterministic(marker: tuple[str, ...]) -> None:
    figures = pytest.importorskip("bench.report.figures")
    rows = read(ROWS / f"{marker[0]}.csv")
    drawing = figures.draw(rows, marker[2])
    first, second = (figures.svg(rows, marker[2]) for _ in range(2))
    assert first == second
    ElementTree.fromstring(first)
    for ax in drawing.axes:
        assert all(
            [
                ax.get_title(loc="left"),
                ax.get_xlabel(),
                ax.get_ylabel(),
                ax.lines,
            ],
        )
        names = ax.get_legend_handles_labels()[1]
        assert len({*names} - {"others", "Pareto front", "dense vectors"}) <= 8
        assert all(f">{name}<" in first for name in names)
    pages = [figures.pdf(rows, marker[2]) for _ in range(2)]
    assert pages[0] == pages[1]
    assert pages[0].startswith(b"%PDF")


@given(
    st.lists(
        st.lists(
            st.text("ab1 .%&_#$~^\\{}<>*`±-"),
            min_size=2,
            max_size=2,
        ),
        max_size=4,
    ),
)
def test_latex_plain(lines: list[list[str]]) -> None:
    text = paper.latex(views.Table(["a", "b"], lines))
    body = text.split("\\midrule\n")[1].split("\\bottomrule")[0]
    plain = re.sub(r"\\[%&_#${}\\]|\$\\pm\$", "", body)
    assert plain.count(" & ") == len(lines)  # one per line, since those of cells are escaped
    assert plain.count("{") == plain.count("}")
    assert not re.search(r"[%#$~^<>]", plain)


PAGE = """# Title
<!-- rows: growth growth -->
old
<!-- end -->
<!-- rows: growth plot growth -->
<!-- end -->
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Make a folder with a page below docs/, its rows, and rows of a script that is not in the
    tree."""
    pytest.importorskip("matplotlib")
    (tmp_path / "docs" / "rows").mkdir(parents=True)
    (tmp_path / "docs" / "how-to").mkdir()
    rows = (ROWS / "growth.csv").read_text(encoding="utf-8")
    for name, text in (
        ("growth", rows),
        ("gone", rows.replace("script: growth.py", "script: embedded_growth.py")),
    ):
        (tmp_path / "docs" / "rows" / f"{name}.csv").write_text(text, encoding="utf-8")
    (tmp_path / "README.md").write_bytes(b"# Title\n")
    (tmp_path / "docs" / "how-to" / "page.md").write_text(PAGE, encoding="utf-8")
    return tmp_path


@pytest.mark.slow
def test_generate_and_check(root: Path) -> None:
    page = root / "docs" / "how-to" / "page.md"
    rows = root / "docs" / "rows" / "growth.csv"
    assert run_docs(f"--root {root} --check").exit_code == 1
    assert page.read_text(encoding="utf-8") == PAGE
    assert run_docs(f"--root {root} --paper {root}/paper").exit_code == 0
    names = {path.name for path in (root / "paper").iterdir()}
    assert names == {"growth-growth.pdf", "growth-growth-figure.tex", "growth-growth.tex"}
    text = page.read_text(encoding="utf-8")
    assert "| 10,000 |" in text
    assert not re.search(r"^(\|[^|\n]*){9}\|", text, re.M)
    assert "](../figures/growth-growth.svg)" in text
    assert (
        (root / "docs" / "figures" / "growth-growth.svg")
        .read_text(encoding="utf-8")
        .startswith("<svg")
    )
    assert run_docs(f"--root {root} --check").exit_code == 0
    page.write_text(text.replace("10,000", "10,001"), encoding="utf-8")
    result = run_docs(f"--root {root} --check")
    assert result.exit_code == 1
    assert "page.md differs from its rows" in result.stderr
    page.write_text(text, encoding="utf-8")
    rows.write_bytes(rows.read_bytes().replace(b"seed: 0", b"seed: 1"))
    assert (
        "growth-growth.svg was not drawn from the rows of growth"
        in run_docs(f"--root {root} --check").stderr
    )


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        ("nothing growth", "no rows"),
        ("gone growth", "embedded_growth.py is not in the repository"),
        ("growth nothing", "no view 'nothing'; known: "),
        ("growth at", "no view 'at'"),
        ("growth plot nothing", "no plot 'nothing'"),
        ("growth plot pareto", "no plot 'pareto'"),
    ],
)
def test_bad_markers(root: Path, marker: str, message: str) -> None:
    (root / "README.md").write_text(
        f"<!-- rows: {marker} -->\n<!-- end -->\n",
        encoding="utf-8",
    )
    result = run_docs(f"--root {root}")
    assert result.exit_code == 1
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.slow
def test_page_complete_rows_self_contained(root: Path, tmp_path: Path) -> None:
    from bench.report.page import page

    out = root / "docs" / "rows"
    cut = (
        (ROWS / "table1.csv")
        .read_text(
            encoding="utf-8",
        )
        .partition("# done")[0]
    )
    (out / "table1.csv").write_text(
        cut,
        encoding="utf-8",
    )
    shutil.copy(
        ROWS / "race-embedded.csv",
        out / "mine.csv",
    )
    text = page(out)
    assert "Unfinished, and not shown: table1.csv." in text
    assert '<section id="growth">' in text
    assert text.count("<svg") == 1
    for row in read(
        out / "mine.csv",
    ).table:  # no page shows rows of this name: all of them are here
        assert f"<td>{row['engine']}</td><td>{row['index']}</td><td>{row['setting']}</td>" in text
    assert not re.search(
        r"(?:src|href)=\"(?!#)|<script|<link|@import|url\((?!#)",
        text,
    )
