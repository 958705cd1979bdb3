"""Watching: changes are taken in, a disk that goes away removes nothing."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from boc.errors import BocError, SourceError
from boc.manage.sync import SyncReport
from boc.manage.watch import Moments, Pace, watch
from tests.boc.manage.collections_of_files import Counting, Files, held, new

pytest.importorskip("watchfiles")
QUICK = Pace(quiet=20, longest=200, look=50, again=0.05)


def until(true: Callable[[], bool]) -> None:
    while not true():
        time.sleep(0.05)


@contextmanager
def watching(name: str, folder: Path, at: str) -> Iterator[list[SyncReport | BocError]]:
    """What a watch tells while the block runs."""
    told = []
    stop = threading.Event()
    thread = threading.Thread(
        target=watch,
        args=(name, folder, told.append),
        kwargs={"at": at, "stop": stop.is_set, "pace": QUICK},
    )
    thread.start()
    try:
        until(lambda: bool(told))
        yield told
    finally:
        stop.set()
        thread.join()


@pytest.fixture
def encoder(monkeypatch) -> Counting:
    return Counting.installed(monkeypatch)


@pytest.mark.slow
def test_watch_syncs_changes(encoder: Counting, tmp_path: Path):
    files = Files(tmp_path / "pictures")
    at = f"file:{tmp_path / 'at'}"
    for i in range(5):
        files.write(files.folder / f"{i}.png", f"picture {i}")
    new("x", files.folder, at)

    def holds(*names):
        return set(held("x", at)) == set(names)

    with watching("x", files.folder, at) as told:
        assert told == [SyncReport(same=5)]
        files.write(files.folder / "new.png", "new")
        until(lambda: holds(*(f"{i}.png" for i in range(5)), "new.png"))
        (files.folder / "sub").mkdir()
        for i in range(5):
            (files.folder / f"{i}.png").rename(files.folder / "sub" / f"{i}.png")
        until(lambda: holds(*(f"sub/{i}.png" for i in range(5)), "new.png"))
        for i in range(200):
            files.write(files.folder / f"many-{i}.png", f"many {i}")
        until(lambda: len(held("x", at)) == 206)
        before = held("x", at)
        files.folder.rename(tmp_path / "detached")
        until(lambda: isinstance(told[-1], BocError))
        files.folder.mkdir()
        until(lambda: isinstance(told[-1], BocError) and "no pictures" in str(told[-1]))
        assert held("x", at) == before
        files.folder.rmdir()
        (tmp_path / "detached").rename(files.folder)
        files.write(files.folder / "back.png", "back")
        until(lambda: "back.png" in held("x", at))
    assert len(held("x", at)) == 207
    assert len(encoder.seen) == len(set(encoder.seen))


def test_a_failure_is_reported_once(encoder: Counting, tmp_path: Path):
    files = Files(tmp_path / "pictures")
    at = f"file:{tmp_path / 'at'}"
    files.write(files.folder / "a.png", "a")
    new("x", files.folder, at)
    files.folder.rename(tmp_path / "away")
    looks = iter(range(6))
    told = []
    watch(
        "x",
        files.folder,
        told.append,
        at=at,
        stop=lambda: next(looks, None) is None,
        pace=QUICK,
    )
    assert [type(each) for each in told] == [SourceError]


@pytest.mark.parametrize("some", [False, True])
def test_moments_of_a_missing_place(tmp_path: Path, some: bool):
    (tmp_path / "there").mkdir()
    looks = iter(range(6))
    places = [tmp_path / "there", tmp_path / "away"]
    moments = Moments(places, lambda: next(looks, None) is None, QUICK, some=some)
    assert len(list(moments)) == (1 if some else 6)
