"""Report, plots and tables of tiny rows: every figure is there, unfinished rows are not, nothing comes from outside."""

from __future__ import annotations

import io
import itertools
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bench.scripts import ROOT, run_script

DIRECTIONS = ("text to image", "image to text")
RMS = (1, 2, 5, 10, 20, 50)


@pytest.fixture
def bench() -> SimpleNamespace:
    """The modules that make pages of rows."""
    pytest.importorskip("matplotlib")
    from bench.report import docs, drawing, page, plot, rows, tables

    return SimpleNamespace(drawing=drawing, plot=plot, page=page, rows=rows, tables=tables, docs=docs)


class Figures:
    """Numbers that are all different, so that each can be found again."""

    def __init__(self, first: float) -> None:
        self.next = first

    def __call__(self, digits: int = 2) -> str:
        self.next += 0.13
        return f"{self.next:.{digits}f}"


def sparsity() -> Iterable[dict[str, object]]:
    of = Figures(10)
    chains = [("scalar", "plain"), ("permutation", "plain"), ("scalar", "centred, rotated"), ("dictionary", "of 99")]
    chains += [(f"soft {a}", f"{c} context") for a in ("sum", "max") for c in ("with", "no")]
    for code, chain in chains:
        for i, sparsity in enumerate((0.0, 0.9, 0.9896)):
            for direction in DIRECTIONS:
                row = {"code": code, "chain": chain, "z": 100 - 45 * i, "sparsity": sparsity, "direction": direction}
                row |= {"postings": of(1), "bytes": 500 / (1 + i), "dense": 61.5, "terms": 3}
                row |= {f"Rm={rm}": of() for rm in RMS} | {f"Rm={rm} +-": 0.5 for rm in RMS}
                yield row
    yield dict.fromkeys(row, "") | {"code": "scalar minus permutation", "chain": "plain", "sparsity": 0.9896,
           "direction": DIRECTIONS[0], "Rm=1": "3.33"}  # fmt: skip


def race() -> Iterable[dict[str, object]]:
    of = Figures(1)
    for engine, index, ours in (("boc", "dictionary:2", 1), ("faiss", "HNSW32", 0), ("faiss", "IVF", 0)):
        for i in range(3):
            row = {"engine": engine, "index": index, "setting": f"s={i}", "ours": ours, "at": "0.95" if i == 1 else ""}
            row |= {"recall": 0.9 + 0.04 * i + 0.001 * ours, "validation": 0.95}
            row |= {f"{p}_{end}": of() for p in ("p50", "p95", "p99") for end in ("ms", "least", "most")}
            row |= {key: of(0) if i == 1 else "" for key in ("qps_1", "qps_2", "anon_mb", "file_mb")}
            row |= {f"{part}_mb": of() for part in ("index", "vectors", "codec", "rest")}
            yield row | {key: of() for key in ("fit_s", "encode_s", "build_s", "disk_mb", "took_ms")}


def ratios() -> Iterable[dict[str, object]]:
    row = {"race": "race-embedded", "at": "0.95", "ours": "boc dictionary:2", "recall": 0.951, "their_recall": 0.962}
    row |= {f"{key}{end}": "" for key in ("p50", "qps_1") for end in ("", "_least", "_most", "_verdict")}
    row |= {"build": "0.5", "with_fit": "1.02", "disk": "", "anon": "0.000"}
    slow = {"p50": "3.11", "p50_least": "2.91", "p50_most": "3.42", "p50_verdict": "theirs"}
    fast = {"p50": "0.25", "p50_least": "0.2", "p50_most": "0.5", "p50_verdict": "ours"}
    yield row | {"theirs": "faiss HNSW32"} | slow
    yield row | {"theirs": "scipy bits:64"} | fast


def growth() -> Iterable[dict[str, object]]:
    for n in (100, 1000, 10000):
        times = {f"p{q}_ms": n**0.5 / q for q in (50, 95, 99)}
        yield (
            {"n": n, "setting": "R=5", "recall": 0.95}
            | times
            | {"fit_s": n / 7 if n > 100 else 0, "build_s": n**2, "disk_mb": n / 3}
        )


