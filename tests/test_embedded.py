"""The embedded index: its kernels against slow loops, and what damage, kills and second writers do to its folder."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from oracles import new_manifest, picture, random_terms, sentence, term_matrices
from scipy import sparse

from boc.errors import BackendError, BocError, ManifestError
from boc.manifest import FORMAT
from boc.rerank import store
from boc.types import Ragged
from indexing.embedded import EmbeddedBackend, accumulate, connect, gather, top_k

ARRAYS = {"widths": np.array([3], dtype=np.int64)}


@given(data=st.data(), n=st.integers(0, 8), width=st.integers(1, 6))
def test_accumulate_equals_the_dense_product(data: st.DataObject, n: int, width: int) -> None:
    terms = data.draw(term_matrices((n, width), 2**20))
    query = data.draw(term_matrices((1, width), 2**20))
    postings = terms.tocsc()
    scores = accumulate(
        postings.indptr.astype(np.int64), postings.indices, postings.data, (query.indices, query.data), n
    )
    weights = query.toarray()[0].tolist()
    expected = [sum(a * b for a, b in zip(row, weights, strict=True)) for row in terms.toarray().tolist()]
    assert scores.shape == (n,)
    assert scores.tolist() == expected


@given(scores=st.lists(st.integers(0, 3), max_size=30), k=st.integers(1, 35))
def test_top_k_equals_a_sort_with_many_ties(scores: list[int], k: int) -> None:
    expected = sorted((row for row, score in enumerate(scores) if score > 0), key=lambda row: (-scores[row], row))[:k]
    assert top_k(np.array(scores, dtype=np.float64), k).tolist() == expected


@given(lengths=st.lists(st.integers(0, 4), max_size=8), data=st.data(), width=st.sampled_from([(), (2,)]))
def test_gather_equals_sets_taken_one_by_one(lengths: list[int], data: st.DataObject, width: tuple[int, ...]) -> None:
    offsets = np.cumsum([0, *lengths])
    rows = np.arange(offsets[-1] * max(1, *width, 1)).reshape(-1, *width)
    chosen = data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=9)) if lengths else []
    sets = [rows[offsets[i] : offsets[i + 1]].tolist() for i in chosen]
    out = np.empty((sum(map(len, sets)), *width), rows.dtype)
    places = gather(rows, offsets, np.array(chosen, dtype=np.int64), out)
    assert [out[a:b].tolist() for a, b in pairwise(places)] == sets


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with the index ``pets``."""
    build(tmp_path, "pets")
    return tmp_path


def build(folder: Path, name: str, n: int = 6, largest: int = 9) -> None:
    items = [picture(f"{i}.jpg") if i % 2 else sentence(f"{i}", f"sentence {i}", "0.jpg") for i in range(n)]
    terms, vectors = random_terms(np.random.default_rng(0), (n, 4), largest, 1), np.eye(n, 3, dtype=np.float32)
    concepts = store(Ragged.from_sets([np.ones((i % 3, 2)) for i in range(n)], 2), "int8")
    with EmbeddedBackend(folder).create(name, new_manifest(4, 3, ARRAYS, concepts="int8"), ARRAYS) as writer:
        writer.add(items, terms, vectors, concepts)
        writer.commit()


def generation(home: Path) -> Path:
    return home / "pets" / (home / "pets" / "CURRENT").read_text(encoding="utf-8")


