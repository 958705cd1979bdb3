"""The race on miniatures whose answers and bytes are known beforehand, and on tiny random data."""

import csv
import io
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.race import engines, ratios, timing
from bench.race.codes import fit
from bench.race.data import Data, synthetic
from bench.race.engine import Engine
from bench.race.race import HEAD
from bench.race.servers import SCHEMES
from bench.report.rows import Rows, Writer, read
from boc import plugins
from boc.types import Batch, Embeddings, Item
from boc.vectors import Floats, Ints
from tests.bench.scripts import run_rows, run_script
from tests.oracles import write_features
from tests.servers.fixtures import kinds

GROUPS = 100
MEMBERS = 10


def miniature() -> tuple[Floats, Floats]:
    """1,000 documents, ten around each of 100 directions, and the first 40 directions as queries.

    Document 10 g + m is e_g + 0.3 e_(g + m + 1) at unit length: its cosine with query g is 1 /
    sqrt(1.09) = .958, that of any other document at most 0.3 / sqrt(1.09) = .287. So the exact top
    ten of query g are rows 10 g to 10 g + 9.
    """
    axes = np.eye(GROUPS, dtype=np.float32)
    rows = [
        axes[g] + np.float32(0.3) * axes[(g + m + 1) % GROUPS]
        for g in range(GROUPS)
        for m in range(MEMBERS)
    ]
    gallery = np.stack(rows) / np.float32(1.09**0.5)
    return gallery, axes[:40]