def sizes() -> Iterable[dict[str, object]]:
    of = Figures(30)
    for clusters, sample in ((50, 500), (100, 500), (100, 100)):
        for assignment, z in (("hard", 1), ("soft sum", 8), ("soft sum", 2)):
            for direction in DIRECTIONS:
                row = {"clusters": clusters, "sample": sample, "concepts": sample - 1, "assignment": assignment, "z": z}
                yield row | {"direction": direction, "dense": 61.5, "R@10": of(), "R@10 +-": 1.1}


def postings() -> Iterable[dict[str, object]]:
    of = Figures(0.3)
    for code, setting in (("scalar", "16 / 32"), ("scalar", "32 / 64"), ("dictionary", "2 / 8")):
        cost = of(0 if code == "" else 3)
        for depth in (100, 300):
            yield {"code": code, "setting": setting, "postings": float(cost) * 1000, "bytes": 80, "R": depth,
                   "recall": of(3), "right": of()}  # fmt: skip


def claims() -> Iterable[dict[str, object]]:
    row = {"data": "table1", "direction": "both", "error": "0.40", "figures": "TERN 276.3", "paper": "coco 350.3"}
    yield row | {"claim": "Context helps <hard> assignment.", "verdict": "held", "difference": "5.02"}
    yield row | {"claim": "Permutation loses nothing.", "verdict": "not held", "difference": "33.94"}


def side_by_side() -> Iterable[dict[str, object]]:
    of = Figures(40)
    for i, code in enumerate(
        ("scalar:64/128", "scalar(z=64, query_z=128, reading=printed)", "dictionary:2/64", "late")
    ):
        row = {"code": code, "terms": 64, "bytes": 259, "postings": 12 * 9**i, "recall@100": 0.98, "shared terms": 0.5}
        yield row | {"R@10 code": of(), "R@10": of(), "NDCG@25": of(4)}


def curves() -> Iterable[dict[str, object]]:
    of = Figures(30)
    for model in ("TERN", "TERAN"):
        for step in (19, 38):
            row = {"model": model, "step": step, "loss": of(4), "sum": of(), "kept": "yes" if step > 19 else ""}
            for direction in ("sentence to picture", "picture to sentence"):
                row |= {f"{direction} {measure}": of() for measure in ("R@1", "R@5", "R@10", "NDCG")}
            yield row


def beyond() -> Iterable[dict[str, object]]:
    of = Figures(3)
    for index in ("dictionary:2", "bbq_hnsw"):
        for memory, state in itertools.product(("all", "0.5", "0.25"), ("cold", "warm")):
            row = {"index": index, "memory": memory, "state": state, "setting": "ef=30", "recall": 0.957, "reads": of()}
            row |= {f"p{q}_ms": of(q) for q in (50, 95, 99)} | {"read_kb": 0 if memory == "all" else of(50)}
            yield row | {"cached_mb": of(70), "cpu_s": of(40), "disk_mb": of(170), "vectors_mb": of(150)}


def loads() -> Iterable[dict[str, object]]:
    of = Figures(40)
    for count in (1000, 20000):
        row = {"items": count, "setting": "z=64 R=100", "recall": 0.957}
        row |= {name: of() for name in ("learn_s", "seconds", "resume_s", "merge_s", "server_s", "loader_mb")}
        row |= {f"{name}_each": of() for name in ("postings", "vectors", "other")}
        row |= {"items_per_s": 5000, "bytes": count * 600} | {f"p{q}_ms": of() for q in (50, 95, 99)}
        columns = ("learn_s", "seconds", "bytes", "postings_each", "vectors_each", "other_each")
        yield row | {f"estimated_{name}": row[name] for name in columns}


