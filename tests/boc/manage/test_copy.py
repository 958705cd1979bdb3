"""Copies to indexes and to files: the same index, or none; kills, changes meanwhile, what is there
already, damage."""

import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from boc import Searcher, build_index, copy_index, plugins
from boc.errors import BocError, UnreachableError
from boc.evaluate.verify import verify
from boc.inputs.features import FeatureFile
from boc.manage.build import add_items, delete_items
from indexing.embedded.engine import EmbeddedEngine
from tests.helpers import boc, run


@pytest.fixture
def at(library: Path, tmp_path: Path) -> str:
    """A place with a copy of the index of the library."""
    shutil.copytree(library / "index", tmp_path / "indexes")
    return f"file:{tmp_path / 'indexes'}"


@pytest.fixture(scope="module")
def export(library: Path, tmp_path_factory) -> Path:
    """The index of the library as a file."""
    path = tmp_path_factory.mktemp("export") / "photos.zip"
    copy_index("photos", at=f"file:{library / 'index'}", to=path)
    return path


def assert_same(at: str, one: str, to: str, other: str) -> None:
    """Two indexes hold the same and answer alike."""
    ours = Searcher.open(one, at)
    theirs = Searcher.open(other, to)
    assert ours.index.manifest.same_contents(theirs.index.manifest)
    items = list(ours.index.items())
    assert items == list(theirs.index.items())
    ids = [item.id for item in items]
    vectors = ours.index.vectors(ids)
    assert np.array_equal(vectors, theirs.index.vectors(ids))
    assert (ours.index.terms(ids) != theirs.index.terms(ids)).nnz == 0
    for key in ids[::11]:
        query = ours.embeddings(key)
        assert ours.search_vectors(query, k=20) == theirs.search_vectors(query, k=20)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"code": "dictionary:1/4(terms=8)", "rm": 7, "concepts": "int8"},
        {"rerank": "mrsw", "vectors": "int8"},
    ],
)
def test_a_copy_in_a_file_round_trips(
    library: Path,
    tmp_path: Path,
    monkeypatch,
    options: dict[str, Any],
):
    monkeypatch.setattr("boc.manage.load.BATCH", 13)
    at = f"file:{tmp_path / 'here'}"
    to = f"file:{tmp_path / 'there'}"
    (tmp_path / "table.csv").write_text("id,year:integer,tag\n000.png,2019,a|b\n")
    build_index("photos", library / "photos.h5", at=at, metadata=tmp_path / "table.csv", **options)
    report = copy_index("photos", at=at, to=tmp_path / "photos.zip")
    assert (report.images, report.texts) == (40, 80)
    build_index("again", tmp_path / "photos.zip", at=to)
    assert_same(at, "photos", to, "again")
    assert verify(plugins.backend(to).open("again")).right
    assert build_index("photos", tmp_path / "photos.zip", at=at).up_to_date


def test_a_copy_under_a_dictionary_promises_a_recall(at: str):
    with pytest.raises(BocError, match="add code='dictionary'"):
        copy_index("photos", "new", at=at, recall=0.9)
    copy_index("photos", "new", at=at, code="dictionary(terms=8)", recall=0.9)
    assert plugins.backend(at).open("new").manifest.recall["target"] == 0.9


@pytest.mark.slow
def test_other_indexes_are_made_of_a_file(library: Path, at: str, tmp_path: Path):
    copy_index("photos", at=at, to=tmp_path / "photos.zip")
    build_index("coded", tmp_path / "photos.zip", at=at, code="bits:8", rm=3)
    coded = plugins.backend(at).open("coded")
    assert verify(coded).right
    assert (coded.manifest.rm, coded.manifest.items) == (3, {"image": 40, "text": 80})
    build_index("deeper", tmp_path / "photos.zip", at=at, rm=50)
    deeper = plugins.backend(at).open("deeper").manifest
    photos = plugins.backend(at).open("photos").manifest
    assert (
        deeper.rm,
        deeper.codec,
        deeper.arrays,
    ) == (50, photos.codec, photos.arrays)
    (tmp_path / "table.csv").write_text("id,year:integer,width:keyword\n000.png,2019,wide\n")
    build_index("described", tmp_path / "photos.zip", at=at, metadata=tmp_path / "table.csv")
    described = plugins.backend(at).open("described")
    assert described.manifest.fields == photos.fields | {"year": "integer", "width": "keyword"}
    first, second = described.find(["000.png", "001.png"])
    assert (first.fields["year"], first.fields["width"]) == (2019, "wide")
    assert "width" not in second.fields
    delete_items("photos", ["003.png"], at=at)
    assert add_items("photos", tmp_path / "photos.zip", at=at).replaced == 119
    with pytest.raises(BocError, match="has no concept sets"):
        build_index("other", tmp_path / "photos.zip", at=at, rerank="mrsw")


