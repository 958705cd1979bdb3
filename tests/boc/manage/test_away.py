"""What cannot be seen now is not gone: folders and disks that are away under a sync, against a
model of what the index is to hold."""

import subprocess
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import Phase, given, settings, strategies as st

from boc import plugins
from boc.errors import BocError, BocWarning
from boc.inputs import sources
from boc.manage import sync
from boc.manage.sync import sync_index
from boc.types import Rows
from tests.boc.manage.collections_of_files import Counting, Files, new
from tests.boc.manage.test_watch import until, watching
from tests.helpers import boc

ROOTS = 9  # pictures that stay, so that others are never more than half
FOLDERS = ("one/", "disk/", "disk/deep/")


@pytest.fixture(autouse=True)
def encoder(monkeypatch) -> Counting:
    return Counting.installed(monkeypatch)


@pytest.fixture
def at(tmp_path: Path) -> str:
    return f"file:{tmp_path / 'at'}"


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """Six pictures in ``lib/2023``, four in ``lib/disk``."""
    found = Files(tmp_path / "lib")
    for i in range(6):
        found.write(found.folder / "2023" / f"{i}.png", f"picture {i}")
    for i in range(4):
        found.write(found.folder / "disk" / f"{i}.png", f"of the disk {i}")
    return found


class Model:
    """A library, an index of it, and ``expected``: what the index is to hold, contents by id.

    No two pictures have one content, so that the encoder is to see each once.
    """

    def __init__(self, place: Path) -> None:
        self.files = Files(place / "lib")
        self.at = f"file:{place / 'at'}"
        self.store = place / "store"
        self.expected: dict[str, str] = {}
        self.number = 0
        for i in range(ROOTS):
            self.write(f"{i}.png")
        for folder in FOLDERS:
            self.write(f"{folder}a.png")
            self.write(f"{folder}b.png")
        new("x", self.files.folder, self.at)
        self.expected = self.visible()

    def visible(self) -> dict[str, str]:
        """The contents of all pictures that can be seen now, by id."""
        root = self.files.folder
        paths = [path for path in root.rglob("*.png") if path.is_file()]
        return {path.relative_to(root).as_posix(): path.read_text() for path in paths}

    def write(self, name: str) -> None:
        self.number += 1
        self.files.write(self.files.folder / name, f"content {self.number}")

    def do(self, kind: str, name: str, other: str) -> None:
        """Change the library; a step that is impossible now does nothing."""
        disk = self.files.folder / "disk"
        if kind == "write":
            self.write(name)
        elif kind in ("mount", "unmount, folder gone", "unmount"):
            if kind == "mount" and self.store.exists():
                if disk.exists() and any(disk.iterdir()):
                    return  # something was put into the folder meanwhile
                disk.mkdir(exist_ok=True)
                self.store.replace(disk)
            elif kind != "mount" and disk.exists() and not self.store.exists():
                disk.rename(self.store)
                if kind == "unmount":
                    disk.mkdir()
        elif kind == "delete":
            self.files.do(("delete", name))
        elif name.split("/")[0] == other.split("/")[0] and not (self.files.folder / other).exists():
            # A picture that leaves the disk before the disk goes may be seen as a new one later.
            self.files.do(("rename", name, other))

    def sync(self) -> None:
        """Sync, and compare the index with what it is to hold."""
        visible = self.visible()
        moved = {visible[key] for key in visible.keys() - self.expected.keys()}
        kept = {
            key: content
            for key, content in self.expected.items()
            if key not in visible
            and content not in moved
            and not any(each.startswith(key.rpartition("/")[0]) for each in visible)
        }
        report = sync_index("x", self.files.folder, at=self.at)
        self.expected = {**kept, **visible}
        assert contents(self.at) == self.expected
        assert report.missing == len(kept) == sum(report.away.values())
        for folder in report.away:
            assert not any(key.startswith(folder) for key in visible)
        for key in kept:
            assert key.startswith(tuple(report.away))


def contents(at: str) -> dict[str, str]:
    """What the pictures of the index ``x`` are of, by id: their vectors tell."""
    by_vector = {}
    encoder = plugins.encoder("any", "cpu")
    assert isinstance(encoder, Counting)
    for content in set(encoder.seen):
        (vector,) = Counting().encode_images([content]).vectors
        by_vector[vector.astype("float16").astype(float).tobytes()] = content.decode()
    index = plugins.backend(at).open("x")
    ids = [item.id for item in index.items()]
    vectors = index.vectors(ids).astype("float16").astype(float)
    return {key: by_vector[row.tobytes()] for key, row in zip(ids, vectors, strict=True)}