ROWS: dict[str, tuple[str, Callable[[], Iterable[dict[str, object]]]]] = {
    "sparsity-tern": ("sparsity_recall.py", sparsity),
    "race-embedded": ("race.py", race),
    "race-ratios": ("ratios.py", ratios),
    "growth": ("embedded_growth.py", growth),
    "codebook-size": ("codebook_size.py", sizes),
    "recall-postings-captions": ("recall_postings.py", postings),
    "claims": ("claims.py", claims),
    "all-codes": ("all_codes.py", side_by_side),
    "training-curves": ("training_curve.py", curves),
    "server-memory": ("server_memory.py", beyond),
    "server-load": ("server_load.py", loads),
}


@pytest.fixture
def out(bench: SimpleNamespace, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A folder of rows of every kind, or of those that the test names."""
    for name in getattr(request, "param", ROWS):
        script, make = ROWS[name]
        text = io.StringIO()
        table = list(make())
        with bench.rows.Writer(text, script, {"features": f"{name}.h5"}, list(table[0]), seed=17) as writer:
            for row in table:
                writer.write(*(row[column] for column in table[0]))
        (tmp_path / f"{name}.csv").write_text(text.getvalue(), encoding="utf-8")
    return tmp_path


class Page(HTMLParser):
    """Texts and links of a page; tags that do not match fail."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.tags: set[str] = set()
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "action", "data")]
        self.ids += [value or "" for name, value in attrs if name == "id" and "clip" not in (value or "")]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data.strip())


@pytest.mark.slow
def test_the_page_holds_every_figure_and_needs_nothing_else(bench: SimpleNamespace, out: Path) -> None:
    text = bench.page.page(out)
    page = Page(text)
    for name in ROWS:
        for row in bench.rows.read(out / f"{name}.csv").table:
            assert set(filter(None, row.values())) <= set(page.texts)
    told = " ".join(page.texts)
    assert "seed: 17" in told
    assert '"features": "growth.h5"' in told
    assert all(link.startswith("#") for link in page.links)
    assert page.tags.isdisjoint({"script", "link", "img", "iframe", "object"})
    assert "@import" not in text
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", text))
    assert {link[1:] for link in page.links if link.startswith("#") and link[1:] in ROWS} <= set(page.ids)


@pytest.mark.slow
@pytest.mark.parametrize("out", [["claims", "race-ratios"]], indirect=True)
def test_wins_losses_and_claims_are_told(bench: SimpleNamespace, out: Path) -> None:
    text = bench.page.page(out)
    assert '<span class="theirs">3.1 x slower (2.9-3.4)</span>' in text
    assert '<span class="ours">4.0 x faster (2.0-5.0)</span>' in text
    assert '<span class="ours">2.0 x sooner</span>' in text
    assert '<span class="even">even</span>' in text
    assert '<span class="ours">none, less</span>' in text
    assert "ours is faster in 1 of 2 pairs, slower in 1" in text
    assert '<b class="not">not held</b>' in text
    assert '<b class="held">held</b>' in text
    assert "Context helps &lt;hard&gt; assignment." in text


@pytest.mark.parametrize("out", [["growth", "claims"]], indirect=True)
def test_unfinished_rows_are_named_and_not_shown(bench: SimpleNamespace, out: Path) -> None:
    whole = (out / "growth.csv").read_text(encoding="utf-8")
    (out / "growth.csv").write_text(whole[: whole.index("# done")], encoding="utf-8")
    (out / "labels.csv.part").write_text("# script: labels.py\n", encoding="utf-8")
    texts = Page(bench.page.page(out)).texts
    assert "Unfinished, and not shown: labels.csv.part, growth.csv." in texts
    assert "Growth" not in texts


def test_a_folder_without_rows_has_a_page(bench: SimpleNamespace, tmp_path: Path) -> None:
    assert "There are no finished rows yet." in Page(bench.page.page(tmp_path)).texts


