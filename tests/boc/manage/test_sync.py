"""Sync: whatever happens to files, the index is as if made again, and nothing known is encoded
twice."""

import gc
import os
import shutil
import uuid
import warnings
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import Phase, given, settings, strategies as st
from PIL import Image

from boc import Searcher, build_index, copy_index, plugins
from boc.atomic_files import file_lock
from boc.errors import BocError, BocWarning, SourceError
from boc.manage.sync import sync_index
from tests.boc.manage.collections_of_files import (
    CODE,
    CONTENTS,
    NAMES,
    OPERATIONS,
    Breaking,
    Counting,
    Files,
    held,
    new,
)
from tests.helpers import boc
from tests.servers.fixtures import address, kinds


@pytest.fixture
def encoder(monkeypatch) -> Counting:
    return Counting.installed(monkeypatch)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files.six(tmp_path / "pictures")


@pytest.fixture
def at(tmp_path: Path) -> str:
    return f"file:{tmp_path / 'at'}"


def check(
    encoder: Counting,
    at: str,
    folder: Path,
    steps: list[list[tuple[str, ...]]],
    breaks: list[int],
    name: str = "x",
) -> None:
    """The law: after each step a sync gives what indexing the folder again gives, also after one
    that broke off, or one during which files changed."""
    files = Files(folder)
    for place, content in zip(
        ("always.png", *NAMES),
        CONTENTS,
        strict=False,
    ):  # a server is made for these frequencies
        files.write(folder / place, content)
    new(name, folder, at)
    for operations, left in zip(steps, breaks, strict=True):
        during = len(operations) // 2 if left % 3 == 0 else 0
        for operation in operations[during:]:
            files.do(operation)
        encoder.meanwhile = [partial(files.do, operation) for operation in operations[:during]]
        before = {row[3]["content_hash"] for row in held(name, at).values()}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(plugins, "backend", _broken(left))
            encoder.breaks_at = None if left % 2 else len(encoder.seen) + left // 2
            with suppress(KeyboardInterrupt):
                sync_index(name, folder, at=at, remove_many=True)
        encoder.breaks_at = None
        encoder.seen[:] = []
        encoder.meanwhile = []
        report = sync_index(name, folder, at=at, remove_many=True)
        found = held(name, at)
        assert report.added + report.changed + report.moved + report.same == len(found)
        seen = len(encoder.seen)
        again = sync_index(name, folder, at=at)
        assert again.up_to_date
        assert again.same == len(found)
        assert len(encoder.seen) == seen
        unknown = sum(row[3]["content_hash"] not in before for row in found.values())
        assert len(encoder.seen) <= report.encoded
        assert report.encoded <= unknown or during
        new(f"{name}-fresh", folder, at)
        assert found == held(f"{name}-fresh", at)


def _broken(left: int) -> Any:
    backend = plugins.backend
    return lambda url: Breaking(backend(url), left)


STEPS = st.lists(
    st.lists(OPERATIONS, max_size=8),
    min_size=1,
    max_size=4,
)


@pytest.mark.slow
@settings(
    max_examples=30,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)  # to shrink one takes minutes
@given(
    steps=STEPS,
    breaks=st.lists(
        st.integers(1, 12),
        min_size=4,
        max_size=4,
    ),
)
def test_sync_equals_indexing_again(steps: list[list[tuple[str, ...]]], breaks: list[int]):
    with TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        encoder = Counting()
        patch.setattr(plugins, "encoder", lambda *spec: encoder)
        check(encoder, f"file:{place}/at", Path(place) / "pictures", steps, breaks[: len(steps)])


@pytest.mark.parametrize("server", kinds("opensearch-3", "elasticsearch-9"), indirect=True)
def test_so_it_is_on_servers(server: Any):
    name = f"boc-test-{uuid.uuid4().hex[:12]}"
    at = address(server)

    @settings(max_examples=8, phases=[Phase.generate])
    @given(
        steps=STEPS.filter(lambda steps: len(steps) < 3),
        breaks=st.lists(st.integers(1, 12), min_size=2, max_size=2),
    )
    def law(steps: list[list[tuple[str, ...]]], breaks: list[int]) -> None:
        with TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
            encoder = Counting()
            patch.setattr(plugins, "encoder", lambda *spec: encoder)
            patch.chdir(place)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", BocWarning)  # of edits that broke off
                check(
                    encoder,
                    at,
                    Path(place) / "pictures",
                    steps,
                    breaks[: len(steps)],
                    name,
                )

    try:
        law()
    finally:
        for each in plugins.backend(at).names():
            if each.startswith(name):
                plugins.backend(at).remove(each)