NAME = st.builds(
    lambda folder, name: f"{folder}{name}.png",
    st.sampled_from(FOLDERS),
    st.sampled_from(["a", "b", "c"]),
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *("write", "delete", "rename", "unmount", "unmount, folder gone", "mount"),
                *("sync", "sync", "sync"),
            ],
        ),
        NAME,
        NAME,
    ),
    min_size=6,
    max_size=20,
)


@pytest.mark.slow
@settings(max_examples=100, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(steps=STEPS)
def test_only_what_is_gone_file_by_file_is_removed(steps: list[tuple[str, str, str]]):
    with TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        encoder = Counting.installed(patch)
        model = Model(Path(place))
        for kind, name, other in steps:
            if kind == "sync":
                model.sync()
            else:
                model.do(kind, name, other)
        model.do("mount", "", "")
        model.sync()
        assert len(encoder.seen) == len(set(encoder.seen))


@pytest.mark.parametrize("leaves_folder", [True, False])
def test_a_disk_below_the_library_is_kept_and_named(
    encoder: Counting,
    files: Files,
    at: str,
    tmp_path: Path,
    leaves_folder: bool,
):
    files.index()
    before = files.held()
    disk = files.folder / "disk"
    store = disk.rename(tmp_path / "store")
    if leaves_folder:
        disk.mkdir()
    report = files.sync()
    assert (report.up_to_date, report.missing, report.away) == (True, 4, {"disk/": 4})
    assert files.held() == before
    told = boc("sync x", files.folder, "--at", at)
    assert (told.exit_code, told.stdout) == (
        0,
        "x is up to date: 4 missing and kept, 6 unchanged\n",
    )
    assert "(for example disk/); their pictures are kept; mount" in told.stderr
    store.rename(disk)
    report = files.sync()
    assert (report.up_to_date, report.away) == (True, {})
    assert len(encoder.seen) == 10


@pytest.mark.parametrize("way", ["option", "keep_missing", "remove_many"])
def test_pictures_of_a_folder_that_is_away_go_if_that_is_said(
    files: Files,
    at: str,
    tmp_path: Path,
    way: str,
):
    files.index()
    (files.folder / "disk").rename(tmp_path / "store")
    if way == "option":
        told = boc("sync x", files.folder, "--at", at, "--missing", "remove")
        assert told.output == "x: 4 removed, 6 unchanged\n"
    else:
        said = {way: way == "remove_many"}
        assert files.sync(**said).removed == 4
    assert len(files.held()) == 6


def test_single_files_are_removed_below_and_beside_a_disk(
    files: Files,
    tmp_path: Path,
):
    files.index()
    files.do(("delete", "disk/3.png"))
    assert files.sync().removed == 1
    disk = files.folder / "disk"
    store = disk.rename(tmp_path / "store")
    files.do(("delete", "2023/5.png"))
    report = files.sync()
    assert (report.removed, report.missing) == (1, 3)
    store.rename(disk)
    files.do(("delete", "disk/2.png"))
    report = files.sync()
    assert (report.removed, report.missing, report.encoded) == (1, 0, 0)


def test_an_index_that_knows_no_device_goes_by_folders(
    files: Files,
    at: str,
    tmp_path: Path,
):
    """As indexes of earlier versions are."""
    files.index()
    index = plugins.backend(at).open("x")
    items = []
    for item in index.items():
        known = {key: value for key, value in item.fields.items() if key != "device_number"}
        items.append(replace(item, fields=known))
    ids = [item.id for item in items]
    with plugins.backend(at).edit("x") as editor:
        editor.put(Rows(items, index.terms(ids), index.vectors(ids), None))
        editor.commit("ab" * 32)
    disk = files.folder / "disk"
    store = disk.rename(tmp_path / "store")
    assert files.sync().away == {"disk/": 4}
    store.rename(disk)
    files.do(("delete", "disk/0.png"))
    assert files.sync().removed == 1
    for i in range(1, 4):
        files.do(("delete", f"disk/{i}.png"))
    files.write(disk / "other.png", "in place of all others")
    report = files.sync()
    assert (report.added, report.removed, report.away) == (1, 3, {})


def test_an_excluded_folder_is_not_away(files: Files):
    files.index()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BocWarning)  # of the folder that is left out
        report = files.sync(exclude=["disk"])
    assert (report.removed, report.away) == (4, {})


