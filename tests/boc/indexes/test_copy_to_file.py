"""An index as a file and back: the same index, or none; kills, changes meanwhile, files that are there, damage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from boc import Searcher, add_items, build_index, copy_index, delete, plugins
from boc.errors import BocError, FeatureFileError
from boc.evaluate.verify import verify
from boc.inputs.feature_writer import FeatureWriter
from boc.inputs.features import FeatureFile
from boc.types import Batch
from indexing.embedded.index import EmbeddedIndex
from tests.helpers import boc


@pytest.fixture
def at(library: Path, tmp_path: Path) -> str:
    """A place with a copy of the index of the library."""
    place = f"file:{tmp_path / 'indexes'}"
    copy_index("photos", at=f"file:{library / 'index'}", to=place)
    return place


def assert_same(at: str, one: str, to: str, other: str) -> None:
    """Two indexes hold the same and answer alike."""
    ours, theirs = Searcher.open(one, at), Searcher.open(other, to)
    assert ours.index.manifest.same_contents(theirs.index.manifest)
    items = list(ours.index.items())
    assert items == list(theirs.index.items())
    ids = [item.id for item in items]
    vectors = ours.index.vectors(ids)
    assert np.array_equal(vectors, theirs.index.vectors(ids))
    assert (ours.index.terms(ids) != theirs.index.terms(ids)).nnz == 0
    for key in ids[::11]:
        asked = ours.embeddings(key)
        assert ours.search_vectors(asked, k=20) == theirs.search_vectors(asked, k=20)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{}, {"code": "dictionary:1/4(terms=8)", "rm": 7}, {"concepts": "int8"}, {"rerank": "mrsw"}, {"vectors": "int8"}],
)
def test_an_index_comes_back_as_it_was(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    monkeypatch.setattr("boc.indexes.load.BATCH", 13)
    at, to = f"file:{tmp_path / 'here'}", f"file:{tmp_path / 'there'}"
    (tmp_path / "table.csv").write_text("id,year:integer,tag\n000.png,2019,a|b\n")
    build_index("photos", library / "photos.h5", at=at, metadata=tmp_path / "table.csv", **options)
    report = copy_index("photos", at=at, to=tmp_path / "photos.h5")
    assert (report.images, report.texts, report.compared) == (40, 80, 120)
    build_index("again", tmp_path / "photos.h5", at=to)
    assert_same(at, "photos", to, "again")
    assert verify(plugins.backend(to).open("again")).right
    assert build_index("photos", tmp_path / "photos.h5", at=at).up_to_date


@pytest.mark.slow
def test_of_an_export_other_indexes_can_be_made(library: Path, at: str, tmp_path: Path) -> None:
    copy_index("photos", at=at, to=tmp_path / "photos.h5")
    build_index("coded", tmp_path / "photos.h5", at=at, code="bits:8", rm=3)
    coded = plugins.backend(at).open("coded")
    assert verify(coded).right
    assert (coded.manifest.rm, coded.manifest.items) == (3, {"image": 40, "text": 80})
    build_index("deeper", tmp_path / "photos.h5", at=at, rm=50)
    deeper, photos = plugins.backend(at).open("deeper").manifest, plugins.backend(at).open("photos").manifest
    assert (deeper.rm, deeper.codec, deeper.arrays) == (50, photos.codec, photos.arrays)
    (tmp_path / "table.csv").write_text("id,year:integer,width:keyword\n000.png,2019,wide\n")
    build_index("told", tmp_path / "photos.h5", at=at, metadata=tmp_path / "table.csv")
    told = plugins.backend(at).open("told")
    assert told.manifest.fields == photos.fields | {"year": "integer", "width": "keyword"}
    first, second = told.find(["000.png", "001.png"])
    assert (first.fields["year"], first.fields["width"]) == (2019, "wide")
    assert "width" not in second.fields
    delete("photos", ["003.png"], at=at)
    assert add_items("photos", tmp_path / "photos.h5", at=at).replaced == 119
    with pytest.raises(BocError, match="holds no concept sets"):
        build_index("other", tmp_path / "photos.h5", at=at, rerank="mrsw")


def failing_after(calls: int, method: Callable[..., Any]) -> Callable[..., Any]:
    left = [calls]

    def called(*arguments: Any, **keywords: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return method(*arguments, **keywords)

    return called


def test_after_a_kill_it_goes_on_and_nothing_half_has_the_name(
    at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("boc.indexes.load.BATCH", 10)
    path = tmp_path / "photos.h5"
    with monkeypatch.context() as patched:
        patched.setattr(EmbeddedIndex, "vectors", failing_after(7, EmbeddedIndex.vectors))
        with pytest.raises(KeyboardInterrupt):
            copy_index("photos", at=at, to=path)
    assert not path.exists()
    with monkeypatch.context() as patched:
        patched.setattr(
            EmbeddedIndex, "vectors", failing_after(5 + 1, EmbeddedIndex.vectors)
        )  # 5 batches, 1 comparison
        assert copy_index("photos", at=at, to=path).compared == 120
    build_index("again", path, at=at)
    assert_same(at, "photos", at, "again")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["indexes", "photos.h5"]


def test_an_index_that_changes_meanwhile_is_refused_then_and_later(at: str, tmp_path: Path) -> None:
    def interfere(label: str, done: int, total: int) -> None:
        delete("photos", ["003.png"], at=at)

    with pytest.raises(BocError, match=r"photos changed while it was copied"):
        copy_index("photos", at=at, to=tmp_path / "photos.h5", progress=interfere)
    assert not (tmp_path / "photos.h5").exists()
    with pytest.raises(FeatureFileError, match="unfinished run with another index and source"):
        copy_index("photos", at=at, to=tmp_path / "photos.h5")


def test_nothing_that_is_there_is_replaced_unasked(at: str, tmp_path: Path) -> None:
    path = tmp_path / "photos.h5"
    copy = ("copy", "photos", "--at", at, "--to")
    done = boc(*copy, path)
    assert done.exit_code == 0, done.output
    assert done.stdout == f"{path}: 40 pictures and 80 captions, 120 items compared without a difference\n"
    assert "copying" in done.stderr
    assert "is there already; add --replace" in boc(*copy, path).stderr
    assert boc(*copy, path, "--replace").exit_code == 0
    (tmp_path / "mine.h5").write_text("my own notes")
    assert "not of the kind to be written" in boc(*copy, tmp_path / "mine.h5", "--replace").stderr
    assert (tmp_path / "mine.h5").read_text() == "my own notes"
    assert boc(*copy, tmp_path / "photos.zip").exit_code == 1
    assert "no index 'nosuch'" in boc("copy", "nosuch", "--to", tmp_path / "new.h5", "--at", at).stderr
    assert not (tmp_path / "new.h5").exists()


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("image/terms/columns", 10**6, "none of the"),
        ("image/terms/columns", -1, "none of the"),
        ("image/terms/values", 0, "none of the"),
        ("image/terms/starts", 3, "rising from 0"),
        ("code/0.mean_", 7, "damaged"),
    ],
)
def test_a_damaged_export_is_refused(at: str, tmp_path: Path, name: str, value: int, words: str) -> None:
    path = tmp_path / "photos.h5"
    copy_index("photos", at=at, to=path)
    with h5py.File(path, "a") as file:
        found = name if name in file else f"code/{sorted(file['code'])[0]}"
        file[found][-1 if found.startswith("code") else 0] = value
    with pytest.raises(BocError, match=words):
        build_index("again", path, at=at)
    assert "again" not in plugins.backend(at).names()


def test_a_file_of_other_rows_is_told(at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append_batch = FeatureWriter.append

    def damaging(self: FeatureWriter, consumed: int, batches: list[Batch], *rest: Any) -> None:
        wrong = [replace(b, embeddings=replace(b.embeddings, vectors=-b.embeddings.vectors)) for b in batches]
        append_batch(self, consumed, wrong, *rest)

    monkeypatch.setattr(FeatureWriter, "append", damaging)
    with pytest.raises(BocError, match=r"the copy differs from its source: other rows of '000\.png"):
        copy_index("photos", at=at, to=tmp_path / "photos.h5")


def test_ordinary_feature_files_are_as_before(library: Path) -> None:
    with FeatureFile(library / "photos.h5") as file:
        assert file.manifest is None
        assert file.batch("image", 0, 3).stored is None
        assert file.header.index == ""