def write(path: Path, vectors: Floats, modality: Any = "text") -> None:
    """Sentences, or pictures, with these vectors."""
    items = [
        Item(
            f"{i:04d}",
            modality,
            f"sentence number {i}",
            f"{i:04d}",
        )
        for i in range(len(vectors))
    ]
    write_features(
        path,
        Batch(items, Embeddings(modality, vectors)),
        spec="mini",
    )


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Feature files of the miniature: gallery and queries."""
    gallery, queries = miniature()
    write(tmp_path / "gallery.h5", gallery)
    write(tmp_path / "queries.h5", queries)
    return tmp_path / "gallery.h5", tmp_path / "queries.h5"


def run(folder: Path, script: str, arguments: str) -> Rows:
    """The rows that a script prints, kept in ``folder``/rows.csv; they are all there."""
    result = run_script(script, arguments)
    assert result.returncode == 0, result.stderr
    path = folder / "rows.csv"
    path.write_text(
        result.stdout,
        encoding="utf-8",
    )
    found = read(path)
    assert found.is_complete
    return found


def test_exact_answers_of_the_miniature(
    files: tuple[Path, Path],
    tmp_path: Path,
):
    data = Data(tmp_path, *files, None, None, 0)
    expected = [set(range(10 * g, 10 * g + 10)) for g in range(40)]
    assert data.top == (expected[::2], expected[1::2])  # every other query chooses settings
    rows = np.array([sorted(rows) for rows in expected])[:, ::-1]
    np.save(tmp_path / "given.npy", rows)
    (tmp_path / "other").mkdir()
    assert (
        Data(
            tmp_path / "other",
            *files,
            None,
            None,
            0,
            tmp_path / "given.npy",
        ).top
        == data.top
    )


@pytest.mark.slow
def test_rows_of_the_miniature(
    files: tuple[Path, Path],
    tmp_path: Path,
):
    work = tmp_path / "work"
    result = run(
        tmp_path,
        "race.py",
        f"{files[0]} {files[1]} --work {work} --terms 100 --rounds 3 --threads 1 "
        "--index 'boc dictionary:2' --index 'boc dictionary:2 int8' --index flat --index hnsw32",
    )
    assert result.columns == HEAD
    settings = {
        "gallery": "gallery.h5",
        "items": 1000,
        "dim": 100,
        "queries": 20,
        "chosen_by": 20,
        "rounds": 3,
    }
    assert settings.items() <= result.head["settings"].items()
    libraries = ("faiss Flat", "faiss HNSW32")
    by_name = {
        kind: [r for r in result.table if f"{r['engine']} {r['index']}" == kind]
        for kind in (
            "boc dictionary:2",
            "boc dictionary:2 int8",
            *libraries,
        )
    }
    assert sum(map(len, by_name.values())) == len(result.table)
    ours, narrow, exact, graph = by_name.values()
    (only,) = exact
    assert (only["setting"], only["at"], only["ours"]) == ("-", "0.90 0.95 0.98 0.99", "0")
    assert (only["recall"], only["validation"]) == ("1.0000", "1.0000")
    # 1,000 vectors of 100 float32, and nothing else
    assert (
        only["disk_mb"],
        only["vectors_mb"],
        only["million_disk_gb"],
    ) == (
        "0.400",
        "0.400",
        "0.4000",
    )
    assert (only["fit_s"], only["encode_s"]) == ("0.00", "0.00")
    assert all(row["vectors_mb"] == "0.400" for row in graph)
    assert all(
        float(row["index_mb"]) > 1000 * 64 * 4 / 1e6 for row in graph
    )  # 64 neighbours of 4 bytes a node
    # Queries are nearest to the centroids of their own group's ten, and 50 candidates hold all of
    # them.
    assert all(row["recall"] == "1.0000" for row in ours if float(row["validation"]) == 1)
    assert {row["ours"] for row in ours + narrow} == {"1"}
    for row in ours:
        parts = [float(row[name]) for name in ("index_mb", "vectors_mb", "codec_mb", "rest_mb")]
        assert float(row["disk_mb"]) == pytest.approx(sum(parts), abs=0.002)
        # 2,000 postings of two bytes and one, 101 starts of four; float16, and compact codes of two
        # bits, with a scale; 100 centroids in bytes, scales, a mean
        assert parts[:3] == [0.007, 0.229, 0.011]
    # A byte per component, a scale of four, and compact codes.
    assert {row["vectors_mb"] for row in narrow} == {"0.133"}
    for row in result.table:
        rounds = [float(part) for part in row["p50_rounds"].split()]
        assert len(rounds) == 3
        assert float(row["p50_least"]) == pytest.approx(min(rounds), abs=0.001)
        assert float(row["p50_least"]) <= float(row["p50_ms"]) <= float(row["p50_most"])
        assert bool(row["at"]) == bool(row["qps_1"]) == bool(row["anon_mb"])
    table = run(
        work,
        "ratios.py",
        f"{tmp_path}/rows.csv",
    ).table
    assert {row["ours"] for row in table} == {"boc dictionary:2", "boc dictionary:2 int8"}
    assert {row["theirs"] for row in table} == {*libraries}


class ExactTop(Engine):
    """Answers with the first rows of the exact top ten, as many as its setting says."""

    library = "some"
    kind = "graph"
    knobs = ("rows",)
    grid = ((2,), (5,), (10,))

    def __init__(self, top: dict[bytes, list[int]]) -> None:
        self.top = top
        self.query_count = 0
        self.chosen: list[tuple[int, ...]] = []

    def choose(self, setting: tuple[int, ...]) -> None:
        (self.count,) = setting
        self.chosen.append(setting)

    def ask(self, query: Floats) -> Ints:
        self.query_count += 1
        return np.array(self.top[query.tobytes()][: self.count])


@pytest.mark.slow
def test_every_round_times_all_queries_in_turns(
    files: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch,
):
    monkeypatch.setattr(timing, "CLEAR", 0.0)  # no setting beats another by time
    data = Data(tmp_path, *files, None, None, 0)
    engine = ExactTop(
        {q[None].tobytes(): list(range(10 * g, 10 * g + 10)) for g, q in enumerate(miniature()[1])},
    )
    variants = timing.variants_of(
        data,
        "some graph",
        engine,
    )
    assert [v.setting for v in variants] == [(2,), (5,), (10,)]
    assert [v.validation for v in variants] == pytest.approx([0.2, 0.5, 1.0])
    assert engine.chosen == timing.PASSES * [
        *engine.grid,
    ]  # in turns, so that none pays alone for warming up
    engine.query_count = 0
    engine.chosen = []
    monkeypatch.setattr(timing, "WARM", 5)
    monkeypatch.setattr(timing, "PART", 8)
    timing.measure(variants, data, 4, seed=0)
    # In each round all queries, and five before each of three parts; then all for the recall.
    assert engine.query_count == 3 * (4 * (20 + 3 * 5) + 20)
    turns = [set(engine.chosen[i : i + 3]) for i in range(0, len(engine.chosen), 3)]
    assert turns == (4 * 3 + 1) * [
        set(engine.grid),
    ]  # each part is answered at all settings before the next
    assert [v.recall for v in variants] == pytest.approx([0.2, 0.5, 1.0])
    assert all(v.times.shape == (4, 20) and (v.times > 0).all() for v in variants)
    assert [v.label for v in variants] == ["rows=2", "rows=5", "rows=10"]


def test_fastest_setting_at_each_recall():
    def variant(validation, *rounds):
        return timing.Variant(
            "x",
            None,
            (),
            validation,
            times=np.array(rounds)[:, None],
        )

    slow = variant(0.99, 3, 4, 5)
    quick = variant(0.96, 1, 9, 2)
    low = variant(0.91, 1, 1, 1)
    at = timing.best_at(
        {
            "one": [slow, quick, low],
            "other": [variant(0.5, 0, 0, 0)],
        },
    )
    assert at == {
        id(low): [0.90],
        id(quick): [0.95],
        id(slow): [0.98, 0.99],
    }


RACE = """\
engine,index,setting,ours,at,recall,p50_rounds,qps_1_rounds,qps_2_rounds
boc,bits:64,z=32,1,0.90 0.95,0.96,2 3 8,10 20 30,
faiss,HNSW32,ef=16,0,0.95 0.98,0.95,1 1 2,20 10 30,
elasticsearch-9,bits:64,,1,0.98,,,,
"""
COSTS = """\
fit_s,encode_s,build_s,cpu_s,disk_mb,vectors_mb,anon_mb,file_mb
6,2,1,4,10,8,0,10
0,0,12,16,20,16,20,5
,,,,,,,
"""
TABLES = (csv.DictReader(text.splitlines()) for text in (RACE, COSTS))
OURS, THEIRS, SERVER = (row | costs for row, costs in zip(*TABLES, strict=True))


def test_ratios_round_by_round():
    ((recall, one, other),) = ratios.pairs([OURS, THEIRS])
    cells = dict(
        zip(
            ratios.HEAD[1:],
            ratios.compare(recall, one, other),
            strict=True,
        ),
    )
    expected = """\