def test_another_library_is_refused_as_a_whole(
    encoder: Counting,
    files: Files,
    at: str,
    tmp_path: Path,
):
    files.index()
    other = Files(tmp_path / "other")
    for i in range(5):
        other.write(other.folder / "sub" / f"{i}.png", f"other {i}")
    with pytest.raises(BocError, match="10 of the 10 pictures of x are missing"):
        sync_index("x", other.folder, at=at)
    assert len(encoder.seen) == 10


def table(files: Files, *folders: str) -> Path:
    """A CSV of the pictures in these folders of a library, five captions of each."""
    lines = ["image,caption"]
    for folder in folders:
        for path in sorted((files.folder / folder).iterdir()):
            lines += [f"{folder}/{path.name},caption {i} of {path.stem}" for i in range(5)]
    path = files.folder / "captions.csv"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_captions_do_not_count_beside_pictures(
    files: Files,
    at: str,
    tmp_path: Path,
):
    captions = table(files, "2023")
    new("x", captions, at)
    before = files.held()
    for i in range(1, 6):
        (files.folder / "2023" / f"{i}.png").rename(tmp_path / f"{i}.png")
    with pytest.raises(BocError, match="5 of the 6 pictures of x are missing"):
        sync_index("x", captions, at=at)
    assert files.held() == before
    for i in range(1, 6):
        (tmp_path / f"{i}.png").rename(files.folder / "2023" / f"{i}.png")
    lines = captions.read_text(encoding="utf-8").splitlines()
    half = [line for number, line in enumerate(lines) if number == 0 or number % 5 in (1, 2)]
    captions.write_text("\n".join(half), encoding="utf-8")
    with pytest.raises(BocError, match="18 of the 30 captions of x are missing"):
        sync_index("x", captions, at=at)


def test_pictures_of_a_table_lie_on_two_disks(
    files: Files,
    at: str,
    tmp_path: Path,
):
    captions = table(files, "disk", "2023")
    new("x", captions, at)
    before = files.held()
    store = (files.folder / "disk").rename(tmp_path / "store")
    report = sync_index("x", captions, at=at)
    assert (report.away, report.unreadable) == ({"disk/": 4}, [])
    assert files.held() == before
    store.rename(files.folder / "disk")
    assert sync_index("x", captions, at=at).up_to_date
    # Rows that were deleted are deleted, although no other picture of their folder is left.
    lines = captions.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if not line.startswith("disk/")]
    captions.write_text("\n".join(kept), encoding="utf-8")
    assert sync_index("x", captions, at=at).removed == 24


def test_one_of_several_folders_does_not_count_beside_another(
    files: Files,
    at: str,
):
    folders = [files.folder / "2023", files.folder / "disk"]
    new("x", folders, at)
    for name in ("2023/0", "disk/1", "disk/2", "disk/3"):
        files.do(("delete", f"{name}.png"))
    with pytest.raises(BocError, match=r"3 of the 4 pictures of disk are missing .*disk/1.png"):
        sync_index("x", folders, at=at)
    assert sync_index("x", folders, at=at, remove_many=True).removed == 4


def test_a_disk_goes_between_the_listing_and_the_look(
    encoder: Counting,
    files: Files,
    tmp_path: Path,
    monkeypatch,
):
    files.index()
    files.write(files.folder / "disk" / "new.png", "new on the disk")
    before = files.held()
    store = tmp_path / "store"

    def listing(*given, **options):
        listed = sources.open_sources(*given, **options)
        (files.folder / "disk").rename(store)
        return listed

    with monkeypatch.context() as patch:
        patch.setattr(sync, "open_sources", listing)
        report = files.sync()
    assert (report.away, report.unreadable) == ({"disk/": 4}, ["disk/new.png"])
    assert files.held() == before
    store.rename(files.folder / "disk")
    assert files.sync().added == 1
    assert len(encoder.seen) == len(set(encoder.seen)) == 11


