"""Watching: changes are taken in, a disk that goes away removes nothing, and the page sees what a sync brought."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from urllib.request import urlopen

import pytest

from boc.cli.commands.sync import beside
from boc.errors import BocError
from boc.indexes.sync import SyncReport, sync_index
from tests.boc.indexes.collections_of_files import Counting, Files, held, new
from tests.helpers import boc

pytest.importorskip("watchfiles")
PATIENCE = 60.0  # seconds; a test fails only after them


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


@contextmanager
def watching(name: str, folder: Path, at: str) -> Iterator[list[SyncReport | BocError]]:
    """What a watch tells while the block runs."""
    from boc.indexes.watch import watch

    told: list[SyncReport | BocError] = []
    stop = threading.Event()
    thread = threading.Thread(target=watch, args=(name, folder, told.append), kwargs={"at": at, "stop": stop.is_set})
    thread.start()
    try:
        until(lambda: bool(told))
        yield told
    finally:
        stop.set()
        thread.join()


@pytest.fixture
def encoder(monkeypatch: pytest.MonkeyPatch) -> Counting:
    return Counting.installed(monkeypatch)


@pytest.mark.slow
def test_changes_are_taken_in_and_a_disk_that_goes_removes_nothing(encoder: Counting, tmp_path: Path) -> None:
    files, at = Files(tmp_path / "pictures"), f"file:{tmp_path / 'at'}"
    for i in range(5):
        files.write(files.folder / f"{i}.png", f"picture {i}")
    new("x", files.folder, at)

    def holds(*names: str) -> bool:
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


@pytest.mark.parametrize("some", [False, True])
def test_a_place_that_is_away_does_not_keep_the_others_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, some: bool
) -> None:
    from boc.indexes import watch

    monkeypatch.setattr(watch, "LOOK", 20)
    (tmp_path / "there").mkdir()
    looks = iter(range(6))
    moments = watch._Moments([tmp_path / "there", tmp_path / "away"], lambda: next(looks, None) is None, some=some)
    assert len(list(moments)) == (1 if some else 6)


def test_a_watch_takes_the_parameters_of_a_sync() -> None:
    from boc.indexes import watch

    once, always = (signature(function).parameters for function in (sync_index, watch.watch))
    assert once.keys() - {"remove_many"} == always.keys() - {"told", "stop"}
    shared = once.keys() & always.keys() - {"progress"}  # a function without effect by default
    assert all(once[name].default == always[name].default for name in shared)


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_the_page_sees_what_a_sync_brought_and_the_sync_ends_with_it(
    library: Path, tmp_path: Path, workers: str
) -> None:
    pytest.importorskip("fastapi")
    folder, at = tmp_path / "pictures", f"file:{tmp_path / 'at'}"
    shutil.copytree(library / "images", folder)
    assert boc("index", "x", folder, "--encoder", f"tern:{library / 'model'}", "--at", at).exit_code == 0
    command = [sys.executable, "-c", "from boc.cli import main; main()", "serve", "x", "--at", at, "--workers", workers]
    log = (tmp_path / "log").open("w+")
    process = subprocess.Popen([*command, "--port", "0", "--sync", folder, "--cache", tmp_path / "cache"], stderr=log)
    try:
        said = lambda: (tmp_path / "log").read_text()  # noqa: E731
        until(lambda: "x is at http" in said() and "up to date" in said())
        address = said().partition("x is at ")[2].split()[0]

        def count() -> int:
            with urlopen(f"{address}api/info") as answer:
                return int(json.load(answer)["items"]["image"])

        assert count() == 40
        shutil.copy(folder / "000.png", folder / "new.png")
        until(lambda: all(count() == 41 for _ in range(8)))  # whichever process answers
        children = list(map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()))
        process.send_signal(signal.SIGKILL)
        process.wait()
        until(lambda: not any(map(_runs, children)))
    finally:
        process.kill()
        process.wait()
        log.close()


def test_words_behind_the_page_need_a_folder_and_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = boc("serve", "x", "--ocr")
    assert refused.exit_code == 2
    assert "--sync FOLDER" in refused.stderr
    monkeypatch.setattr("boc.inputs.ocr.find_spec", lambda name: None)
    with pytest.raises(BocError, match="rapidocr"), beside("x", [tmp_path], "file:at", None, "cpu", ocr=True):
        pass


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return "State:\tZ" not in Path(f"/proc/{process}/status").read_text()