@pytest.mark.parametrize("out", [["claims"]], indirect=True)
def test_stages_left_out_and_trials_are_told(bench: SimpleNamespace, out: Path) -> None:
    (out / "data").mkdir()
    (out / "stages").mkdir()
    record = '{"name": "labels", "state": "left out", "command": ["python", "/far/labels.py"], "why": "needs a file"}'
    (out / "stages" / "labels.json").write_text(record, encoding="utf-8")
    record = '{"name": "photos", "state": "done", "command": ["python"], "taken": true}'
    (out / "stages" / "photos.json").write_text(record, encoding="utf-8")
    text = bench.page.page(out)
    assert "Not here: labels (left out); the table says why." in text
    assert "needs a file <code>python labels.py</code>" in text
    assert "taken as they were: photos." in text
    assert "outside of this run; their heads say how: claims." in text
    assert "a trial on painted scenes" in text


@pytest.mark.slow
def test_every_plot_has_units_names_that_do_not_touch_and_a_title(bench: SimpleNamespace, out: Path) -> None:
    seen = set()
    for name, (script, _) in ROWS.items():
        for plot in bench.plot.plots(bench.rows.read(out / f"{name}.csv"), "made up"):
            seen.add(script)
            assert "made up" in plot.title
            plot.figure.canvas.draw()
            for ax in plot.figure.axes:
                assert ax.get_xlabel()
                assert ax.get_ylabel() or all(patch.get_width() >= 0 for patch in ax.patches)
                boxes = [text.get_window_extent() for text in ax.texts if text.get_text()]
                assert boxes
                for i, box in enumerate(boxes):
                    assert not any(box.overlaps(other) for other in boxes[:i])
            if script == "sparsity_recall.py" and "fig3a" not in plot.name and "fig3b" not in plot.name:
                assert "dictionary (ours)" in plot.svg
            ElementTree.fromstring(plot.svg)
            assert "<text" in plot.svg
    assert seen == set(bench.plot.PLOTS)


@pytest.mark.slow
@pytest.mark.parametrize("out", [["growth"]], indirect=True)
def test_a_plot_is_the_same_each_time(bench: SimpleNamespace, out: Path) -> None:
    rows = bench.rows.read(out / "growth.csv")
    first, second = ([plot.svg for plot in bench.plot.plots(rows)] for _ in range(2))
    assert first == second


@settings(max_examples=50)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=12).map(sorted), st.floats(0.001, 0.2))
def test_names_are_kept_apart_and_near_their_points(wish: list[float], step: float) -> None:
    pytest.importorskip("matplotlib")
    from bench.report.drawing import apart

    found = apart(wish, step)
    assert all(b - a >= step - 1e-9 for a, b in itertools.pairwise(found))
    assert abs(sum(found) - sum(wish)) < 1e-6
    if all(b - a >= step for a, b in itertools.pairwise(wish)):
        assert found == pytest.approx(wish)


def test_exponents_are_those_of_the_law(bench: SimpleNamespace) -> None:
    n = [10.0, 100.0, 1000.0]
    assert bench.plot.exponent(n, [3 * x**0.7 for x in n]) == pytest.approx(0.7)


PAGE = """# Title
<!-- rows: growth growth -->
old
<!-- end -->
<!-- rows: growth plot growth -->
<!-- end -->
"""


