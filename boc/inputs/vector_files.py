"""Read vectors in the file formats of other programs, with ids and captions from files beside them.

The formats are NumPy's ``.npy``, the HDF5 format of ann-benchmarks (``train``), ``.fvecs`` of
TEXMEX, and ``.fbin`` and ``.u8bin`` of big-ann-benchmarks. A file ``X.ids.txt`` beside X.npy
contains one id per line. For vectors of sentences, ``X.txt`` contains one sentence per line,
preceded by the id of its picture and a tab. If these ids are missing, consecutive sentences are
assigned to the pictures in turn, with the same number for each picture.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from boc.errors import SourceError, check_system
from boc.foreign import DAMAGE, PACKED
from boc.inputs.hdf5_check import check_heaps
from boc.inputs.scan_arrays import is_scan_array
from boc.inputs.text_lines import read_ids, text_lines


@dataclass
class VectorRows:
    """Rows of a file as an array (n, d), with ids, sentences, and the picture ids of the sentences,
    each of which may be None. If ``exact`` is True, the lengths of the vectors are significant."""

    path: Path
    rows: Any
    ids: list[str] | None = None
    sentences: list[str] | None = None
    owners: list[str] | None = None
    exact: bool = False


def has_vectors(path: Path) -> bool:
    """Return whether a file contains vectors in the format of another program, judging by its name
    and first bytes."""
    if path.suffix in (".h5", ".hdf5"):
        # The reader for feature files will report the damage.
        with suppress(OSError), h5py.File(path, "r") as file:
            return "train" in file and "format" not in file.attrs
        return False
    return path.suffix in READERS and path.is_file() and not is_scan_array(path)


def read_vectors(path: Path) -> VectorRows:
    """Read a file of vectors. Dense vectors stay on disk if the format allows it. Raises
    SourceError for a damaged file."""
    try:
        part = READERS[path.suffix](path)
        if (beside := path.with_suffix(".ids.txt")).is_file():
            part.ids = read_ids(beside)
        if (beside := path.with_suffix(".txt")).is_file():
            lines = text_lines(beside.read_bytes(), str(beside))
            cells = [line.split("\t", 1) for line in lines if line]
            part.sentences = [cell[-1] for cell in cells]
            if all(len(cell) == 2 for cell in cells):
                part.owners = [cell[0] for cell in cells]
        if part.rows.ndim != 2 or not part.rows.size or part.rows.dtype.kind not in "fiu":
            raise ValueError(
                f"an array {part.rows.shape} of type {part.rows.dtype}, not numbers (n, d)",
            )
        for what, values in (("ids", part.ids), ("sentences", part.sentences)):
            if values is not None and len(values) != part.rows.shape[0]:
                raise ValueError(f"{part.rows.shape[0]} vectors, but {len(values)} {what}")
    except DAMAGE as error:
        check_system(path, error, SourceError)
        raise SourceError(
            f"{path}: cannot be read as vectors ({error}); correct the file, or save the "
            "vectors as .npy",
        ) from error
    return part


def _ann(path: Path) -> VectorRows:
    with h5py.File(path, "r") as file:
        check_heaps(path, file)
        rows = None
        if isinstance(file.get("train", getlink=True), h5py.HardLink):
            rows = file["train"]
        size = PACKED * path.stat().st_size
        if rows is None or rows.is_virtual or rows.external or rows.nbytes > size:
            raise ValueError("train is stored in another file, or is far larger than its file")
        distance = file.attrs.get("distance", "angular")
        if isinstance(distance, bytes):
            distance = distance.decode()
        if distance not in ("angular", "cosine", "dot", "ip"):
            raise ValueError(f"the distance {str(distance)!r} is not an inner product")
        return VectorRows(path, rows[:], exact=distance in ("dot", "ip"))


def _fvecs(path: Path) -> VectorRows:
    dim = int(np.fromfile(path, "<i4", 1)[0])
    return VectorRows(path, np.memmap(path, "<f4", "r").reshape(-1, dim + 1)[:, 1:])


def _bin(path: Path) -> VectorRows:
    shape = tuple(np.fromfile(path, "<u4", 2).tolist())
    kind = np.dtype({".fbin": "<f4", ".u8bin": "u1"}[path.suffix])
    if 8 + math.prod(shape) * kind.itemsize > path.stat().st_size:
        raise ValueError(f"the file is too small for an array of shape {shape}")
    return VectorRows(path, np.memmap(path, kind, "r", 8, shape))


READERS: dict[str, Callable[[Path], VectorRows]] = {
    ".npy": lambda path: VectorRows(path, np.load(path, mmap_mode="r", allow_pickle=False)),
    ".h5": _ann,
    ".hdf5": _ann,
    ".fvecs": _fvecs,
    ".fbin": _bin,
    ".u8bin": _bin,
}
