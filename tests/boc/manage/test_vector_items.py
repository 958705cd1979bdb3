"""Indexes of the vectors of others, whose hits are the hits of a loop."""

from pathlib import Path

import numpy as np
import pytest
from numpy.random import default_rng
from numpy.typing import NDArray

from boc import Searcher, build_index
from boc.errors import BocError, SourceError
from boc.names import VECTOR_DTYPES, VectorDtype
from boc.types import Embeddings
from tests.helpers import boc
from tests.oracles import same_matrix


def pairs(
    folder: Path,
    rng: np.random.Generator,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    images = rng.standard_normal((12, 8), dtype=np.float32)
    captions = np.repeat(
        images,
        2,
        axis=0,
    ) + 0.05 * rng.standard_normal((24, 8), dtype=np.float32)
    np.save(folder / "images.npy", 3 * images)
    np.save(folder / "captions.npy", captions)
    (folder / "captions.txt").write_text("".join(f"sentence {i}\n" for i in range(24)))
    return images, captions


def test_two_arrays_and_a_list_of_captions_are_an_index(tmp_path: Path):
    images, captions = pairs(tmp_path, default_rng(0))
    at = f"file:{tmp_path / 'index'}"
    result = boc(f"index mine {tmp_path}/images.npy {tmp_path}/captions.npy --at {at}")
    assert (result.exit_code, result.stdout) == (0, "mine: 12 pictures and 24 captions\n"), (
        result.output
    )
    searcher = Searcher.open("mine", at)
    items = {item.id: item for item in searcher.index.items()}
    assert (items["3#1"].content, items["3#1"].group) == ("sentence 7", "3")
    unit = images / np.linalg.norm(images, axis=1, keepdims=True)
    query = captions[7] / np.linalg.norm(captions[7])
    best = sorted(range(12), key=lambda row: -float(unit[row] @ query))[:5]
    hits = searcher.search_vectors(searcher.embeddings("3#1"), k=5, find="image")[0]
    assert [hit.id for hit in hits] == [str(row) for row in best]
    with pytest.raises(BocError, match=r"search by an item: .*like=\[ID\]"):
        searcher.search("a dog")
    again = boc(f"index mine {tmp_path}/images.npy {tmp_path}/captions.npy --at {at}")
    assert again.stdout.startswith("mine is up to date")


def test_an_index_of_8_bit_vectors_stores_8_bits_without_loss(tmp_path: Path):
    rows = default_rng(0).integers(-128, 128, (300, 24), np.int8)
    rows[:, 0] = 1
    np.save(tmp_path / "rows.npy", rows)
    build_index("mine", tmp_path / "rows.npy", at=f"file:{tmp_path / 'index'}", code="scalar:6")
    index = Searcher.open("mine", f"file:{tmp_path / 'index'}").index
    assert index.manifest.vector_dtype == "int8"
    unit = rows / np.linalg.norm(rows.astype(float), axis=1, keepdims=True)
    found = index.vectors([str(row) for row in range(300)])
    np.testing.assert_allclose(found, unit, rtol=1e-6)


@pytest.mark.parametrize("dtype", VECTOR_DTYPES)
def test_terms_belong_to_the_rounded_vectors(tmp_path: Path, dtype: VectorDtype):
    rows = default_rng(0).standard_normal((300, 24)).astype(np.float32)
    np.save(tmp_path / "rows.npy", rows)
    at = f"file:{tmp_path / 'index'}"
    build_index("mine", tmp_path / "rows.npy", at=at, code="scalar:6", vectors=dtype)
    searcher = Searcher.open("mine", at)
    ids = [str(row) for row in range(len(rows))]
    rounded = searcher.index.vectors(ids).astype(np.float32)
    terms = searcher.codec.encode_documents(Embeddings("image", rounded))
    assert same_matrix(searcher.index.terms(ids), terms)
    assert not same_matrix(terms, searcher.codec.encode_documents(Embeddings("image", rows)))


def test_an_index_of_other_vectors_is_kept_unless_it_is_replaced(tmp_path: Path):
    at = f"file:{tmp_path / 'index'}"
    one, other = (tmp_path / name for name in ("one.npy", "other.npy"))
    np.save(one, np.eye(4, dtype=np.float32))
    np.save(other, np.eye(4, dtype=np.float32)[:3])
    build_index("mine", one, at=at)
    with pytest.raises(BocError, match="already has an index 'mine' with other items"):
        build_index("mine", other, at=at)
    assert len(list(Searcher.open("mine", at).index.items())) == 4
    build_index("mine", other, at=at, replace=True)
    assert len(list(Searcher.open("mine", at).index.items())) == 3


def test_sentences_of_no_known_picture_and_ids_that_occur_twice_are_refused(tmp_path: Path):
    np.save(tmp_path / "images.npy", np.eye(4, dtype=np.float32))
    np.save(tmp_path / "captions.npy", np.eye(4, dtype=np.float32)[:3])
    (tmp_path / "captions.txt").write_text("a\nb\nc\n")
    with pytest.raises(SourceError, match="3 sentences for 4 pictures"):
        build_index(
            "mine",
            [tmp_path / "images.npy", tmp_path / "captions.npy"],
            at=f"file:{tmp_path}",
        )
    (tmp_path / "captions.txt").unlink()
    with pytest.raises(SourceError, match=r"have the id '[0-2]'; add ids next to"):
        build_index(
            "mine",
            [tmp_path / "images.npy", tmp_path / "captions.npy"],
            at=f"file:{tmp_path}",
        )
    np.save(tmp_path / "images.npy", np.zeros((4, 4), np.float32))
    with pytest.raises(
        SourceError,
        match=r"no usable items \(row 0 of .* is zero or not finite",
    ):
        build_index("mine", tmp_path / "images.npy", at=f"file:{tmp_path}")


def test_rows_that_cannot_be_used_cost_themselves(tmp_path: Path):
    vectors = default_rng(0).standard_normal((9, 4)).astype(np.float32)
    vectors[0] = 0
    vectors[5] = np.nan
    np.save(tmp_path / "images.npy", vectors)
    report = build_index("dense", tmp_path / "images.npy", at=f"file:{tmp_path}")
    assert report.images == 7
    assert [id for id, _ in report.failed] == ["0", "5"]
