"""Vectors in the files of others: each form gives the rows that were written, with ids and
sentences beside them."""

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from boc import build_index
from boc.errors import SourceError
from boc.inputs.vector_files import has_vectors, read_vectors
from boc.vectors import Floats

Write = Callable[[Path, Floats], object]


def write_fvecs(path: Path, rows: Floats) -> None:
    with path.open("wb") as file:
        for row in rows:
            file.write(np.int32(len(row)).tobytes() + row.tobytes())


def write_bin(path: Path, rows: Floats) -> None:
    kind = np.float32 if path.suffix == ".fbin" else np.uint8
    path.write_bytes(np.array(rows.shape, np.uint32).tobytes() + rows.astype(kind).tobytes())


def write_ann(path: Path, rows: Floats, distance: str = "angular") -> None:
    with h5py.File(path, "w") as file:
        file["train"] = rows
        file["test"] = rows[:2]
        file.attrs["distance"] = distance


FORMS: dict[str, Write] = {
    "x.npy": np.save,
    "x.fvecs": write_fvecs,
    "x.fbin": write_bin,
    "x.u8bin": write_bin,
    "x.hdf5": write_ann,
}


@pytest.mark.parametrize("name", FORMS)
def test_each_form_gives_the_rows_that_were_written(tmp_path: Path, name: str) -> None:
    rows = (
        np.random.default_rng(0)
        .integers(
            0,
            9,
            (7, 5),
        )
        .astype(np.float32)
    )
    rows[0] = 1
    FORMS[name](tmp_path / name, rows)
    assert has_vectors(tmp_path / name)
    part = read_vectors(tmp_path / name)
    assert np.array_equal(np.asarray(part.rows), rows)


@pytest.mark.parametrize("name", FORMS)
def test_a_file_that_is_cut_off_is_refused(tmp_path: Path, name: str) -> None:
    FORMS[name](
        tmp_path / name,
        np.ones((40, 5), np.float32),
    )
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-3])
    with pytest.raises(SourceError, match=name):
        build_index(
            "mine",
            tmp_path / name,
            at=f"file:{tmp_path}",
        )


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


def test_objects_and_euclidean_distances_are_refused(tmp_path: Path) -> None:
    np.save(
        tmp_path / "x.npy",
        np.array([{}, {}], dtype=object),
        allow_pickle=True,
    )
    write_ann(
        tmp_path / "x.hdf5",
        np.ones((3, 2), np.float32),
        "euclidean",
    )
    for name, message in (
        ("x.npy", "allow_pickle|object"),
        ("x.hdf5", "'euclidean' is not an inner product"),
    ):
        with pytest.raises(SourceError, match=message):
            read_vectors(tmp_path / name)
