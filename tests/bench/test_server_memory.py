"""A server with less memory than its vectors: what is chosen, how memory is held, and the rows of a tiny run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.servers.fixtures import kinds

SCHEMES = {"elasticsearch": "elastic", "opensearch": "opensearch"}
TOUCH = """
import mmap, sys
with open(sys.argv[1], "rb") as file:
    mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
sum(mapped[::4096])
print("touched", flush=True)
input()
"""


@pytest.fixture
def bench() -> SimpleNamespace:
    from bench.race import data, servers
    from bench.speed import memory_group, server_memory

    return SimpleNamespace(data=data, servers=servers, memory=memory_group, script=server_memory)


@pytest.fixture
def group(bench: SimpleNamespace) -> Iterator[Any]:
    try:
        made = bench.memory.Group(bench.memory.ROOM)
    except OSError as error:
        pytest.skip(f"no control group of memory here: {error}")
    with made:
        yield made


@pytest.mark.slow
def test_a_group_is_held_with_the_files_that_it_reads_and_forgets_them(group: Any, tmp_path: Path) -> None:
    from bench.speed.memory_group import ROOM, drop_cache

    size, limit = 64 << 20, 40 << 20
    path = tmp_path / "file"
    path.write_bytes(bytes(size))
    for most in (ROOM, limit):
        drop_cache(path)
        group.limit(most)
        command = [*group.inside, sys.executable, "-c", TOUCH, str(path)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"touched\n"
            own, cached = group.parts()
            assert cached >= size // 2 if most == ROOM else own + cached <= limit
            group.forget()
            assert group.parts()[1] < cached
            process.communicate(b"\n")


def test_what_the_disk_read_is_counted_and_read_ahead_comes_back(bench: SimpleNamespace, tmp_path: Path) -> None:
    before = bench.memory.reads_of(tmp_path)
    if before is None:
        pytest.skip("the folder is on no single disk")
    after = bench.memory.reads_of(tmp_path) - before
    assert after.requests >= 0
    assert after.size >= 0
    with bench.memory.read_ahead(tmp_path, None) as ahead:
        assert ahead is None or ahead >= 0


class Graded:
    """An engine whose recall is known: that of a search grows with candidates, and with terms up to a border."""

    knobs = ("ef",)

    def __init__(self, best: float) -> None:
        self.best, self.asked = best, []

    def choose(self, setting: Sequence[int]) -> None:
        self.reached = min(self.best, setting[-1] / 100)
        self.asked.append(tuple(setting))


@pytest.mark.parametrize(("best", "recall", "setting"), [(1, 0.95, (100,)), (1, 0.1, (10,)), (0.6, 0.95, (1000,))])
def test_the_fewest_candidates_that_reach_the_recall_are_chosen(
    bench: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, best: float, recall: float, setting: tuple[int, ...]
) -> None:
    monkeypatch.setattr(bench.script, "recall_of", lambda engine, *_: engine.reached)
    engine = Graded(best)
    data = SimpleNamespace(asked=(None, None), top=(None, None), shape=(10**6, 8))
    assert bench.script.chosen(engine, data, recall) == setting
    assert len(engine.asked) <= 1 + np.ceil(np.log2(len(bench.script.EFS)))


@pytest.mark.servers
@pytest.mark.parametrize("server", kinds("elasticsearch-9"), indirect=True)
def test_indexes_are_loaded_once_and_searched_cold_and_warm(
    bench: SimpleNamespace, server: Any, group: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = bench.servers.Server(server.kind.name, f"{SCHEMES[server.kind.engine]}+{server.url}")
    started = []

    @contextmanager
    def there(place: Any, heap: str, settings: Any, under: Sequence[str] = ()) -> Iterator[Any]:
        started.append(heap)
        yield running

    monkeypatch.setattr(bench.script.Place, "server", there)
    monkeypatch.setattr(bench.script, "Group", lambda limit: _kept(group))
    files = bench.data.synthetic(tmp_path, 500, 64, 20, 0)
    data = bench.data.Data(tmp_path, *files, 50, 0)
    try:
        for index in ("dictionary:2 text binary term niofs", "bbq_hnsw"):
            place = bench.script.Place(tmp_path, server.kind.name, index)
            for _ in range(2):
                facts = bench.script.loaded(place, data, "4g", 1)
                found = bench.script.measured(place, data, "1g", 0.8, (0.5,))
            rows = list(bench.script.lines(place, facts, found))
            assert [row[1:3] for row in rows] == [["all", "cold"], ["all", "warm"], ["0.5", "cold"], ["0.5", "warm"]]
            assert {len(row) for row in rows} == {len(bench.script.HEAD)}
            assert len({row[4] for row in rows}) == 1  # memory changes no answer
        assert started == ["4g", "1g"] * 2
    finally:
        running.clear()


@contextmanager
def _kept(group: Any) -> Iterator[Any]:
    yield group
