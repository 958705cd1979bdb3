"""The comparison of the embedded engine with other libraries, and its growth, run on tiny random data."""

from __future__ import annotations

import csv
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

BENCH = Path(__file__).resolve().parent.parent / "bench"
DRAWN = ("--dim", "16", "--asked", "20", "--rounds", "2", "--threads", "1")


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, ModuleType]:
    """Those of the data and of the engines, which lie beside the scripts."""
    monkeypatch.syspath_prepend(BENCH)
    import embedded_data
    import embedded_engines

    return embedded_data, embedded_engines


def test_every_engine_is_built_once_and_finds_the_exact_top_ten_at_its_widest_setting(
    modules: tuple[ModuleType, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for library in ("faiss", "tantivy", "usearch"):  # faiss crashes in index_factory if usearch was there first
        pytest.importorskip(library)
    of_data, engines = modules
    data = of_data.Data(tmp_path, *of_data.synthetic(tmp_path, 300, 16, 10, 0), None, 0)
    queries, top = data.asked[0], data.top[0]
    cosines = queries.astype(np.float64) @ data.stored.astype(np.float64).T
    assert top == [set(row) for row in np.argsort(-cosines, axis=1)[:, :10].tolist()]
    names = [name + " bits:16" * issubclass(engine, engines.Coded) for name, engine in engines.ENGINES.items()]
    tasks = []

    def here(_: object, threads: int, task: Callable[..., float], *arguments: object) -> tuple[float, int]:
        tasks.append(task)
        return task(*arguments), 1

    monkeypatch.setattr(engines, "child", here)
    for _ in range(2):
        facts = {name: engines.built(data, name, 1) for name in names}
        assert tasks == [engines.fit, *(engine.build for engine in engines.ENGINES.values())]
    for name in names:
        assert facts[name]["build"] > 0
        assert facts[name]["disk"] >= 2 * 300 * 16  # float16 vectors at the least
        engine = engines.opened(data, name)
        engine.choose(engine.grid[-1])
        found = [set(engine.rows(engine.ask(queries[i : i + 1]))) for i in range(len(queries))]
        assert np.mean([len(rows & best) for rows, best in zip(found, top, strict=True)]) >= 9, name
        assert len(engine.batch(queries, 2)) in (2, len(queries))  # those of faiss are scores and rows


def test_another_process_gets_the_paths_of_the_data_and_no_copy_of_its_vectors(
    modules: tuple[ModuleType, ModuleType], tmp_path: Path
) -> None:
    of_data, _ = modules
    data = of_data.Data(tmp_path, *of_data.synthetic(tmp_path, 300, 16, 10, 0), None, 0)
    fresh = pickle.dumps(data)
    assert data.halves is data.stored
    assert len(data.rows) == 300
    assert pickle.dumps(data) == fresh
    there = pickle.loads(fresh)  # noqa: S301
    assert there == data
    np.testing.assert_array_equal(there.halves, data.halves)


def run(script: str, *arguments: object) -> tuple[list[dict[str, str]], list[str]]:
    """The rows that a script prints, and its remarks."""
    command = [sys.executable, BENCH / script, *arguments, *DRAWN]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    return rows, [line for line in lines if line.startswith("#")]


@pytest.mark.slow
def test_ours_and_another_are_compared(tmp_path: Path) -> None:
    names = ("boc bits:16", "flat")
    chosen = [part for name in names for part in ("--index", name)]
    rows, remarks = run("embedded.py", "--synthetic", 200, "--work", tmp_path, "--starts", 1, *chosen)
    assert {row["index"] for row in rows} == set(names)
    for name in names:
        best = max((row for row in rows if row["index"] == name), key=lambda row: float(row["validation"]))
        assert float(best["recall"]) > 0.9, best
        assert float(best["p50_least"]) <= float(best["p50_ms"]) <= float(best["p95_most"])
    assert {row["index"] for row in rows if row["anon_mb"]} == set(names)
    (compared,) = [line for line in remarks if " at 0.95: " in line]
    assert compared.split(" / ")[1].startswith("flat (-, 1.000)")
    assert sum(line.startswith("# kernel: boc bits:16") for line in remarks) == 1
    assert sum(line.startswith("# cold start: ") for line in remarks) == 1


@pytest.mark.slow
def test_growth_holds_the_recall_and_fits_exponents(tmp_path: Path) -> None:
    sizes = ("--n", 100, "--n", 400)
    rows, remarks = run("embedded_growth.py", "--work", tmp_path, "--recall", 0.9, "--code", "bits:16", *sizes)
    assert [row["n"] for row in rows] == ["100", "400"]
    assert all(float(row["validation"]) >= 0.9 for row in rows)
    grows = {line.split()[1]: float(line.split("n^")[1].split()[0]) for line in remarks if " grows as " in line}
    assert 0.2 < grows["disk_mb"] < 1.2
