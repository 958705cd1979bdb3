"""One index loaded by several processes, each its part: the last one publishes, and the part of a
dead one is taken over by the same command."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from boc import plugins
from boc.codecs import SurrogateCodec
from boc.errors import BackendError
from boc.inputs.features import FeatureFile
from boc.manage import load as load_module
from boc.manage.load import load_index
from boc.types import Rows
from indexing.server.aliases import indices_of
from indexing.server.parts import CLAIM, forget, reserve, share_code
from tests.fault_proxy import Proxy
from tests.indexing.server.test_faults import (
    ON_EACH,
    SMALL,
    Made,
    Place,
    Watcher,
    fails,
    finish,
    holds_exactly,
    make,
    placed,
    run,
    start,
)

PARTS = 3


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make(tmp_path_factory.mktemp("old"), 1, 40)


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make(tmp_path_factory.mktemp("new"), 2, 3000)


@pytest.fixture
def place(server: Any, old: Made, request: pytest.FixtureRequest) -> Iterator[Place]:
    name = f"parts-{abs(hash(request.node.name))}"
    with placed(server, name, old, SMALL) as found:
        yield found


def part(place: Place, made: Made, number: int) -> tuple[object, ...]:
    return (*place.command(made), "--shard", f"{number}/{PARTS}")


@ON_EACH
def test_concurrent_parts(place: Place, old: Made, new: Made) -> None:
    processes = [start(*part(place, new, number)) for number in range(1, PARTS + 1)]
    said = [finish(process) for process in processes]
    assert [code for code, _ in said] == [0] * PARTS, said
    assert sum("the index appears when all parts are" in text for _, text in said) == PARTS - 1
    holds_exactly(place.direct, place.name, new)
    assert not [
        each
        for each in place.server.request("GET", f"{place.name}-boc-*")
        if each.endswith("-code")
    ]


@ON_EACH
def test_part_of_a_dead_process(place: Place, old: Made, new: Made) -> None:
    """It is killed amid its rows, and the others do not publish without it."""
    first = place.proxy.count["bulk"]
    process = start(*part(place, new, 2))

    def kill(number: int, path: str) -> None:
        if place.proxy.count["bulk"] >= first + 4:
            process.kill()

    place.proxy.after = kill
    code, _ = finish(process)
    place.proxy.after = lambda number, path: None
    assert code == -signal.SIGKILL
    for number in (1, 3):
        run(*part(place, new, number))
        assert Watcher(place.direct, place.name, old, new).look() == "old"
    run(*part(place, new, 2))
    holds_exactly(place.direct, place.name, new)
    assert "is up to date" in finish(start(*part(place, new, 1)))[1]


@ON_EACH
def test_publication_after_a_kill(place: Place, old: Made, new: Made) -> None:
    for number in (1, 2):
        run(*part(place, new, number))
    process = start(*part(place, new, 3))

    def kill(number: int, path: str) -> None:
        if path.endswith("/_forcemerge?max_num_segments=1"):
            process.kill()

    place.proxy.before = kill
    code, _ = finish(process)
    place.proxy.before = lambda number, path: None
    assert code == -signal.SIGKILL
    assert Watcher(place.direct, place.name, old, new).look() == "old"
    run(*part(place, new, 1))
    holds_exactly(place.direct, place.name, new)
    assert CLAIM not in {item.id for item in new.index.items()}


def load(at: str, name: str, made: Made, number: int) -> None:
    """One of two parts of what ``made`` holds, loaded by this process."""
    ids = [item.id for item in made.index.items()][number - 1 :: 2]
    with plugins.backend(at).create_part(
        name,
        made.index.manifest,
        made.index.arrays(),
        f"{number}/2",
    ) as writer:
        if not writer.has(ids):
            writer.add(Rows(made.index.find(ids), made.index.terms(ids), made.index.vectors(ids)))
        writer.commit()


@ON_EACH
def test_parts_share_a_generation(place: Place, old: Made) -> None:
    """The other part is loaded in whole before each request that the first sends until it has made
    the generation."""
    backend = plugins.backend(place.direct)
    name = f"{place.name}-two"
    for number in count(1):
        paths: list[str] = []

        def before(_: int, path: str, number: int = number, paths: list[str] = paths) -> None:
            paths.append(path)
            if len(paths) == number:
                load(place.direct, name, old, 2)

        with Proxy(place.server.url, before=before) as proxy:
            load(place.at.replace(place.proxy.url, proxy.url), name, old, 1)
        assert set(backend.open(name).items()) == set(old.index.items())
        backend.remove(name)
        if f"/{name}-boc-" in paths[number - 1] and "*" not in paths[number - 1]:
            break
    assert number > 3


@ON_EACH
def test_lost_answer_to_a_claim(place: Place, old: Made) -> None:
    lost = []

    def lose(number: int, path: str) -> None:
        if CLAIM in path and not lost:
            lost.append(path)
            raise ConnectionResetError

    load(place.direct, f"{place.name}-two", old, 1)
    place.proxy.after = lose
    with Proxy(place.server.url, after=lose) as other:
        load(f"{place.at},{other.url.removeprefix('http://')}", f"{place.name}-two", old, 2)
    assert lost
    holds = plugins.backend(place.direct).open(f"{place.name}-two")
    assert set(holds.items()) == set(old.index.items())


class Written:
    """A writer that keeps the ids that it is given."""

    def __init__(self) -> None:
        self.ids: list[str] = []

    def __enter__(self) -> Written:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def has(self, ids: list[str]) -> bool:
        return False

    def add(self, rows: Rows) -> None:
        self.ids += [item.id for item in rows.items]

    def commit(self) -> None:
        return


@pytest.mark.slow
@pytest.mark.parametrize("parts", [1, 2, 3, 50])
def test_part_reads_its_batches(old: Made, parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    batch = FeatureFile.batch

    def counted(self: FeatureFile, *given: Any, **options: Any) -> Any:
        read.append(len(found := batch(self, *given, **options)))
        return found

    monkeypatch.setattr(load_module, "BATCH", 7)
    monkeypatch.setattr(FeatureFile, "batch", counted)
    found: list[str] = []
    manifest = old.index.manifest
    codec = SurrogateCodec.restore(old.index.manifest.codec, old.index.arrays())
    for number in range(1, parts + 1):
        writer = Written()
        kept = SimpleNamespace(create_part=lambda *given, writer=writer: writer)
        monkeypatch.setattr(plugins, "backend", lambda at, kept=kept: kept)
        read.clear()
        with FeatureFile(old.path) as file:
            done = list(
                load_index(file, "anywhere", "photos", codec, manifest, part=f"{number}/{parts}"),
            )
        assert done[-1] == sum(manifest.items.values())
        assert sum(read) == len(writer.ids)
        found += writer.ids
    assert sorted(found) == sorted(item.id for item in old.index.items())


CODE = {"steps": [], "n_terms": 3}
KEY = "0123456789ab"


def arrays() -> dict[str, NDArray[Any]]:
    return {
        "0.mean_": np.arange(6, dtype=np.float32).reshape(2, 3),
        "1.ids_": np.zeros(0, np.int64),
    }


@ON_EACH
def test_code_is_learned_once(place: Place) -> None:
    backend = plugins.backend(place.direct)
    learned = []
    found: list[Any] = []

    def learn() -> Any:
        learned.append(1)
        time.sleep(1)
        return CODE, arrays()

    threads = [
        Thread(target=lambda: found.append(backend.learn_once(place.name, KEY, learn)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert learned == [1]
    assert [config for config, _ in found] == [CODE] * 4
    for _, each in found:
        assert {name: values.tolist() for name, values in each.items()} == {
            n: v.tolist() for n, v in arrays().items()
        }
        assert {name: values.dtype for name, values in each.items()} == {
            n: v.dtype for n, v in arrays().items()
        }
    forget(backend.transport, place.name)
    assert not indices_of(backend.transport, f"{place.name}-boc-{KEY}-code")


@ON_EACH
def test_learning_after_a_failure(place: Place) -> None:
    backend = plugins.backend(place.direct)

    def learned(learn: Any) -> Any:
        return share_code(
            backend.transport,
            backend.address,
            place.name,
            KEY,
            learn,
            beat=0.2,
            dead=4.0,
        )[0]

    assert reserve(backend.transport, f"{place.name}-boc-{KEY}-code")  # and dies
    assert learned(lambda: (CODE, arrays())) == CODE
    forget(backend.transport, place.name)

    def fail() -> Any:
        raise BackendError("no memory")

    with pytest.raises(BackendError, match="no memory"):
        learned(fail)
    assert not indices_of(backend.transport, f"{place.name}-boc-{KEY}-code")

    begun = Event()

    def slow() -> Any:
        begun.set()
        time.sleep(6)  # longer than the other waits without signs of life
        return CODE, arrays()

    first = Thread(target=lambda: learned(slow))
    first.start()
    assert begun.wait(60)
    assert learned(fail) == CODE
    first.join()
    forget(backend.transport, place.name)


@pytest.mark.parametrize("text", ["", "3", "0/3", "4/3", "1/0", "a/b", "1/2/3", "-1/3"])
def test_wrong_part_is_refused(tmp_path: Path, text: str) -> None:
    """Neither the file nor a server is looked at."""
    line = fails(
        "index",
        "photos",
        tmp_path / "none.h5",
        "--shard",
        text,
        "--at",
        "elastic+http://127.0.0.1:1",
    )
    assert line == f"Error: {text!r} is no shard; write I/N with I from 1 to N, for example 3/16"