def brought(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return run_script("docs.py", "--root", root, *options)


@pytest.mark.slow
@pytest.mark.parametrize("out", [["growth"]], indirect=True)
def test_pages_follow_their_rows(out: Path) -> None:
    (out / "docs" / "rows").mkdir(parents=True)
    (out / "growth.csv").rename(out / "docs" / "rows" / "growth.csv")
    (out / "README.md").write_text(PAGE, encoding="utf-8")
    assert brought(out, "--check").returncode == 1
    assert (out / "README.md").read_text(encoding="utf-8") == PAGE
    assert brought(out).returncode == 0
    text = (out / "README.md").read_text(encoding="utf-8")
    assert "| 10,000 | R=5 | .950 |" in text
    assert "](docs/figures/growth-growth.svg)" in text
    assert (out / "docs" / "figures" / "growth-growth.svg").read_text(encoding="utf-8").startswith("<svg")
    assert brought(out, "--check").returncode == 0
    (out / "README.md").write_text(text.replace(".950", ".960"), encoding="utf-8")
    checked = brought(out, "--check")
    assert checked.returncode == 1
    assert "README.md differs from its rows" in checked.stderr


@pytest.mark.slow
@pytest.mark.parametrize("out", [["growth"]], indirect=True)
@pytest.mark.parametrize(
    ("marker", "told"),
    [("nothing growth", "no rows"), ("growth nothing", "no view"), ("growth plot nothing", "no plot"),
     ("growth at 0.95", "no view")],
)  # fmt: skip
def test_markers_that_cannot_be_are_refused(out: Path, marker: str, told: str) -> None:
    (out / "docs" / "rows").mkdir(parents=True)
    (out / "growth.csv").rename(out / "docs" / "rows" / "growth.csv")
    (out / "README.md").write_text(f"<!-- rows: {marker} -->\n<!-- end -->\n", encoding="utf-8")
    found = brought(out)
    assert found.returncode == 1
    assert told in found.stderr
    assert len(found.stderr.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("out", [["growth"]], indirect=True)
def test_a_plot_of_other_rows_is_noticed(out: Path) -> None:
    (out / "docs" / "rows").mkdir(parents=True)
    path = out / "docs" / "rows" / "growth.csv"
    (out / "growth.csv").rename(path)
    (out / "README.md").write_text("<!-- rows: growth plot growth -->\n<!-- end -->\n", encoding="utf-8")
    assert brought(out).returncode == 0
    path.write_text(path.read_text(encoding="utf-8").replace("0.95", "0.96"), encoding="utf-8")
    checked = brought(out, "--check")
    assert checked.returncode == 1
    assert "growth-growth.svg is not drawn of the rows of growth" in checked.stderr


# Of our own pages


@pytest.mark.slow
def test_figures_of_our_own_pages_are_those_of_their_rows() -> None:
    pytest.importorskip("matplotlib")
    found = brought(ROOT, "--check")
    assert found.returncode == 0, found.stderr


def test_rows_and_plots_that_lie_there_are_shown(bench: SimpleNamespace) -> None:
    pages = [page.read_text(encoding="utf-8") for page in bench.docs.pages(ROOT)]
    assert any((ROOT / "docs" / "rows").iterdir())
    for path in (ROOT / "docs" / "rows").iterdir():
        assert any(f"<!-- rows: {path.stem} " in page or path.name in page for page in pages), path.name
    for path in (ROOT / "docs" / "figures").iterdir():
        assert any(f"figures/{path.name})" in page for page in pages), path.name


CHOOSE = {"Rm", "R", "z", "n", "sparsity", "at", "ours"}  # columns that views choose rows by


def other(rows: Any) -> Any:
    """The same rows with other numbers."""
    table = [{k: v if k in CHOOSE else raised(v) for k, v in row.items()} for row in rows.table]
    return replace(rows, table=table)


def raised(text: str) -> str:
    try:
        return str(3 * float(text) + 1.37)
    except ValueError:
        return text


def test_every_figure_of_our_pages_changes_with_its_rows(
    bench: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    docs = bench.docs
    read = docs._rows
    monkeypatch.setattr(docs, "_rows", lambda path: other(read(path)))
    seen = 0
    for page in docs.pages(ROOT):
        for match in docs.MARKED.finditer(page.read_text(encoding="utf-8")):
            if " plot " in match["what"]:  # told by the digest of their rows
                continue
            text = f"It is {match[0]}"
            changed = docs.made(text, page, ROOT)
            assert changed != text, match["what"]
            for line in match["old"].strip().splitlines()[2:]:  # of a table
                first, _, figures = line.strip("| ").partition("|")
                if re.search(r"\d", figures):
                    assert line not in changed, (match["what"], first)
            seen += 1
    assert seen > 15


@pytest.mark.slow
def test_another_digit_in_a_row_fails_the_check(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    shutil.copytree(ROOT / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns("_build"))
    shutil.copy(ROOT / "README.md", tmp_path)
    assert brought(tmp_path, "--check").returncode == 0
    path = tmp_path / "docs" / "rows" / "table1.csv"
    text = path.read_text(encoding="utf-8")
    changed, count = re.subn(r"(?<=,TERN,,)\d", lambda digit: str((int(digit[0]) + 1) % 10), text)
    assert count == 1
    path.write_text(changed, encoding="utf-8")
    found = brought(tmp_path, "--check")
    assert found.returncode == 1
    assert "codes.md differs from its rows" in found.stderr


TABLES = {  # page: first cells of tables whose figures are measured by nothing, and what they are
    "docs/codes.md": {"code": "years of papers", "argument": "defaults and limits"},
    "docs/encoders.md": {
        "setting": "defaults, and why", "source": "sizes of grids", "MODEL": "sizes of downloads",
    },
    "docs/index.md": {"feature": "versions of servers"},
    "docs/installing.md": {"command": "downloads"},
    "docs/servers.md": {
        "option": "defaults", "server": "versions, tried with `boc info`", "field": "a limit",
        "`vectors=`": "bytes of types, versions", "pitfall": "versions, status codes",
    },
}  # fmt: skip
SENTENCES = {  # page: what is told with a unit and is of no rows, and why not
    "README.md": {
        "6 GB with PyTorch": "a download", "(0.6 GB, once)": "a download", "half an hour": "by `make flickr8k`",
    },
    "docs/codes.md": {"100,000 vectors of 4 KB": "a setting of `bench/speed/encoding.py`"},
    "docs/embedded.md": {"about 48 MB": "a setting of `indexing/embedded/writer.py`"},
    "docs/encoders.md": {"10 to 25 minutes": "by `make encoders`"},
    "docs/servers.md": {
        "2.2 times smaller": "BM25 of Lucene's two forms", "30 GB or per 10 million": "a rule", "20 to 40 GB": "a rule",
        "1 GB, and 1 GB for each 20 shards": "a rule", "up to 63 times": "a limit", "512 times its weight": "a base",
        "at most 8 MB": "a limit", "a heap of 2 GB": "a setting",
    },
    "docs/sizing.md": {
        "4 GB of heap": "a setting",
        "reads 128 KB ahead": "a setting", "each 30 GB or 10 million": "a rule", "64 GB of memory": "an assumption",
    },
}  # fmt: skip
NUMBER = r"(?<![\w.-])\d[\d.,]*"
UNIT = r"(?:(?:ms|milliseconds?|[kMG]B|KB|s|seconds?|minutes?|hours?|points?|times)\b|%)"


def unmarked(page: Path, bench: SimpleNamespace) -> str:
    """What of a page is not made of rows, nor code, nor the target of a link."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    return re.sub(r"\]\([^)]*\)", "]", bench.docs.MARKED.sub("", text))


def test_tables_with_figures_are_made_of_rows(bench: SimpleNamespace) -> None:
    found: dict[str, set[str]] = {}
    for page in bench.docs.pages(ROOT):
        for table in re.findall(r"(?:^\|.*\n?)+", unmarked(page, bench), re.M):
            first, _, *lines = table.splitlines()
            if any(re.search(NUMBER, re.sub("`[^`]*`", "", line)) for line in lines):
                found.setdefault(page.relative_to(ROOT).as_posix(), set()).add(first.split("|")[1].strip())
    assert found == {page: set(tables) for page, tables in TABLES.items()}


def test_figures_with_units_are_of_rows_or_say_of_what(bench: SimpleNamespace) -> None:
    for page in bench.docs.pages(ROOT):
        text = " ".join(re.sub(r"^\|.*$", "", unmarked(page, bench), flags=re.M).split())
        for told in SENTENCES.get(page.relative_to(ROOT).as_posix(), ()):
            assert told in text, f"{page.name}: {told!r} is exempt and no longer there"
            text = text.replace(told, "")
        left = re.findall(rf".{{30}}{NUMBER} {UNIT}.{{20}}", re.sub("`[^`]*`", "", text))
        assert not left, (page.name, left)
