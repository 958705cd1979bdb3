"""One index loaded by several processes, each its part: the last one publishes, and the part of a dead one is taken
over by the same command."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from boc import plugins
from boc.errors import BackendError
from indexing.server.part_writer import CLAIM, check_part
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
def test_parts_loaded_at_once_are_the_index(place: Place, old: Made, new: Made) -> None:
    processes = [start(*part(place, new, number)) for number in range(1, PARTS + 1)]
    said = [finish(process) for process in processes]
    assert [code for code, _ in said] == [0] * PARTS, said
    assert sum("the index appears when all parts are" in text for _, text in said) == PARTS - 1
    holds_exactly(place.direct, place.name, new)


@ON_EACH
def test_the_part_of_a_dead_process_is_taken_over(place: Place, old: Made, new: Made) -> None:
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
def test_who_loads_a_complete_part_again_publishes_for_one_that_died(place: Place, old: Made, new: Made) -> None:
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
    with plugins.backend(at).create_part(name, made.index.manifest, made.index.arrays(), f"{number}/2") as writer:
        if not writer.has(ids):
            writer.add(made.index.find(ids), made.index.terms(ids), made.index.vectors(ids))
        writer.commit()


@ON_EACH
def test_parts_that_begin_at_once_load_one_generation(place: Place, old: Made) -> None:
    """The other part is loaded in whole before each request that the first sends until it has made the generation."""
    backend, name = plugins.backend(place.direct), f"{place.name}-two"
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
def test_the_host_that_is_asked_next_knows_a_claim_whose_answer_was_lost(place: Place, old: Made) -> None:
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


@pytest.mark.parametrize("text", ["", "3", "0/3", "4/3", "1/0", "a/b", "1/2/3", "-1/3"])
def test_what_is_no_part_is_refused(text: str) -> None:
    with pytest.raises(BackendError, match="is no part; write I/N"):
        check_part(text)
    assert check_part("3/16") == (3, 16)


@pytest.mark.slow
def test_a_folder_is_loaded_by_one_process(old: Made, tmp_path: Path) -> None:
    said = fails("index", "photos", old.path, "--shard", "1/2", "--at", f"file:{tmp_path}")
    assert "leave out --shard" in said
