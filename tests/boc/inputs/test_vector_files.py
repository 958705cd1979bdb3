"""Vectors of other programs, with ids and sentences beside them."""

from pathlib import Path

import numpy as np
import pytest

from boc import build_index
from boc.errors import SourceError
from boc.inputs.vector_files import has_vectors, read_vectors


@pytest.mark.parametrize("kind", ["f2", "f4", "f8", "u1", ">i4"])
def test_the_rows_that_were_written(tmp_path: Path, kind: str) -> None:
    rows = np.random.default_rng(0).integers(0, 9, (7, 5)).astype(kind)
    np.save(tmp_path / "x.npy", rows)
    assert has_vectors(tmp_path / "x.npy")
    assert np.array_equal(np.asarray(read_vectors(tmp_path / "x.npy").rows), rows)


def test_a_file_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.ones((40, 5), np.float32))
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(SourceError, match=r"x\.npy"):
        build_index("mine", path, at=f"file:{tmp_path}")


def test_ids_and_sentences_lie_beside_the_vectors(tmp_path: Path) -> None:
    np.save(
        tmp_path / "x.npy",
        np.eye(3, dtype=np.float32),
    )
    (tmp_path / "x.ids.txt").write_text("a\nb c\nd\n")
    (tmp_path / "x.txt").write_text("1.jpg\ta dog\n1.jpg\ta cat\n2.jpg\ta cow\n")
    part = read_vectors(tmp_path / "x.npy")
    assert (part.ids, part.sentences, part.owners) == (
        ["a", "b c", "d"],
        ["a dog", "a cat", "a cow"],
        ["1.jpg", "1.jpg", "2.jpg"],
    )
    (tmp_path / "x.txt").write_text("a dog\n")
    with pytest.raises(
        SourceError,
        match="3 vectors, but 1 sentences",
    ):
        read_vectors(tmp_path / "x.npy")


def test_objects_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([{}, {}], dtype=object), allow_pickle=True)
    with pytest.raises(SourceError, match="object"):
        read_vectors(tmp_path / "x.npy")