@pytest.mark.parametrize("code", ["dictionary:1/4(terms=8)", "bits:8", "permutation:6"])
def test_copy_with_another_code_equals_indexing_with_it(library: Path, at: str, code: str):
    copy_index("photos", "coded", at=at, code=code, rm=7)
    build_index("indexed", library / "photos.h5", at=at, code=code, rm=7)
    ours = Searcher.open("coded", at)
    theirs = Searcher.open("indexed", at)
    assert ours.index.manifest.codec == theirs.index.manifest.codec
    assert ours.index.manifest.rm == 7
    assert verify(ours.index).right
    ids = [item.id for item in ours.index.items()]
    assert ids == [item.id for item in theirs.index.items()]
    apart = ours.index.terms(ids) != theirs.index.terms(
        ids,
    )  # the order of the items differs, and so the last bits
    assert code.startswith("dictionary") or apart.nnz <= 2


def test_copy_onto_itself_replaces_the_code(at: str):
    before = Searcher.open("photos", at)
    ids = [item.id for item in before.index.items()]
    vectors = before.index.vectors(ids)
    copy_index("photos", at=at, code="bits:8", replace=True)
    after = plugins.backend(at).open("photos")
    assert after.manifest.codec != before.index.manifest.codec
    assert np.array_equal(after.vectors(ids), vectors)
    assert verify(after).right
    assert before.renew().index.manifest == after.manifest


@pytest.mark.slow
@pytest.mark.parametrize(
    ("to", "error"),
    [
        ("file:{folder}/other", KeyboardInterrupt()),
        ("{folder}/photos.zip", UnreachableError("the source is away")),
    ],
)
def test_copy_continues_after_an_error(
    at: str,
    tmp_path: Path,
    monkeypatch,
    to: str,
    error: BaseException,
):
    monkeypatch.setattr("boc.manage.load.BATCH", 10)
    monkeypatch.setattr("indexing.embedded.writer.WAITING", 100)
    to = to.format(folder=tmp_path)
    vectors = EmbeddedEngine.vectors
    calls = [0]

    def count(self, ids):
        calls[0] += 1
        if calls[0] == 8:
            raise error
        return vectors(self, ids)

    monkeypatch.setattr(EmbeddedEngine, "vectors", count)
    with pytest.raises(type(error)):
        copy_index("photos", at=at, to=to)
    assert not Path(to).exists()
    calls[0] = 10
    ticks = []
    report = copy_index(
        "photos",
        at=at,
        to=to,
        progress=lambda *tick: ticks.append(tick),
    )
    assert (report.images, report.texts) == (40, 80)
    assert calls[0] - 10 < 12  # batches
    assert ticks[-1] == ("copying", 120, 120)
    if to.endswith(".zip"):
        build_index("again", to, at=at)
        assert sorted(each.name for each in tmp_path.iterdir()) == ["indexes", "photos.zip"]
    other = (at, "again") if to.endswith(".zip") else (to, "photos")
    assert_same(at, "photos", *other)
    assert verify(plugins.backend(other[0]).open(other[1])).right


@pytest.mark.parametrize("to", ["file:{folder}/other", "{folder}/photos.zip"])
def test_a_source_that_changes_is_refused(at: str, tmp_path: Path, to: str):
    to = to.format(folder=tmp_path)
    with pytest.raises(BocError, match="photos changed while it was being copied"):
        copy_index(
            "photos",
            at=at,
            to=to,
            progress=lambda *tick: delete_items("photos", ["003.png"], at=at),
        )
    if to.startswith("file:"):
        assert not plugins.backend(to).exists("photos")
        return
    assert not Path(to).exists()
    assert copy_index("photos", at=at, to=to).images == 39
    assert sorted(each.name for each in tmp_path.iterdir()) == ["indexes", "photos.zip"]


