"""The embedded index: what an older format, damage, second writers and half-finished loads do to
its folder."""

import errno
import gc
import json
import shutil
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from boc.atomic_files import sha256
from boc.errors import BackendError, BocError, ManifestError
from boc.manage.build import build_index
from boc.manifest import FORMAT
from boc.rerank.storage import store
from boc.types import Batch, Embeddings, Filter, Item, Ragged, Rows, SearchRequest
from indexing.embedded import commits, fs, merge, text_store_writer, writer as writer_module
from indexing.embedded.backend import EmbeddedBackend
from indexing.file import connect
from tests.oracles import new_manifest, picture, random_terms, sentence, write_features

GOLDEN = Path(__file__).resolve().parents[2] / "golden"

ARRAYS = {"widths": np.array([3], dtype=np.int64)}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with the index ``pets``."""
    build(tmp_path, "pets")
    return tmp_path


def build(folder: Path, name: str, n: int = 6, largest: int = 9) -> None:
    items = [
        picture(f"{i}.jpg") if i % 2 else sentence(f"{i}", f"sentence {i}", "0.jpg")
        for i in range(n)
    ]
    terms = random_terms(
        0,
        (n, 4),
        largest,
        1,
    )
    vectors = np.eye(n, 3, dtype=np.float32)
    concepts = store(Ragged.from_sets([np.ones((i % 3, 2)) for i in range(n)], 2), "int8")
    with EmbeddedBackend(folder).create(
        name,
        new_manifest(
            4,
            3,
            ARRAYS,
            concepts="int8",
        ),
        ARRAYS,
    ) as writer:
        writer.add(
            Rows(
                items,
                terms,
                vectors,
                concepts,
            ),
        )
        writer.commit()


def files_of(home: Path, name: str = "pets") -> list[Path]:
    """All that the index consists of."""
    return [
        path
        for path in sorted((home / name).rglob("*"))
        if path.is_file() and path.name not in (".lock", ".checked")
    ]


def folder_of(home: Path, kind: str) -> Path:
    """The one folder of a kind."""
    (folder,) = (home / "pets").glob(f"{kind}-*")
    return folder


def state(home: Path, name: str = "pets") -> dict[str, bytes]:
    return {str(path.relative_to(home)): path.read_bytes() for path in files_of(home, name)}


@pytest.mark.parametrize("compacted", [False, True])
def test_golden_index_is_read_edited_and_compacted(tmp_path: Path, compacted: bool):
    shutil.copytree(GOLDEN / f"format-{FORMAT}", tmp_path, dirs_exist_ok=True)
    expected = json.loads((tmp_path / "expected.json").read_text(encoding="utf-8"))
    backend = EmbeddedBackend(tmp_path)
    assert backend.open("pets").manifest.format == FORMAT
    if compacted:
        backend.compact("pets")
    index = backend.open("pets")
    items = [Item(*fields) for fields in expected["items"]]
    keys = [item.id for item in items]
    queries = sparse.csr_array(np.array(expected["queries"], np.int32))
    assert list(index.items()) == items
    assert index.vectors(keys).tolist() == expected["vectors"]
    assert index.terms(keys).toarray().tolist() == expected["terms"]
    assert [
        [[hit.item.id, hit.score] for hit in hits]
        for hits in index.search(SearchRequest(queries, 7))
    ] == expected["hits"]
    assert set(index.arrays()) == set(index.manifest.arrays)
    assert index.damaged_files() == []
    assert index.concepts(keys).values.tolist() == expected["concepts"]
    hits = index.search(
        SearchRequest(
            queries[:1],
            50,
            filters=[Filter("year", ">=", 2010), Filter("tag", "=", "grass")],
        ),
    )[0]
    assert hits
    assert all(
        hit.item.fields["year"] >= 2010 and "grass" in hit.item.fields["tag"] for hit in hits
    )
    assert {hit.item.id for hit in index.match(["dog 7"], 50)[0]} == {
        key for key in keys if "#" in key
    }
    with backend.edit("pets") as editor:
        assert editor.delete([keys[0], "nothing"]) == 1
        editor.commit("ef" * 32)
    edited = backend.open("pets")
    assert list(edited.items()) == items[1:]
    assert edited.terms(keys[1:]).toarray().tolist() == expected["terms"][1:]


def test_a_pointer_to_no_commit_is_refused(home: Path):
    """As before format 4, when CURRENT named a folder."""
    (home / "pets" / "CURRENT").write_text("generation-0123456789ab")
    backend = EmbeddedBackend(home)
    for use in (backend.open, lambda name: backend.edit(name).__enter__(), backend.compact):
        with pytest.raises(ManifestError, match=r"not the name of a commit.*rebuild the index"):
            use("pets")
    build(home, "pets")
    assert len(EmbeddedBackend(home).open("pets")) == 6


def test_damaged_file_is_named(home: Path):
    files = files_of(home)
    assert {
        "rows.npy",
        "starts.npy",
        "ids.bin",
        "words.sqlite",
        "widths.npy",
        "CURRENT",
    } <= {path.name for path in files}
    assert {"concepts.npy", "concept_offsets.npy", "concept_scales.npy"} <= {
        path.name for path in files
    }
    for path in files:
        whole = path.read_bytes()
        changed = whole[:-1] + bytes([whole[-1] ^ 1]) if whole else whole
        for damage in (whole[:-1], whole[: len(whole) // 2], b"", changed, None):
            if damage == whole:
                continue
            if damage is None:
                path.unlink()
            else:
                path.write_bytes(damage)
            error = BackendError if path.name == "CURRENT" and damage is None else ManifestError
            with pytest.raises(error, match=r"boc\.build_index") as caught:
                connect(f"file:{home}").open("pets")
            assert str(path) in str(caught.value) or path.name == "CURRENT"
        path.write_bytes(whole)
    assert len(list(connect(f"file:{home}").open("pets").items())) == 6


def test_copy_is_checked_once(home: Path, tmp_path: Path, monkeypatch):
    shutil.copytree(home / "pets", tmp_path / "copies" / "pets")
    backend = EmbeddedBackend(tmp_path / "copies")
    assert len(backend.open("pets")) == 6
    hashed = []
    monkeypatch.setattr(commits, "sha256", lambda path: (hashed.append(path.name), sha256(path))[1])
    assert len(backend.open("pets")) == 6
    assert hashed == [commits.current(tmp_path / "copies" / "pets")]


def test_newer_format_is_refused(home: Path):
    (path,) = (home / "pets").glob("commit-*")
    raw = json.loads(path.read_text())
    raw["manifest"]["format"] = FORMAT + 1
    (home / "newer.json").write_text(json.dumps(raw))
    with pytest.raises(ManifestError, match=f"index format {FORMAT + 1}.*upgrade boc"):
        commits.read(home / "newer.json")


def test_index_closes_without_garbage_collection(home: Path):
    """Not when garbage is collected: a server opens the index again after each change of it."""
    index = connect(f"file:{home}").open("pets")
    index.search(SearchRequest(index.terms([next(iter(index.items())).id]), 3, "image"))
    index.document_frequencies()
    reference = weakref.ref(index)
    gc.disable()
    try:
        del index
        assert reference() is None
    finally:
        gc.enable()


def test_edit_of_damaged_index_frees_the_lock(home: Path):
    backend = connect(f"file:{home}")
    editor = backend.edit("pets")
    path = folder_of(home, "segment") / "rows.npy"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(ManifestError, match=r"rows\.npy"), editor:
        raise AssertionError("an editor of half an index")
    path.write_bytes(whole)
    with backend.edit("pets") as editor:
        editor.delete(["0"])
        editor.commit("ef" * 32)
    assert len(backend.open("pets")) == 5


def test_damaged_index_can_be_replaced(home: Path):
    path = folder_of(home, "segment") / "rows.npy"
    path.write_bytes(path.read_bytes()[:-1])
    before = state(home)
    with connect(f"file:{home}").create("pets", new_manifest(4, 3), {}) as writer:
        writer.add(
            Rows(
                [picture("a")],
                random_terms(
                    0,
                    (1, 4),
                    3,
                    1,
                ),
                np.ones((1, 3), np.float32),
            ),
        )
    assert before.items() <= state(home).items()
    build(home, "pets", n=2)
    assert len(connect(f"file:{home}").open("pets")) == 2
    assert len(list((home / "pets").glob("segment-*"))) == 1


def test_full_disk_changes_nothing(home: Path, monkeypatch):
    before = state(home)

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(fs.os, "fsync", full)
        with pytest.raises(BackendError, match=r"No space left on device.*free some space"):
            build(home, "pets", n=2)
    assert state(home) == before
    build(home, "pets", n=2)


def test_small_segments_are_merged_by_the_next_edit(
    tmp_path: Path,
    monkeypatch,
):
    monkeypatch.setattr(merge, "FEW", 40)
    load(tmp_path, 40)
    backend = connect(f"file:{tmp_path}")
    terms = random_terms(
        0,
        (1, 6),
        5,
        1,
    )
    for i in range(20):
        with backend.edit("dogs") as editor:
            editor.put(Rows([picture(f"new{i}")], terms, np.ones((1, 3), np.float32)))
            editor.commit("ef" * 32)
    assert len(backend.open("dogs")) == 60
    assert len(list((tmp_path / "dogs").glob("segment-*"))) == 2


def test_segment_of_mostly_deleted_rows_is_rewritten(tmp_path: Path):
    load(tmp_path, 40)
    with connect(f"file:{tmp_path}").edit("dogs") as editor:
        editor.delete([item.id for item in items_of(30)])
        editor.commit("ef" * 32)
    (segment,) = (tmp_path / "dogs").glob("segment-*")
    assert len(np.load(segment / "modality.npy")) == 10


@pytest.mark.parametrize("deleted", [4, 5])
def test_a_segment_with_more_than_a_tenth_deleted_is_rewritten_with_all_smaller_segments(
    deleted: int,
    tmp_path: Path,
    monkeypatch,
):
    monkeypatch.setattr(merge, "FEW", 1)
    load(tmp_path, 40)
    terms = random_terms(
        0,
        (1, 6),
        5,
        1,
    )
    with connect(f"file:{tmp_path}").edit("dogs") as editor:
        editor.put(Rows([picture("new")], terms, np.ones((1, 3), np.float32)))
        editor.delete([item.id for item in items_of(deleted)])
        editor.commit("ef" * 32)
    sizes = [len(np.load(path)) for path in tmp_path.glob("dogs/segment-*/modality.npy")]
    assert sorted(sizes) == ([1, 40] if deleted == 4 else [36])


def test_removal_of_damaged_index(home: Path):
    backend = connect(f"file:{home}")
    (folder_of(home, "segment") / "rows.npy").unlink()
    assert backend.names() == ["pets"]
    backend.remove("pets")
    assert (backend.names(), list(home.iterdir())) == ([], [])


def test_pickles_are_refused(home: Path, monkeypatch):
    path = folder_of(home, "segment") / "rows.npy"
    np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    monkeypatch.setattr(commits, "check", lambda *_: None)
    with pytest.raises(ManifestError, match=r"rows\.npy: damaged"):
        connect(f"file:{home}").open("pets")


def test_leftovers_of_killed_writers(home: Path):
    for name in ("building-0123456789ab", "segment-0123456789ab", "codec-0123456789ab"):
        (home / "pets" / name).mkdir()
        (home / "pets" / name / "rows.npy").write_bytes(b"half")
    (home / "pets" / ".CURRENT.tmp").write_bytes(b"commit-")
    (home / "new" / "building-0123456789ab").mkdir(parents=True)
    backend = connect(f"file:{home}")
    assert len(backend.open("pets")) == 6
    assert not backend.exists("new")
    with pytest.raises(BackendError, match=r"no index 'new' .*it has: pets"):
        backend.open("new")
    for name in ("pets", "new"):
        build(home, name, n=2)
        kinds = sorted(path.name.partition("-")[0] for path in (home / name).iterdir())
        assert kinds == [
            ".checked",
            ".lock",
            "CURRENT",
            "codec",
            "commit",
            "segment",
        ]


@pytest.mark.parametrize("adds", [1, 2])
def test_failed_segment_changes_nothing(
    home: Path,
    monkeypatch,
    adds: int,
):
    """By the next rows or by the commit, whichever comes first: segments are written while rows
    come in."""
    monkeypatch.setattr(writer_module, "WAITING", 1)
    before = state(home)

    def full(*arguments):
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(merge, "merge", full)
    with connect(f"file:{home}").create("pets", new_manifest(4, 3), {}) as writer:

        def load():
            for key in range(adds):
                terms = random_terms(
                    0,
                    (1, 4),
                    3,
                    1,
                )
                writer.add(Rows([picture(str(key))], terms, np.ones((1, 3), np.float32)))
            writer.commit()

        with pytest.raises(OSError, match="no space"):
            load()
    assert state(home) == before


class KilledError(BaseException):
    """Stands for the end of the process."""


def items_of(n: int) -> list[Item]:
    return [
        picture(f"{i:03d}.jpg") if i % 2 else sentence(f"{i:03d}", f"a dog number {i}")
        for i in range(n)
    ]


def load(home: Path, n: int, *, stop: int | None = None, source: str = "cd" * 32) -> list[str]:
    """Load n items in batches of ten; give up after ``stop`` of them. The ids that had to be
    added."""
    items = items_of(n)
    terms = random_terms(
        n,
        (n, 6),
        5,
        0.6,
    )
    vectors = np.random.default_rng(n).standard_normal((n, 3)).astype(np.float32)
    added = []
    manifest = replace(new_manifest(6, 3, ARRAYS), source=source)
    with connect(f"file:{home}").create("dogs", manifest, ARRAYS) as writer:
        for i in range(0, n, 10):
            if i == stop:
                raise KilledError
            batch = items[i : i + 10]
            if not writer.has([item.id for item in batch]):
                writer.add(Rows(batch, terms[i : i + 10], vectors[i : i + 10]))
                added += [item.id for item in batch]
        writer.commit()
    return added


@pytest.fixture
def small(monkeypatch) -> None:
    """Every second batch of ten becomes a segment, and three segments of about a size one."""
    monkeypatch.setattr(writer_module, "WAITING", 2000)
    monkeypatch.setattr(merge, "MERGE", 3)
    monkeypatch.setattr(merge, "FEW", 1)


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_continued_load_has_the_same_bytes(tmp_path: Path):
    assert len(load(tmp_path / "calm", 300)) == 300
    with pytest.raises(KilledError):
        load(tmp_path / "wild", 300, stop=200)
    assert not connect(f"file:{tmp_path / 'wild'}").exists("dogs")
    left = load(tmp_path / "wild", 300)
    assert 100 <= len(left) < 140
    assert [key for key in state(tmp_path / "wild", "dogs") if "segment" in key] == [
        key for key in state(tmp_path / "calm", "dogs") if "segment" in key
    ]
    assert len(connect(f"file:{tmp_path / 'wild'}").open("dogs")) == 300
    assert not (tmp_path / "wild" / "dogs" / "loading.json").exists()


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("n", [10, 20, 100])
def test_each_text_is_tokenised_once(
    tmp_path: Path,
    n: int,
    monkeypatch,
):
    """Of a load that waits in memory to its end, of one that became a segment just then, and of one
    of several, killed in between: merges and compaction read the words that were found."""
    texts_read = []
    real = text_store_writer.space_words

    def record(texts):
        texts_read.extend(texts)
        return real(texts)

    monkeypatch.setattr(text_store_writer, "space_words", record)
    with pytest.raises(KilledError):
        load(tmp_path, n + 10, stop=n)
    load(tmp_path, n + 10)
    with connect(f"file:{tmp_path}").edit("dogs") as editor:
        editor.delete(["000"])
        editor.compact()
    texts = {item.id: item.content for item in items_of(n + 10) if item.modality == "text"}
    assert sorted(filter(None, texts_read)) == sorted(texts.values())
    hits = connect(f"file:{tmp_path}").open("dogs").match(["dog"], n + 10)[0]
    assert {hit.item.id for hit in hits} == texts.keys() - {"000"}


def write_old_words(monkeypatch) -> None:
    """Write words as boc 0.3.0 did: in small letters, in no file that says how they are folded."""
    settings = [each for each in text_store_writer._SETTINGS if "user_version" not in each]
    monkeypatch.setattr(text_store_writer, "_SETTINGS", settings)
    monkeypatch.setattr(text_store_writer, "space_words", lambda texts: "\n".join(texts).lower())


def test_words_of_an_older_index_are_found_folded(
    tmp_path: Path,
    monkeypatch,
):
    texts = ["Café café", "cafe", "Straße", "don't x_y", "a b", "kite", "Cafe\u0301"]
    questions = ["cafe", "CAFÉ", "strasse", "Straße", "don't", "x_y", "a", "t", "kites"]
    items = [sentence(f"{i}", text) for i, text in enumerate(texts)]
    n = len(items)
    terms = random_terms(0, (n, 4), 9, 1)
    backend = connect(f"file:{tmp_path}")
    hits = []
    words = []
    for name in ("new", "old"):
        with monkeypatch.context() as patched:
            if name == "old":
                write_old_words(patched)
            with backend.create(name, new_manifest(4, 3, ARRAYS), ARRAYS) as writer:
                writer.add(Rows(items, terms, np.eye(n, 3, dtype=np.float32)))
                writer.commit()
        found = backend.open(name).match(questions, 50)
        hits.append([{hit.item.id: hit.score for hit in each} for each in found])
        with backend.edit(name) as editor:
            editor.delete(["1"])
            editor.compact()
        words += [data for path, data in state(tmp_path, name).items() if "words.sqlite" in path]
    assert [set(each) for each in hits[0]] == [
        *[{"0", "1", "6"}] * 2,
        *[{"2"}] * 2,
        *[{"3"}] * 2,
        *({"4"}, {"3"}, set()),
    ]
    # Only the lengths of texts differ: don't is one word of an older index.
    for new, old in zip(*hits, strict=True):
        assert old == pytest.approx(new, rel=0.5)
    assert words[0] == words[1]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("change", ["source", "damage"])
def test_broken_load_begins_anew(tmp_path: Path, change: str):
    with pytest.raises(KilledError):
        load(tmp_path, 100, stop=60)
    if change == "damage":
        load_so_far = commits.read(tmp_path / "dogs" / commits.LOADING)
        path = tmp_path / "dogs" / load_so_far.segments[0].name / "ids.bin"
        path.write_bytes(path.read_bytes()[:-1])
    assert len(load(tmp_path, 100, source="ef" * 32 if change == "source" else "cd" * 32)) == 100
    assert len(list((tmp_path / "dogs").glob("segment-*"))) == 1


@pytest.mark.usefixtures("small")
def test_edits_spare_a_broken_load(tmp_path: Path):
    load(tmp_path, 40, source="ef" * 32)
    with pytest.raises(KilledError):
        load(tmp_path, 100, stop=60)
    with connect(f"file:{tmp_path}").edit("dogs") as editor:
        editor.delete(["000"])
        editor.commit("12" * 32)
    assert len(connect(f"file:{tmp_path}").open("dogs")) == 39
    assert len(load(tmp_path, 100)) < 100
    assert len(connect(f"file:{tmp_path}").open("dogs")) == 100


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_small_edits_are_merged(tmp_path: Path):
    load(tmp_path, 40)
    backend = connect(f"file:{tmp_path}")
    terms = random_terms(
        0,
        (1, 6),
        5,
        1,
    )
    for i in range(30):
        with backend.edit("dogs") as editor:
            editor.put(Rows([picture(f"new {i}")], terms, np.ones((1, 3), np.float32)))
            editor.commit(f"{i:064x}")
        assert len(list((tmp_path / "dogs").glob("segment-*"))) <= 9
    assert len(backend.open("dogs")) == 70
    backend.compact("dogs")
    assert len(list((tmp_path / "dogs").glob("segment-*"))) == 1
    assert len(backend.open("dogs")) == 70


def test_unreadable_current_is_named(home: Path, monkeypatch):
    read = Path.read_text

    def refuse(path, *args, **kwargs):
        if path.name == "CURRENT":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return read(path, *args, **kwargs)

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(
        BackendError,
        match=r"CURRENT: cannot be read \(Permission denied\); .*change the permissions",
    ):
        EmbeddedBackend(home).open("pets")


def test_empty_place_and_bad_address(tmp_path: Path):
    with pytest.raises(BackendError, match=r"it has none.*boc\.build_index"):
        connect(f"file:{tmp_path / 'nowhere'}").open("pets")
    with pytest.raises(BackendError, match="write file:DIR"):
        connect("file:")


def test_folder_takes_no_parts_of_a_load(tmp_path: Path):
    rows = Batch([picture("1.jpg")], Embeddings("image", np.ones((1, 3), np.float32)))
    with pytest.raises(BackendError, match="leave out shard="):
        build_index(
            "pets",
            write_features(tmp_path / "pets.h5", rows),
            at=f"file:{tmp_path}",
            shard="1/2",
        )


def test_unwritable_place_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("in the way")
    with (
        pytest.raises(BocError, match=r"file/pets.*; check the path"),
        connect(f"file:{tmp_path / 'file'}").create("pets", new_manifest(4, 3), {}),
    ):
        raise AssertionError("a writer inside a file")


@pytest.mark.slow
def test_opening_during_replacement(home: Path):
    with ThreadPoolExecutor(1) as pool:
        replacing = pool.submit(lambda: [build(home, "pets") for _ in range(20)])
        opened = 0
        while not replacing.done():
            assert len(list(connect(f"file:{home}").open("pets").items())) == 6
            opened += 1
        replacing.result()
    assert opened
