"""Power cuts: the last commit is there, whole, and a new writer goes on.

A recording file layer keeps a log of what a scenario does to files. From it follow the folders that
a power cut at any point can leave (Pillai et al., All File Systems Are Not Created Equal, OSDI
2014): bytes that were not synced are torn, zeroed or absent, and names that were not synced (new,
renamed, removed) are as before or as after, in any combination.

BOC_CRASHES sets the number of power cuts a scenario (default 25); 200 is all.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, TypeAlias

import pytest

from boc.types import Rows
from indexing.embedded import fs
from indexing.embedded.backend import EmbeddedBackend
from tests.indexing.embedded.test_model_based import (
    NAME,
    Kind,
    Model,
    assert_holds,
    columns,
    load,
    rows_for,
    small_segments,
    strays,
)

pytestmark = pytest.mark.slow

CRASHES = int(os.environ.get("BOC_CRASHES", "25"))
LAYER = ("create", "adopt", "sync", "make", "rename", "remove")
UNRECORDED = (".lock", ".checked")
"""Files of no consequence: the lock, and what readers remember of checks."""

Step: TypeAlias = Callable[[EmbeddedBackend], None]


@dataclass(frozen=True)
class Event:
    """Something done to files; ``since`` is, of a sync, how long the log was when it began."""

    what: str
    path: Path
    other: Path | None = None
    data: bytes = b""
    since: int = 0


class Recorder:
    """Passes on to ``indexing.embedded.fs`` what the engine asks of it, from any thread, and keeps
    a log."""

    def __init__(self, monkeypatch) -> None:
        self.log: list[Event] = []
        self.lock = threading.Lock()
        self.real = {name: getattr(fs, name) for name in LAYER}
        for name in LAYER:
            monkeypatch.setattr(fs, name, getattr(self, name))
        bound = [
            f"{module}.{key}"
            for module, make_load in list(sys.modules.items())
            if module.startswith("indexing.")
            for key, value in vars(make_load).items()
            if any(value is real for real in self.real.values())
        ]
        assert not bound, "called past the layer: the engine is to call _disk.create, not create"

    def note(self, what: str) -> None:
        with self.lock:
            self.log.append(Event(what, Path()))

    @contextmanager
    def create(self, path: Path) -> Iterator[BinaryIO]:
        with self.lock:
            self.log.append(Event("create", path))
        with self.real["create"](path) as handle:
            yield handle
        self.written(path)

    def adopt(self, path: Path) -> None:
        with self.lock:
            self.log.append(Event("create", path))
        self.real["adopt"](path)
        self.written(path)

    def written(self, path: Path) -> None:
        with self.lock:
            self.log.append(Event("written", path, data=path.read_bytes()))

    def sync(self, folder: Path) -> None:
        since = len(self.log)
        self.real["sync"](folder)
        with self.lock:
            self.log.append(Event("sync", folder, since=since))

    def make(self, folder: Path) -> None:
        self.at_once("make", folder)

    def rename(self, old: Path, new: Path) -> None:
        self.at_once("rename", old, new)

    def remove(self, path: Path) -> None:
        self.at_once("remove", path)

    def at_once(self, what: str, *paths: Path) -> None:
        with self.lock:
            self.real[what](*paths)
            self.log.append(Event(what, *paths))


@dataclass(eq=False)
class File:
    """Its bytes, or those it is to have, and whether they are on the disk."""

    data: bytes = b""
    safe: bool = False


@dataclass(eq=False)
class Folder:
    """The names in it as programs see them, and as they are on the disk for certain."""

    seen: dict[str, File | Folder] = field(default_factory=dict)
    sure: dict[str, File | Folder] = field(default_factory=dict)


Tree: TypeAlias = dict[str, "bytes | Tree"]
Names: TypeAlias = "dict[str, File | Folder | None]"
"""What is at some names from now on: None if nothing is."""


Pending: TypeAlias = tuple[int, Folder, Names]
"""A change of the names in a folder, and the number of its event."""


class Disk:
    """What of a log is on the disk, and what may be. All of ``tree``, which was at ``top`` before,
    is."""

    def __init__(self, tree: Tree, top: Path) -> None:
        self.top = top
        self.root = _grown(tree)
        self.pending: list[Pending] = []

    def replay(self, log: Sequence[Event], stop: int) -> None:
        """Up to a power cut before event number ``stop``. What was being written then would have
        come to later."""
        for number, event in enumerate(log[:stop]):
            if event.what in ("create", "written", "sync", "make", "rename", "remove"):
                getattr(self, event.what)(number, event)
        for event in log[stop:]:
            node = self.find(event.path) if event.what == "written" else None
            if isinstance(node, File) and not node.safe and not node.data:
                node.data = event.data

    def find(self, path: Path) -> File | Folder | None:
        node = self.root
        for part in path.relative_to(self.top).parts:
            node = node.seen.get(part) if isinstance(node, Folder) else None
        return node

    def parent(self, number: int, path: Path) -> Folder:
        """The folder of a path; folders that the layer did not make are new."""
        node = self.root
        for part in path.parent.relative_to(self.top).parts:
            if part not in node.seen:
                self.change(number, node, {part: Folder()})
            inner = node.seen[part]
            assert isinstance(inner, Folder)
            node = inner
        return node

    def change(self, number: int, folder: Folder, names: Names) -> None:
        _apply(folder.seen, names)
        self.pending.append((number, folder, names))

    def create(self, number: int, event: Event) -> None:
        if self.find(event.path) is None:
            self.change(number, self.parent(number, event.path), {event.path.name: File()})
        else:
            file = self.find(event.path)
            assert isinstance(file, File)
            file.safe = False
            file.data = b""

    def written(self, number: int, event: Event) -> None:
        file = self.find(event.path)
        assert isinstance(file, File)
        file.data = event.data
        file.safe = True

    def sync(self, number: int, event: Event) -> None:
        folder = self.find(event.path)
        assert isinstance(folder, Folder)
        for change in self.pending:
            if change[1] is folder and change[0] < event.since:
                _apply(folder.sure, change[2])
        self.pending = [
            change for change in self.pending if change[1] is not folder or change[0] >= event.since
        ]

    def make(self, number: int, event: Event) -> None:
        self.change(number, self.parent(number, event.path), {event.path.name: Folder()})

    def rename(self, number: int, event: Event) -> None:
        assert event.other is not None
        assert event.path.parent == event.other.parent, "a move between folders is not one change"
        node = self.find(event.path)
        assert node is not None
        self.change(
            number,
            self.parent(number, event.path),
            {event.path.name: None, event.other.name: node},
        )

    def remove(self, number: int, event: Event) -> None:
        node = self.find(event.path)
        if node is None:
            return
        if isinstance(node, Folder):
            for name in list(node.seen):
                self.remove(number, Event("remove", event.path / name))
        self.change(number, self.parent(number, event.path), {event.path.name: None})

    def whole(self) -> Tree:
        """What a program sees as long as nobody cuts the power."""
        return _tree(self.root, lambda folder: folder.seen, lambda file: file.data)

    def survivors(self, rng: random.Random) -> list[Pending]:
        """Some of the changes that may be on the disk or not: of all combinations, rather the
        telling ones."""
        pending = self.pending
        one = rng.choice([rng.choice(pending), pending[-1]]) if pending else None
        return rng.choice(
            [
                pending[
                    : rng.randint(0, len(pending))
                ],  # in their order, as most file systems keep it
                [change for change in pending if change is not one],
                [change for change in pending if change is one],
                [change for change in pending if rng.random() < 0.5],
            ],
        )

    def cut(self, rng: random.Random) -> Tree:
        """What may be there after a power cut."""
        done = self.survivors(rng)

        def names(folder):
            current = dict(folder.sure)
            for _, where, change in done:
                if where is folder:
                    _apply(current, change)
            return current

        return _tree(
            self.root,
            names,
            lambda file: file.data if file.safe else tear(file.data, rng),
        )


def tear(data: bytes, rng: random.Random) -> bytes:
    """What may be there of bytes that were not synced."""
    start = data[: rng.choice([0, rng.randint(0, len(data)), len(data)])]
    zeros = bytes(len(data) - len(start))
    return start + rng.choice([b"", zeros, zeros[: len(zeros) // 2]])


def _apply(names: dict[str, File | Folder], change: Names) -> None:
    for name, node in change.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


def _tree(
    folder: Folder,
    names: Callable[[Folder], dict[str, File | Folder]],
    data: Callable[[File], bytes],
) -> Tree:
    return {
        name: data(node) if isinstance(node, File) else _tree(node, names, data)
        for name, node in names(folder).items()
    }


def _grown(tree: Tree) -> Folder:
    """A folder all of which is on the disk."""
    names = {
        name: File(inside, safe=True) if isinstance(inside, bytes) else _grown(inside)
        for name, inside in tree.items()
    }
    return Folder(dict(names), dict(names))


def contents(folder: Path) -> Tree:
    paths = [path for path in folder.iterdir() if path.name not in UNRECORDED]
    return {path.name: contents(path) if path.is_dir() else path.read_bytes() for path in paths}


def lay_out(tree: Tree, folder: Path) -> None:
    folder.mkdir()
    for name, inside in tree.items():
        if isinstance(inside, bytes):
            (folder / name).write_bytes(inside)
        else:
            lay_out(inside, folder / name)


@dataclass
class Scenario:
    """Commits one after the other: each makes ``states[i + 1]`` of ``states[i]``, and can be
    repeated."""

    steps: list[Step]
    states: list[Model | None]

    def play(self, folder: Path, note: Callable[[str], None] = lambda what: None) -> None:
        for step in self.steps:
            note("begun")
            step(EmbeddedBackend(folder))
            note("done")


def make_load(kind: Kind, keys: Sequence[str], seed: int) -> tuple[Step, Model]:
    """A load, and what it leaves."""
    model = Model(
        kind,
        {
            row.item.id: row
            for row in rows_for(
                kind,
                keys,
                seed,
                300,
            )
        },
    )
    return lambda backend: load(backend, model), model


def make_edit(
    model: Model,
    gone: Sequence[str],
    new: Sequence[str],
    seed: int,
) -> tuple[Step, Model]:
    """An edit, and what it leaves of a model."""
    rows = rows_for(model.kind, new, seed)

    def step(backend):
        with backend.edit(NAME) as editor:
            editor.put(Rows(*columns(model.kind, rows[: len(rows) // 2])))
            editor.delete(gone)
            editor.put(Rows(*columns(model.kind, rows[len(rows) // 2 :])))
            editor.commit(f"{seed:064x}")

    old = {key: row for key, row in model.rows.items() if key not in gone}
    middle = {row.item.id: row for row in rows[: len(rows) // 2] if row.item.id not in gone}
    return step, Model(
        model.kind,
        old | middle | {row.item.id: row for row in rows[len(rows) // 2 :]},
    )


def compact(backend: EmbeddedBackend) -> None:
    backend.compact(NAME)


KEYS = [f"key {i:02d}" for i in range(40)]


def make_scenario(name: str) -> tuple[Scenario, Scenario]:
    """What is done before the recording, and what is recorded."""
    first, a = make_load(Kind("float16", "int8"), KEYS[:30], 0)
    change, b = make_edit(
        a,
        KEYS[3:12],
        [*KEYS[8:20], *KEYS[30:38]],
        1,
    )
    again, c = make_edit(
        b,
        KEYS[15:30:2],
        [*KEYS[0:6], *KEYS[38:]],
        2,
    )
    other, d = make_load(Kind("int8", None, fields=False), KEYS[20:], 3)
    return {
        "load": (Scenario([], [None]), Scenario([first], [None, a])),
        "edit": (Scenario([first], [None, a]), Scenario([change, again], [a, b, c])),
        "compact": (Scenario([first, change, again], [None, a, b, c]), Scenario([compact], [c, c])),
        "replace": (Scenario([first, change], [None, a, b]), Scenario([other, first], [b, d, a])),
    }[name]


@pytest.mark.parametrize("name", ["load", "edit", "compact", "replace"])
def test_a_power_cut_leaves_the_last_commit_and_a_new_writer_goes_on(
    name: str,
    tmp_path: Path,
    monkeypatch,
):
    small_segments(monkeypatch)
    base, scenario = make_scenario(name)
    top = tmp_path / "top"
    top.mkdir()
    base.play(top / "indexes")
    before = contents(top)
    with monkeypatch.context() as patch:
        recorder = Recorder(patch)
        scenario.play(top / "indexes", recorder.note)
    log = recorder.log
    assert replay_log(
        before,
        top,
        log,
        len(log),
    ).whole() == contents(top), "files were changed past the layer"
    for number in range(CRASHES):
        rng = random.Random(number)
        stop = moment(log, rng)
        disk = replay_log(
            before,
            top,
            log,
            stop,
        )
        lay_out(disk.cut(rng), tmp_path / "after")
        try:
            recover(tmp_path / "after" / "indexes", scenario, log[:stop])
        except Exception as error:
            story = [
                f"{event.what} {event.path.name} {event.other or ''}"
                for event in log[max(0, stop - 30) : stop]
            ]
            unsure = ", ".join(sorted({name for _, _, names in disk.pending for name in names}))
            story += [
                f"power cut {number} before event {stop} of {len(log)}; not on the disk for "
                f"certain: {unsure}",
            ]
            raise AssertionError("\n".join(story)) from error
        shutil.rmtree(tmp_path / "after")


def moment(log: Sequence[Event], rng: random.Random) -> int:
    """Where the power is cut: anywhere, around the change that makes a commit count, or after the
    commit."""
    turns = [
        i
        for i, event in enumerate(log)
        if event.other is not None and event.other.name == "CURRENT"
    ]
    ends = [i + 1 for i, event in enumerate(log) if event.what == "done"]
    return rng.choice(
        [
            rng.randint(0, len(log)),
            rng.choice(turns)
            + rng.choice(
                [
                    -2,
                    -1,
                    0,
                    1,
                    1,
                    1,
                    2,
                ],
            ),
            rng.choice(ends),
        ],
    )


def replay_log(before: Tree, top: Path, log: Sequence[Event], stop: int) -> Disk:
    disk = Disk(before, top)
    disk.replay(log, stop)
    return disk


def recover(folder: Path, scenario: Scenario, log: Sequence[Event]) -> None:
    """Check what a power cut left, then do the rest of the scenario, and check again."""
    done, begun = (sum(event.what == what for event in log) for what in ("done", "begun"))
    reached = done + which(folder, scenario.states[done : begun + 1])
    backend = EmbeddedBackend(folder)
    for step in scenario.steps[reached:] or scenario.steps[-1:]:
        step(backend)
    assert scenario.states[-1] is not None
    assert_whole(folder, scenario.states[-1])


def which(folder: Path, allowed: Sequence[Model | None]) -> int:
    """The number of the one of some states that an index is in."""
    backend = EmbeddedBackend(folder)
    if not backend.exists(NAME):
        assert backend.names() == []
        assert None in allowed, "an index that was acknowledged is gone"
        return allowed.index(None)
    index = backend.open(NAME)
    items = list(index.items())
    for number, model in enumerate(allowed):
        if model is not None and [model.rows[key].item for key in sorted(model.rows)] == items:
            assert_holds(index, model)
            return number
    raise AssertionError(
        "neither what was acknowledged nor what was being committed: "
        f"{[item.id for item in items]}",
    )


def assert_whole(folder: Path, model: Model) -> None:
    """That an index holds a model, and its folder no file of anything else."""
    index = EmbeddedBackend(folder).open(NAME)
    assert_holds(index, model)
    assert index.damaged_files() == []
    assert strays(folder / NAME) == []


def stir(folder: str, rounds: str) -> None:
    """Change an index over and over, into what it was."""
    small_segments(pytest.MonkeyPatch())
    tell("ready")
    backend = EmbeddedBackend(Path(folder))
    _, model = make_stir()
    for number in range(int(rounds)):
        rows = random.Random(number).sample(list(model.rows.values()), 9)
        with backend.edit(NAME) as editor:
            editor.delete([row.item.id for row in rows[3:]])
            editor.put(Rows(*columns(model.kind, rows)))
            editor.commit("ef" * 32)
        if number % 3 == 2:
            backend.compact(NAME)


def make_stir() -> tuple[Step, Model]:
    return make_load(Kind("float16", "int8"), KEYS, 0)


def tell(what: object) -> None:
    os.write(1, f"{what}\n".encode())


def start(function: Callable[..., None], *arguments: object) -> subprocess.Popen[str]:
    """Run a function of a test file in a process of its own, up to its first line."""
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).resolve().parents[3])!r}); "
    code += f"import {function.__module__} as there; there.{function.__name__}(*sys.argv[1:])"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_readers_find_the_same_while_segments_are_replaced_and_merged(
    tmp_path: Path,
    monkeypatch,
):
    small_segments(monkeypatch)
    make, model = make_stir()
    make(EmbeddedBackend(tmp_path))
    before = EmbeddedBackend(tmp_path).open(NAME)

    def read():
        opened = 0
        while process.poll() is None:
            assert_holds(before, model)
            assert_holds(EmbeddedBackend(tmp_path).open(NAME), model)
            opened += 1
        return opened

    with start(stir, tmp_path, 30) as process, ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read) for _ in range(2)]
    assert process.returncode == 0
    assert all(each.result() for each in readers)
    assert_whole(tmp_path, model)