def test_sync_report(encoder: Counting, files: Files, at: str):
    files.index()
    encoder.seen.clear()
    for operation in (
        ("rename", "0.png", "sub/0.png"),
        ("write", "1.png", "another"),
        ("delete", "2.png"),
        ("touch", "3.png"),
        ("write", "copy.png", "picture 4"),
        ("write", "new.png", "new"),
        ("write", "bad.png", "bad"),
    ):
        files.do(operation)
    report = files.sync()
    counts = (
        report.added,
        report.changed,
        report.moved,
        report.removed,
        report.same,
        report.encoded,
    )
    assert counts == (2, 1, 1, 1, 3, 2)
    assert [key for key, _ in report.failed] == ["bad.png"]
    assert sorted(encoder.seen) == [b"another", b"new"]
    again = files.sync()
    assert again.up_to_date
    assert (
        again.same,
        again.failed,
        again.unreadable,
    ) == (7, [], ["bad.png"])
    files.do(("write", "bad.png", "good now"))
    assert files.sync().added == 1
    assert plugins.backend(at).open("x").manifest.unreadable == {}


def test_a_moved_collection_keeps_its_vectors(
    encoder: Counting,
    files: Files,
    at: str,
    tmp_path: Path,
):
    files.index()
    encoder.seen.clear()
    files.folder.rename(tmp_path / "elsewhere")
    assert sync_index("x", tmp_path / "elsewhere", at=at).moved == 6
    assert not encoder.seen
    new("fresh", tmp_path / "elsewhere", at)
    assert files.held() == held("fresh", at)


def test_missing_disk_removes_nothing(
    encoder: Counting,
    files: Files,
    tmp_path: Path,
):
    files.index()
    before = files.held()
    mounted = files.folder.rename(tmp_path / "elsewhere")
    for make in (lambda: None, files.folder.mkdir):
        make()
        for options in ({}, {"keep_missing": True}, {"remove_many": True}):
            with pytest.raises(SourceError):
                files.sync(**options)
    assert files.held() == before
    files.folder.rmdir()
    mounted.rename(files.folder)
    assert files.sync().up_to_date


def test_remove_many(encoder: Counting, files: Files):
    files.index()
    for i in range(3):
        (files.folder / f"{i}.png").unlink()
    assert files.sync(keep_missing=True).missing == 3
    assert len(files.held()) == 6
    (files.folder / "3.png").unlink()
    with pytest.raises(BocError, match="4 of the 6 pictures of x are missing"):
        files.sync()
    assert len(files.held()) == 6
    assert files.sync(remove_many=True).removed == 4
    (files.folder / "4.png").unlink()
    assert files.sync().removed == 1


@pytest.mark.slow
def test_captions_follow_their_table(
    encoder: Counting,
    files: Files,
    at: str,
    tmp_path: Path,
):
    table = tmp_path / "captions.csv"

    def write(*captions):
        lines = [f"{number}.png,{caption}" for number, caption in enumerate(captions)]
        table.write_text("\n".join(["image,caption", *lines]), encoding="utf-8")

    write("a dog", "a cat", "a bird", "a fish")
    new("x", table, at, images=files.folder)
    encoder.seen.clear()
    write("a dog", "a lynx", "a fish", "a bird")
    files.do(("write", "0.png", "changed"))
    report = sync_index("x", table, at=at, images=files.folder)
    assert sorted(encoder.seen) == [b"a lynx", b"changed"]
    assert (report.changed, report.same, report.removed) == (4, 4, 0)
    write("a dog")
    assert (
        sync_index(
            "x",
            table,
            at=at,
            images=files.folder,
            remove_many=True,
        ).removed
        == 6
    )
    new("fresh", table, at, images=files.folder)
    assert files.held() == held("fresh", at)


def _photograph(path: Path, colour: str, taken: str, clock: int) -> None:
    exif = Image.Exif()
    exif.get_ifd(0x8769)[0x9003] = taken
    Image.new("RGB", (8, 8), colour).save(path, exif=exif)
    os.utime(path, ns=(clock, clock))


def _taken(at: str) -> dict[str, str]:
    return {key: row[3]["taken"] for key, row in held("x", at).items()}