def test_a_disk_goes_while_its_pictures_are_encoded(
    encoder: Counting,
    files: Files,
    tmp_path: Path,
):
    files.index()
    files.write(files.folder / "2023" / "0.png", "changed")
    files.write(files.folder / "disk" / "0.png", "changed on the disk")
    files.write(files.folder / "disk" / "new.png", "new on the disk")
    disk = files.folder / "disk"
    store = tmp_path / "store"
    encoder.meanwhile = [lambda: None, lambda: disk.rename(store) and None]
    report = files.sync()
    assert (report.changed, report.removed, len(report.failed)) == (1, 0, 2)
    assert len(files.held()) == 10
    store.rename(disk)
    report = files.sync()
    assert (report.changed, report.added, report.failed) == (1, 1, [])


@pytest.mark.parametrize("command", ["index", "extract"])
@pytest.mark.parametrize("at_once", [True, False])
def test_a_disk_goes_while_the_index_is_made(
    encoder: Counting,
    files: Files,
    at: str,
    tmp_path: Path,
    command: str,
    at_once: bool,
) -> None:
    """Its pictures are not taken for damaged, whether it is back before the end or later."""
    files.write(files.folder / "2023" / "6.png", "bad: damaged")
    disk = files.folder / "disk"
    store = tmp_path / "store"
    steps = [lambda: None] * 22
    steps[-1] = lambda: disk.rename(store)
    if at_once:
        steps[0] = lambda: store.rename(disk)
    encoder.meanwhile = steps
    if command == "index":
        files.index()
    else:
        features = tmp_path / "x.h5"
        told = boc("extract", files.folder, "-o", features, "--encoder", "test:counting")
        assert told.exit_code == 0
        new("x", features, at)
    assert len(files.held()) == 6
    if not at_once:
        store.rename(disk)
    report = files.sync()
    assert report.added == 4
    assert len(encoder.seen) == len(set(encoder.seen)) == 10
    assert files.sync().unreadable == ["2023/6.png"]


def mount(*arguments: object) -> None:
    """Mount or unmount; skip the test where that is not allowed."""
    words = list(map(str, arguments))
    if subprocess.run(words, check=False, capture_output=True).returncode:
        pytest.skip(f"not allowed here: {' '.join(words[:2])}")


@pytest.fixture
def disk(files: Files, tmp_path: Path) -> Iterator[tuple[str, Path, Path]]:
    """The words that mount another device at ``lib/disk``, where it is mounted, with a picture."""
    store = tmp_path / "store"
    store.mkdir()
    place = files.folder / "disk"
    for path in place.iterdir():
        path.unlink()
    mount("mount", "-t", "tmpfs", "none", store)
    try:
        words = ("mount", "--bind", store, place)
        mount(*words)
        for i in range(4):
            files.write(place / f"{i}.png", f"of the mount {i}")
        yield words
    finally:
        for path in (place, store):
            subprocess.run(["umount", "-l", path], check=False, capture_output=True)


def test_what_is_written_where_a_disk_was_mounted_is_no_disk(
    files: Files,
    disk: tuple[str, Path, Path],
):
    files.index()
    place = disk[-1]
    mount("umount", place)
    files.write(place / "stray.png", "stray")
    report = files.sync()
    assert (report.added, report.away) == (1, {"disk/": 4})
    files.write(place / "stray.png", "stray, changed")
    report = files.sync()
    assert (report.changed, report.away) == (1, {"disk/": 4})
    mount(*disk)  # which hides the stray picture
    (place / "3.png").unlink()
    report = files.sync()
    assert (report.removed, report.same, report.away, report.encoded) == (1, 9, {"disk/": 1}, 0)


@pytest.mark.slow
def test_watch_sees_a_mount_below_the_library(
    encoder: Counting,
    files: Files,
    at: str,
    disk: tuple[str, Path, Path],
):
    pytest.importorskip("watchfiles")
    files.index()
    place = disk[-1]
    with watching("x", files.folder, at) as told:
        mount("umount", "-l", place)
        until(lambda: getattr(told[-1], "away", None) == {"disk/": 4})
        mount(*disk)
        until(lambda: getattr(told[-1], "away", None) == {})
        files.write(place / "new.png", "new on the disk")
        until(lambda: "disk/new.png" in files.held())
    assert len(files.held()) == len(encoder.seen) == 11