at=0.95
ours=boc bits:64
setting=z=32
recall=0.96
theirs=faiss HNSW32
their_setting=ef=16
their_recall=0.95
p50=3.000
p50_least=2.000
p50_most=4.000
p50_verdict=theirs
qps_1=1.000
qps_1_least=0.500
qps_1_most=2.000
qps_1_verdict=even
qps_2=
qps_2_least=
qps_2_most=
qps_2_verdict=
build=0.250
with_fit=0.750
cpu=0.250
disk=0.500
without_vectors=0.100
anon=0.000
anon_file=0.400"""
    assert [f"{name}={cell}" for name, cell in cells.items()] == expected.splitlines()


def test_pairs_reach_the_same_recall():
    table = [OURS, THEIRS, SERVER]
    pairs = [(at, one["engine"], other["engine"]) for at, one, other in ratios.pairs(table)]
    assert pairs == [
        ("0.95", "boc", "faiss"),
        ("0.98", "elasticsearch-9", "faiss"),
    ]


@pytest.mark.slow
def test_unfinished_rows_are_refused(tmp_path: Path):
    with Writer(
        out := io.StringIO(),
        "race.py",
        {},
        HEAD,
    ):
        pass
    text = out.getvalue()
    (tmp_path / "cut.csv").write_text(text[: text.index("# done")])
    result = run_script("ratios.py", f"{tmp_path}/cut.csv")
    assert result.returncode == 2
    assert "cut.csv: incomplete rows of a race" in result.stderr


@pytest.mark.slow
def test_every_engine_builds_once_and_is_exact_at_its_widest(
    tmp_path: Path,
    monkeypatch,
):
    # faiss crashes in index_factory if usearch was there first.
    pytest.importorskip("faiss")
    pytest.importorskip("usearch")
    modules = {
        "scann": "scann",
        "symphonyqg": "rabitqlib",
    }
    raced = {
        name: each
        for name, each in engines.ENGINES.items()
        if name not in modules or find_spec(modules[name])
    }
    data = Data(
        tmp_path,
        *synthetic(tmp_path, 300, 64, 10, 0),
        None,
        0,
    )
    queries = data.query_sets[0]
    top = data.top[0]
    cosines = queries.astype(np.float64) @ data.vectors.astype(np.float64).T
    assert top == [set(row) for row in np.argsort(-cosines, axis=1)[:, :10].tolist()]
    names = ["boc bits:16" if name == "boc" else name for name in raced]
    tasks = []

    def here(
        _,
        threads,
        task,
        *arguments,
    ):
        tasks.append(task)
        task(*arguments)
        return {"seconds": 1.0, "cpu": 2.0, "peak": 1.0}

    monkeypatch.setattr("bench.race.engine.child", here)
    for _ in range(2):
        facts = {name: engines.build(data, name, 1) for name in names}
        assert tasks == [
            fit,
            *(each.build for each in raced.values()),
        ]
    for name in names:
        assert facts[name].cpu == 2 + 2 * name.endswith("bits:16")  # of the code, and of the index
        assert facts[name].sizes["vectors"] >= 2 * 300 * 64  # float16 at the least
        assert facts[name].disk == sum(facts[name].sizes.values())
        assert all(size >= 0 for size in facts[name].sizes.values()), name
        engine = engines.open_engine(data, name)
        engine.choose(engine.grid[-1])
        answers = [set(engine.rows(engine.ask(queries[i : i + 1]))) for i in range(len(queries))]
        assert np.mean([len(rows & best) for rows, best in zip(answers, top, strict=True)]) >= 9, (
            name
        )
        assert len(engine.batch(queries, 2)) in (
            2,
            len(queries),
        )  # those of faiss are scores and rows


ON_SERVERS = {
    "elasticsearch": (("dictionary:2", "bits:48", "scalar:48"), ("hnsw", "int8_hnsw")),
    "opensearch": (("dictionary:2",), ()),
}
"""Codes and types of graphs, by the engine that has them."""


@pytest.mark.parametrize("server", kinds("elasticsearch-9", "opensearch-3"), indirect=True)
def test_server_race_of_codes_and_graphs(
    server: Any,
    files: tuple[Path, Path],
    tmp_path: Path,
):
    codes, graphs = ON_SERVERS[server.kind.engine]
    scheme = SCHEMES[server.kind.engine]
    at = f"{scheme}+{server.url}"
    missing = () if graphs else ("fp32",)
    options = " ".join(f"--index '{scheme} {name}'" for name in (*codes, *graphs, *missing))
    result = run(
        tmp_path,
        "race.py",
        f"{files[0]} {files[1]} --work {tmp_path}/work --server {at} --terms 100 --rounds 2 "
        f"--limit 2000 {options}",
    )
    assert result.head["settings"]["items"] == 1000
    assert {row["index"] for row in result.table} == {*codes, *graphs}
    assert {(row["engine"], row["ours"]) for row in result.table} == {
        (scheme, "1"),
        *([(scheme, "0")] if graphs else []),
    }
    for row in result.table:
        assert float(row["took_ms"]) >= 0
        assert float(row["disk_mb"]) == pytest.approx(
            sum(float(row[f"{part}_mb"]) for part in ("index", "vectors", "codec", "rest")),
            abs=0.003,
        )
    best = {row["index"]: row for row in result.table if row["at"]}
    assert set(best) == {*codes, *graphs}
    assert all(
        row["recall"] == "1.0000" for row in best.values()
    )  # 300 candidates, of which ten are far nearer
    assert all(best[graph]["vectors_mb"] == "0.400" for graph in graphs)  # 1,000 of 100 float32
    assert not any(name.startswith("boc-bench") for name in plugins.backend(at).names())


@pytest.mark.slow
def test_filtered_rows(files: tuple[Path, Path], tmp_path: Path):
    from bench.race.filtered import Filters, exact

    data = Data(tmp_path, *files, None, None, 0)
    filters = Filters.of(data)
    queries = data.query_sets[0]
    assert filters.rows("draw<50").size == 50
    for name, conditions in filters.conditions(queries, [0.005, 0.5]):
        top = exact(data, queries, conditions, filters)
        for query, condition, best in zip(queries, conditions, top, strict=True):
            rows = filters.rows(condition)
            scores = data.vectors[rows] @ query
            assert len(best) == min(10, len(rows)), name
            assert sorted(data.vectors[list(best)] @ query) == pytest.approx(np.sort(scores)[-10:])
    options = f"--work {tmp_path}/race --share 0.02 --queries 9 --rounds 1"
    rows = run_rows("filtered.py", f"{files[0]} {files[1]} {options}")
    assert [row["index"] for row in rows] == ["boc", "hnsw32", "ivf-sq8"] * 5
    assert all(row["few"] == "0.0000" for row in rows if row["index"] == "boc")
