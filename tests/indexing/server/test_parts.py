"""One index loaded by several processes, each its part: the last one publishes, and the part of a
dead one is taken over by the same command."""

import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from boc import plugins
from boc.errors import BackendError
from boc.types import Rows
from indexing.server.aliases import indices_of
from indexing.server.parts import CLAIM, forget, share_code
from tests.fault_proxy import Proxy
from tests.indexing.server.test_faults import (
    ON_EACH,
    Made,
    Place,
    finish,
    make,
    placed,
    run,
    start,
)

PARTS = 3


@pytest.fixture(scope="module")
def old(tmp_path_factory) -> Made:
    return make(tmp_path_factory.mktemp("old"), 1, 40)


@pytest.fixture(scope="module")
def new(tmp_path_factory) -> Made:
    return make(tmp_path_factory.mktemp("new"), 2, 3000)


@pytest.fixture
def place(
    server: Any,
    old: Made,
    new: Made,
    request,
) -> Iterator[Place]:
    with placed(server, f"parts-{abs(hash(request.node.name))}", old, new) as place:
        yield place


def part(
    place: Place,
    number: int,
) -> tuple[object, ...]:
    return place.command("--shard", f"{number}/{PARTS}")


def killed(
    place: Place,
    hook: str,
    when: Callable[[str], bool],
    number: int,
) -> None:
    """Kill the load of a part at the first request ``when`` this holds of its path."""
    process = start(*part(place, number))

    def kill(_, path):
        if when(path):
            process.kill()

    setattr(place.proxy, hook, kill)
    code, _ = finish(process)
    setattr(place.proxy, hook, lambda number, path: None)
    assert code == -signal.SIGKILL
    assert place.look() == "old"


@ON_EACH
def test_concurrent_parts(place: Place):
    processes = [
        start(
            *part(
                place,
                number,
            ),
        )
        for number in range(1, PARTS + 1)
    ]
    said = [finish(process) for process in processes]
    assert [code for code, _ in said] == [0] * PARTS, said
    assert sum("the index appears when all parts are" in text for _, text in said) == PARTS - 1
    place.holds(place.new)
    indexes = place.server.request("GET", f"{place.name}-boc-*")
    assert [each for each in indexes if each.endswith("-code")] == []


@ON_EACH
def test_part_of_a_dead_process(place: Place):
    """It is killed amid its rows, and the others do not publish without it."""
    first = place.proxy.count["bulk"]
    killed(
        place,
        "after",
        lambda path: place.proxy.count["bulk"] >= first + 4,
        2,
    )
    for number in (1, 3):
        run(*part(place, number))
        assert place.look() == "old"
    run(*part(place, 2))
    place.holds(place.new)
    assert (
        "is up to date"
        in finish(
            start(
                *part(
                    place,
                    1,
                ),
            ),
        )[1]
    )


@ON_EACH
def test_publication_after_a_kill(place: Place):
    for number in (1, 2):
        run(*part(place, number))
    merge = "/_forcemerge?max_num_segments=1"
    killed(place, "before", lambda path: path.endswith(merge), 3)
    run(*part(place, 1))
    place.holds(place.new)
    assert CLAIM not in {item.id for item in place.new.index.items()}


def load(
    at: str,
    name: str,
    made: Made,
    number: int,
) -> None:
    """One of two parts of ``made``, loaded by this process."""
    index = made.index
    ids = [item.id for item in index.items()][number - 1 :: 2]
    backend = plugins.backend(at)
    with backend.create(
        name,
        index.manifest,
        index.arrays(),
        f"{number}/2",
    ) as writer:
        if not writer.has(ids):
            writer.add(
                Rows(
                    index.find(ids),
                    index.terms(ids),
                    index.vectors(ids),
                ),
            )
        writer.commit()


@ON_EACH
def test_parts_share_a_generation(place: Place):
    """The other part is loaded in whole before each request that the first sends until it has made
    the generation."""
    backend = plugins.backend(place.direct)
    name = f"{place.name}-two"
    items = set(place.old.index.items())
    for number in count(1):
        paths = []

        def before(
            _,
            path,
            number=number,
            paths=paths,
        ):
            paths.append(path)
            if len(paths) == number:
                load(place.direct, name, place.old, 2)

        with Proxy(place.server.url, before=before) as proxy:
            load(
                place.at.replace(place.proxy.url, proxy.url),
                name,
                place.old,
                1,
            )
        assert set(backend.open(name).items()) == items
        backend.remove(name)
        if f"/{name}-boc-" in paths[number - 1] and "*" not in paths[number - 1]:
            break
    assert number > 3


@ON_EACH
def test_lost_answer_to_a_claim(place: Place):
    lost = []
    name = f"{place.name}-two"

    def lose(number, path):
        if CLAIM in path and not lost:
            lost.append(path)
            raise ConnectionResetError

    load(place.direct, name, place.old, 1)
    place.proxy.after = lose
    with Proxy(place.server.url, after=lose) as other:
        load(f"{place.at},{other.url.removeprefix('http://')}", name, place.old, 2)
    assert lost
    index = plugins.backend(place.direct).open(name)
    assert set(index.items()) == set(place.old.index.items())


CODE = {"steps": [], "n_terms": 3}
KEY = "0123456789ab"


def arrays() -> dict[str, NDArray[Any]]:
    return {
        "0.mean_": np.arange(6, dtype=np.float32).reshape(
            2,
            3,
        ),
        "1.ids_": np.zeros(0, np.int64),
    }


@ON_EACH
def test_code_is_learned_once(place: Place):
    backend = plugins.backend(place.direct)
    learned = []

    def learn():
        learned.append(1)
        time.sleep(1)
        return CODE, arrays()

    with ThreadPoolExecutor(4) as pool:
        loads = [
            pool.submit(
                backend.learn_once,
                place.name,
                KEY,
                learn,
            )
            for _ in range(4)
        ]
    assert learned == [1]
    for each in loads:
        config, found = each.result()
        assert config == CODE
        assert found.keys() == arrays().keys()
        for name, values in arrays().items():
            assert found[name].tolist() == values.tolist()
            assert found[name].dtype == values.dtype
    forget(backend.transport, place.name)
    assert not indices_of(backend.transport, f"{place.name}-boc-{KEY}-code")


@ON_EACH
def test_learning_after_a_failure(place: Place):
    backend = plugins.backend(place.direct)

    def learned(learn):
        return share_code(
            backend.transport,
            backend.address,
            place.name,
            KEY,
            learn,
        )[0]

    def fail():
        raise BackendError("no memory")

    with pytest.raises(BackendError, match="no memory"):
        learned(fail)
    begun = Event()
    asked = Event()

    def slow():
        begun.set()
        assert asked.wait(60)
        return CODE, arrays()

    first = Thread(target=lambda: learned(slow))
    first.start()
    assert begun.wait(60)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(learned, fail)
        asked.set()
        assert other.result() == CODE
    first.join()
    forget(backend.transport, place.name)