def test_every_file_of_a_generation_is_missed_by_name(home: Path) -> None:
    files = [path for path in generation(home).rglob("*") if path.is_file()]
    assert {"rows.npy", "ids.bin", "manifest.json", "widths.npy", "files.json"} <= {path.name for path in files}
    assert {"concepts.npy", "concept_offsets.npy", "concept_scales.npy"} <= {path.name for path in files}
    assert not [path for path in files if path.suffix == ".spool"]
    for path in files:
        whole = path.read_bytes()
        named = str(path.parent if path.name == "files.json" else path)
        for damage in (whole[:-1], whole[: len(whole) // 2], b"", None):
            if damage is None:
                path.unlink()
            else:
                path.write_bytes(damage)
            with pytest.raises(ManifestError, match="make the index anew") as caught:
                connect(f"file:{home}").open("pets")
            assert named in str(caught.value)
        path.write_bytes(whole)
    assert len(list(connect(f"file:{home}").open("pets").items())) == 6


def test_an_index_of_format_1_is_opened(home: Path) -> None:
    path, note = generation(home) / "manifest.json", generation(home) / "files.json"
    raw = json.loads(path.read_text()) | {"format": 1}
    del raw["rerank"], raw["concept_dtype"], raw["fields"]
    path.write_text(json.dumps(raw))
    sizes = {key: size for key, size in json.loads(note.read_text()).items() if not key.startswith("concept")}
    for file in generation(home).glob("concept*"):
        file.unlink()
    note.write_text(json.dumps(sizes | {"manifest.json": path.stat().st_size}))
    index = connect(f"file:{home}").open("pets")
    assert index.vectors(["1.jpg"]).tolist() == [[0, 1, 0]]
    with pytest.raises(BackendError, match=r"pets holds no concept sets"):
        index.concepts(["1.jpg"])


def test_an_index_of_an_older_format_can_be_edited(home: Path) -> None:
    path, note = generation(home) / "manifest.json", generation(home) / "files.json"
    raw = json.loads(path.read_text()) | {"format": 2}
    del raw["fields"]
    path.write_text(json.dumps(raw))
    note.write_text(json.dumps(json.loads(note.read_text()) | {"manifest.json": path.stat().st_size}))
    backend = connect(f"file:{home}")
    assert backend.open("pets").manifest.format == 2
    with backend.edit("pets") as editor:
        assert editor.delete(["0", "nothing"]) == 1
        editor.commit("ef" * 32)
    index = backend.open("pets")
    assert (index.manifest.format, index.manifest.fields) == (FORMAT, {})
    assert [item.id for item in index.items()] == ["1.jpg", "2", "3.jpg", "4", "5.jpg"]


def test_leaving_an_edit_without_commit_leaves_the_index_as_it_is(home: Path) -> None:
    before = {path: path.read_bytes() for path in (home / "pets").rglob("*") if path.is_file()}
    backend = connect(f"file:{home}")
    with backend.edit("pets") as editor:
        editor.delete(["0"])
        with pytest.raises(BocError, match="is being written by another process"), backend.edit("pets"):
            raise AssertionError("two editors at once")
    with backend.edit("pets") as editor:
        editor.delete([item.id for item in backend.open("pets").items()])
        with pytest.raises(BackendError, match="boc delete pets --all"):
            editor.commit("ef" * 32)
    assert {path: path.read_bytes() for path in (home / "pets").rglob("*") if path.is_file()} == before
    build(home, "pets", n=2)  # the lock is free again


def test_an_opened_index_keeps_what_an_edit_deletes(home: Path) -> None:
    backend = connect(f"file:{home}")
    old = backend.open("pets")
    with backend.edit("pets") as editor:
        editor.delete(["0", "1.jpg"])
        editor.commit("ef" * 32)
    assert len(list(old.items())) == 6
    assert old.concepts(["1.jpg"]).values.shape == (1, 2)
    assert len(list(backend.open("pets").items())) == 4


def test_an_edit_of_a_damaged_index_lets_go_of_the_lock(home: Path) -> None:
    backend = connect(f"file:{home}")
    editor = backend.edit("pets")
    path = generation(home) / "rows.npy"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(ManifestError, match=r"rows\.npy"), editor:
        raise AssertionError("an editor of half an index")
    path.write_bytes(whole)
    with backend.edit("pets") as editor:
        editor.delete(["0"])
        editor.commit("ef" * 32)
    assert len(list(backend.open("pets").items())) == 5


def test_a_removed_index_leaves_nothing_even_if_it_was_damaged(home: Path) -> None:
    backend = connect(f"file:{home}")
    (generation(home) / "rows.npy").unlink()
    assert backend.names() == ["pets"]
    backend.remove("pets")
    assert (backend.names(), list(home.iterdir())) == ([], [])


def test_asked_terms_are_looked_up_in_their_lists_only(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = connect(f"file:{home}").open("pets")
    whole = index.terms(["3.jpg", "0"]).toarray()
    monkeypatch.setattr(index, "_all_terms", None)
    assert index.terms(["3.jpg", "0"], [2, 1]).toarray().tolist() == (whole * [0, 1, 1, 0]).tolist()


def test_a_missing_generation_is_refused(home: Path) -> None:
    generation(home).rename(home / "pets" / "elsewhere")
    with pytest.raises(ManifestError, match="cannot be read"):
        connect(f"file:{home}").open("pets")


def test_a_changed_bit_in_the_code_is_noticed(home: Path) -> None:
    path = generation(home) / "codec" / "widths.npy"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(ManifestError, match="codec array widths is missing or changed"):
        connect(f"file:{home}").open("pets").arrays()


def test_pickled_arrays_are_not_loaded(home: Path) -> None:
    path = generation(home) / "rows.npy"
    np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    note = generation(home) / "files.json"
    note.write_text(json.dumps({**json.loads(note.read_text()), "rows.npy": path.stat().st_size}))
    with pytest.raises(ManifestError, match=r"rows\.npy: damaged"):
        connect(f"file:{home}").open("pets")


def test_what_a_killed_writer_left_is_never_opened_and_goes_with_the_next_one(home: Path) -> None:
    stale = [home / "pets" / "building-0123456789ab", home / "pets" / "generation-0123456789ab"]
    for folder in stale:
        (folder / "codec").mkdir(parents=True)
        (folder / "rows.npy").write_bytes(b"half")
    alone = home / "new" / "building-0123456789ab"
    alone.mkdir(parents=True)
    backend = connect(f"file:{home}")
    assert len(list(backend.open("pets").items())) == 6
    assert not backend.exists("new")
    with pytest.raises(BackendError, match=r"no index 'new' .*it holds: pets"):
        backend.open("new")
    for name in ("pets", "new"):
        build(home, name, n=2)
        left = {path.name for path in (home / name).iterdir()}
        assert left == {"CURRENT", ".lock", (home / name / "CURRENT").read_text()}


def test_leaving_without_commit_removes_what_was_written(home: Path) -> None:
    before = sorted((home / "pets").rglob("*"))
    with connect(f"file:{home}").create("pets", new_manifest(4, 3), {}) as writer:
        writer.add([picture("a")], random_terms(np.random.default_rng(0), (1, 4), 3, 1), np.ones((1, 3), np.float32))
        assert sorted((home / "pets").rglob("*")) != before
    assert sorted((home / "pets").rglob("*")) == before


def test_the_second_writer_is_refused_and_the_first_finishes(home: Path) -> None:
    backend = connect(f"file:{home}")
    with backend.create("pets", new_manifest(4, 3, ARRAYS), ARRAYS) as writer:
        with (
            pytest.raises(BocError, match="is being written by another process"),
            backend.create("pets", new_manifest(4, 3), {}),
        ):
            raise AssertionError("two writers at once")
        writer.add([picture("a")], random_terms(np.random.default_rng(0), (1, 4), 3, 1), np.ones((1, 3), np.float32))
        writer.commit()
    assert [item.id for item in backend.open("pets").items()] == ["a"]
    build(home, "pets", n=2)  # the lock is free again


@pytest.mark.parametrize(("largest", "dtype"), [(255, "uint8"), (256, "uint16"), (65535, "uint16"), (65536, "int32")])
def test_frequencies_take_the_smallest_type_that_holds_them(tmp_path: Path, largest: int, dtype: str) -> None:
    terms = sparse.csr_array(np.array([[largest, 1]], dtype=np.int32))
    with EmbeddedBackend(tmp_path).create("pets", new_manifest(2, 3), {}) as writer:
        writer.add([picture("a")], terms, np.ones((1, 3), np.float32))
        writer.commit()
    stored: NDArray[np.generic] = np.load(generation(tmp_path) / "frequencies.npy", allow_pickle=False)
    assert stored.dtype == dtype
    assert connect(f"file:{tmp_path}").open("pets").terms(["a"]).toarray().tolist() == [[largest, 1]]


def test_an_empty_place_and_a_bad_address_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=r"it holds none.*boc index pets SOURCE"):
        connect(f"file:{tmp_path / 'nowhere'}").open("pets")
    with pytest.raises(BackendError, match="write file:DIR"):
        connect("file:")


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with (
        pytest.raises(BocError, match=r"file/pets.*; choose another place"),
        connect(f"file:{tmp_path / 'file'}").create("pets", new_manifest(4, 3), {}),
    ):
        raise AssertionError("a writer inside a file")


def test_an_index_can_be_opened_at_any_moment_of_its_replacement(home: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        replacing = pool.submit(lambda: [build(home, "pets") for _ in range(20)])
        opened = 0
        while not replacing.done():
            assert len(list(connect(f"file:{home}").open("pets").items())) == 6
            opened += 1
        replacing.result()
    assert opened