@pytest.mark.slow
def test_table_facts_outlive_a_changed_picture(encoder: Counting, at: str, tmp_path: Path):
    folder = tmp_path / "pictures"
    table = tmp_path / "table.csv"
    folder.mkdir()
    for i in range(4):
        _photograph(folder / f"{i}.jpg", "red", f"202{i}:01:01 00:00:00", 10**18)
    table.write_text("id,taken:date\n0.jpg,1990-01-01\n1.jpg,1991-01-01\n2.jpg,1992-01-01\n")
    build_index("x", folder, encoder="test:counting", at=at, metadata=table, code=CODE)
    _photograph(folder / "0.jpg", "blue", "2029:01:01 00:00:00", 2 * 10**18)
    (folder / "1.jpg").rename(folder / "moved.jpg")
    os.utime(folder / "2.jpg", ns=(10**17, 10**17))
    sync_index("x", folder, at=at)
    years = {"0.jpg": 1990, "moved.jpg": 1991, "2.jpg": 1992, "3.jpg": 2023}
    assert {key: int(taken[:4]) for key, taken in _taken(at).items()} == years
    copy_index("x", "copy", at=at)
    table.write_text("id,taken:date\n0.jpg,1990-01-01\n2.jpg,1993-01-01\n")
    assert not sync_index("copy", folder, at=at, metadata=table).encoded
    assert sync_index("x", folder, at=at, metadata=table).same == 4
    build_index("fresh", folder, encoder="test:counting", at=at, metadata=table, code=CODE)
    assert held("x", at) == held("fresh", at) == held("copy", at)
    before = plugins.backend(at).open("x").manifest
    sync_index("x", folder, at=at, metadata=table)
    assert plugins.backend(at).open("x").manifest == before  # nothing was written again


@pytest.mark.slow
def test_unreadable_pictures_are_skipped(
    encoder: Counting,
    files: Files,
    at: str,
    tmp_path: Path,
    monkeypatch,
):
    files.do(("write", "bad.png", "bad"))
    files.index()
    copy_index("x", "copy", at=at)
    copy_index("x", at=at, to=tmp_path / "x.zip")
    build_index("again", tmp_path / "x.zip", at=at)
    for name in ("x", "copy", "again"):
        report = sync_index(name, files.folder, at=at)
        assert (
            report.up_to_date,
            report.failed,
            report.unreadable,
        ) == (True, [], ["bad.png"])
    files.do(("write", "bad.png", "good now"))
    assert sync_index("copy", files.folder, at=at).added == 1


@pytest.mark.filterwarnings("ignore::boc.errors.BocWarning")
def test_what_is_excluded_is_kept_with_the_index(encoder: Counting, files: Files, at: str):
    files.index(exclude=["raw"])
    for name in ("raw/a.png", ".hidden/a.png", "sub/a.png"):
        files.write(files.folder / name, name)
    assert files.sync().added == 1
    copy_index("x", "copy", at=at)
    assert sync_index("copy", files.folder, at=at).up_to_date
    assert files.sync(exclude=["sub"]).added == 1
    assert "sub/a.png" not in files.held()
    assert files.sync().up_to_date
    before = plugins.backend(at).open("x").manifest
    assert before.exclude == ["sub"]


def test_one_of_several_disks_may_be_away(encoder: Counting, at: str, tmp_path: Path):
    one = Files(tmp_path / "one")
    two = Files(tmp_path / "two")
    for i in range(3):
        one.do(("write", f"{i}.png", f"one {i}"))
        two.do(("write", f"{i}.png", f"two {i}"))
    folders = [one.folder, two.folder]
    new("x", folders, at)
    one.do(("write", "new.png", "new"))
    one.do(("rename", "0.png", "moved.png"))
    two.folder.rename(tmp_path / "detached")
    for make in (lambda: None, two.folder.mkdir):  # gone, then an empty place to mount it at
        make()
        with pytest.raises(SourceError):
            sync_index("x", folders, at=at)
        with pytest.warns(BocWarning, match="two"):
            report = sync_index("x", folders, at=at, keep_missing=True)
        assert report.missing == 3
    assert held("x", at).keys() == {
        f"one/{n}.png"
        for n in (
            "1",
            "2",
            "new",
            "moved",
        )
    } | {f"two/{i}.png" for i in range(3)}
    two.folder.rmdir()
    (tmp_path / "detached").rename(two.folder)
    assert sync_index("x", folders, at=at).up_to_date
    one.folder.rename(tmp_path / "detached")
    two.folder.rename(tmp_path / "too")
    with pytest.raises(SourceError):
        sync_index("x", folders, at=at, keep_missing=True)


@pytest.mark.slow
def test_chunks_are_committed_one_by_one(encoder: Counting, files: Files, at: str):
    files.index()
    for i in range(8):
        files.write(files.folder / f"new-{i}.png", f"new {i}")
    files.do(("rename", "0.png", "moved.png"))
    files.do(("delete", "1.png"))
    encoder.seen.clear()
    encoder.breaks_at = 6
    with pytest.raises(KeyboardInterrupt):
        files.sync(chunk=3)
    there = files.held().keys()
    assert sum(key.startswith("new") for key in there) == 6
    assert ("moved.png" in there, "0.png" in there, "1.png" in there) == (
        True,
        False,
        True,
    )  # what is gone goes last
    assert files.sync().encoded == 2
    assert len(encoder.seen) == 8
    assert {path.name for path in Path(at.removeprefix("file:")).iterdir()} == {".removed", "x"}
    new("fresh", files.folder, at)
    assert files.held() == held("fresh", at)