def test_codes_and_metrics_of_concepts_are_refused(at: str):
    with pytest.raises(
        BocError,
        match=r"needs the encoder's concept sets.* choose a code for vectors",
    ):
        copy_index("photos", "coded", at=at, code="soft(codebook=book.npz)")
    with pytest.raises(BocError, match="has no concept sets"):
        copy_index("photos", "coded", at=at, rerank="mrsw")
    assert plugins.backend(at).names() == ["photos"]


Edit = Callable[[dict[str, bytes]], object]


def first(files: dict[str, bytes], suffix: str) -> str:
    return min(name for name in files if name.endswith(suffix))


def spoil(files: dict[str, bytes]) -> None:
    """Change the last byte of the vectors."""
    name = first(files, "vectors.npy")
    files[name] = files[name][:-1] + bytes([files[name][-1] ^ 1])


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (spoil, "its bytes have changed since they were written"),
        (lambda files: files.pop(first(files, "rows.npy")), "missing or cut short"),
        (lambda files: files.update({first(files, "ids.bin"): b"x"}), "missing or cut short"),
        (lambda files: files.pop("photos/CURRENT"), "do not form one index"),
        (lambda files: files.update({"../photos/x": b""}), "is not an index file"),
        (lambda files: files.update({"/photos/x": b""}), "is not an index file"),
        (lambda files: files.update({"photos/.lock": b""}), "is not an index file"),
        (lambda files: files.update({"others/CURRENT": b""}), "not an index copy"),
    ],
)
def test_forged_export_is_refused(export: Path, tmp_path: Path, edit: Edit, words: str):
    with zipfile.ZipFile(export) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    edit(files)
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    at = f"file:{tmp_path / 'indexes'}"
    with pytest.raises(BocError, match=words):
        build_index("again", tmp_path / "photos.zip", at=at)
    assert "again" not in plugins.backend(at).names()
    assert not list(tmp_path.rglob("x"))


def test_packed_or_damaged_export_is_refused(export: Path, tmp_path: Path):
    path = tmp_path / "photos.zip"
    at = f"file:{tmp_path / 'indexes'}"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("photos/CURRENT", b"0" * 10**6)
    with pytest.raises(BocError, match="is compressed"):
        build_index("again", path, at=at)
    for data in (b"", b"mine", export.read_bytes()[:-100]):
        path.write_bytes(data)
        with pytest.raises(BocError, match="not an index copy"):
            build_index("again", path, at=at)
    assert list((tmp_path / "indexes").iterdir()) == []
    assert build_index("again", export, at=at).images == 40


def test_vectors_of_index_are_written_as_features(at: str, library: Path, tmp_path: Path):
    copy_index("photos", at=at, to=tmp_path / "photos.h5")
    with FeatureFile(tmp_path / "photos.h5") as ours, FeatureFile(library / "photos.h5") as theirs:
        assert sorted(item.id for item in theirs.items("text")) == ours.ids("text")
        assert ours.header.identity == theirs.header.identity
        order = np.argsort(theirs.ids("image"))
        assert np.array_equal(ours.vectors("image"), theirs.vectors("image")[order])


def test_copy_replaces_no_file_unasked(at: str, tmp_path: Path):
    path = tmp_path / "photos.zip"
    copy = ("copy", "photos", "--at", at, "--to")
    done = run(*copy, path)
    assert done.stdout == f"{path}: 40 pictures and 80 captions\n"
    assert "copying" in done.stderr
    assert "already exists; add --replace" in boc(*copy, path).stderr
    assert boc(*copy, path, "--replace").exit_code == 0
    for mine in (tmp_path / "mine.h5", tmp_path / "mine.zip"):
        mine.write_text("my own notes")
        assert "is another kind of file" in boc(*copy, mine, "--replace").stderr
        assert mine.read_text() == "my own notes"
    assert "no index 'nosuch'" in boc(f"copy nosuch --to {tmp_path}/new.zip --at {at}").stderr
    assert not (tmp_path / "new.zip").exists()