@pytest.mark.parametrize("left", ["parts", "a file"])
def test_what_a_killed_sync_encoded_goes_although_nothing_is_to_encode(
    encoder: Counting,
    files: Files,
    at: str,
    monkeypatch,
    left: str,
):
    place = Path(at.removeprefix("file:"))
    files.index()
    files.write(files.folder / "new.png", "new")
    encoder.breaks_at = len(encoder.seen) if left == "parts" else None
    with monkeypatch.context() as patch:
        patch.setattr(plugins, "backend", _broken(1))
        with pytest.raises(KeyboardInterrupt):
            files.sync()
    assert [path.is_dir() for path in place.glob(".x.*")] == [left == "parts"]
    files.do(("delete", "new.png"))
    with file_lock(place / ".x.lock", "x is"):  # what another process encodes for x stays
        assert files.sync().up_to_date
    assert any(place.glob(".x.*"))
    assert files.sync().up_to_date
    assert [path.name for path in place.iterdir()] == ["x"]


def test_concurrent_edit_is_refused(
    encoder: Counting,
    files: Files,
    at: str,
    monkeypatch,
):
    files.index()
    files.write(files.folder / "new.png", "new")
    encode = encoder.encode_images

    def meanwhile(prepared):
        with plugins.backend(at).edit("x") as editor:
            editor.delete(["0.png"])
            editor.commit("ab" * 32)
        return encode(prepared)

    monkeypatch.setattr(encoder, "encode_images", meanwhile)
    with pytest.raises(BocError, match="changed by another process"):
        files.sync()


def test_a_second_command_of_the_same_name_is_refused(
    encoder: Counting,
    files: Files,
    at: str,
    tmp_path: Path,
):
    other = Files(tmp_path / "other")
    other.write(other.folder / "0.png", "another")
    refused = []

    def meanwhile(label, done, total):
        with pytest.raises(BocError, match="x is being written by another process"):
            new("x", other.folder, at)
        refused.append(label)

    files.index(progress=meanwhile)
    files.write(files.folder / "new.png", "new")
    files.sync(progress=meanwhile)
    assert set(refused) == {"encoding", "learning", "indexing"}
    assert len(files.held()) == 7
    assert [path.name for path in Path(at.removeprefix("file:")).iterdir()] == ["x"]


def test_an_index_holds_few_descriptors_and_no_longer_than_it_is_used(
    encoder: Counting,
    files: Files,
    at: str,
):
    def held_now():
        return len([*Path("/proc/self/fd").iterdir()])

    if not Path("/proc/self/fd").exists():
        pytest.skip("descriptors cannot be counted here")
    files.index()
    gc.disable()
    try:
        before = held_now()
        for i in range(11):
            files.write(files.folder / f"new-{i}.png", f"new {i}")
            files.sync()
            searcher = Searcher.open("x", at)
            assert searcher.search("a", k=3)
            assert held_now() - before < 40  # as few as a process that may open 64 has left
            del searcher
            assert held_now() == before
    finally:
        gc.enable()


def test_a_picture_that_cannot_be_read_now_stays(
    encoder: Counting,
    files: Files,
    monkeypatch,
):
    files.index()
    before = files.held()
    files.do(("touch", "0.png"))
    stat = os.stat

    def refuse(path, **options):
        if str(path).endswith("/0.png"):
            raise PermissionError(13, "Permission denied")
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", refuse)
    with pytest.warns(BocWarning, match="0.png"):
        report = files.sync()
    monkeypatch.setattr(os, "stat", stat)
    assert report.same == 6
    assert files.held() == before
    files.sync()
    assert files.held() != before


@pytest.mark.slow
def test_the_command_as_a_user_gives_it(library: Path, tmp_path: Path):
    folder = tmp_path / "pictures"
    at = f"--at=file:{tmp_path / 'at'}"
    shutil.copytree(library / "images", folder)
    assert boc(f"index x {folder} --encoder tern:{library}/model {at}").exit_code == 0
    told = boc(f"sync x {folder} {at}")
    assert (told.exit_code, told.stdout) == (0, "x is up to date: 40 unchanged\n")
    (folder / "sub").mkdir()
    (folder / "000.png").rename(folder / "sub" / "000.png")
    (folder / "001.png").unlink()
    (folder / "bad.png").write_bytes(b"no picture")
    shutil.copy(library / "images" / "004.png", folder / "002.png")
    told = boc(f"sync x {folder} {at}")
    assert told.stdout == "x: 1 changed, 1 moved, 1 removed, 37 unchanged\n"
    assert (told.exit_code, "left out" in told.stderr) == (0, True)
    told = boc(f"sync x {folder} {at}")
    assert told.stdout == "x is up to date: 39 unchanged\n"
    assert "bad.png" in told.stderr
    assert Searcher.open("x", at.removeprefix("--at=")).search("a red box", k=1)
