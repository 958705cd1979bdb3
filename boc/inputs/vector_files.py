"""Read vectors in file formats of other programs, with ids and captions from files beside them.

The formats are ``.npy`` of numpy, the HDF5 of ann-benchmarks (``train``), ``.fvecs`` of TEXMEX, and
``.fbin`` and ``.u8bin`` of big-ann-benchmarks. Beside X.npy, ``X.ids.txt`` has one id per line. For
vectors of sentences, ``X.txt`` has one sentence per line, after the id of its picture and a tab;
without these ids, each picture in turn has the same number of sentences.
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
    """Rows of a file, an array (n, d), with ids, sentences, and the sentences' picture ids, each
    None if the file lacks them. With ``exact``, vector lengths count."""

    path: Path
    rows: Any
    ids: list[str] | None = None
    sentences: list[str] | None = None
    owners: list[str] | None = None
    exact: bool = False


def has_vectors(path: Path) -> bool:
    """Return whether a file has vectors in a format of another program, judged by its name and its
    beginning."""
    if path.suffix in (".h5", ".hdf5"):
        # The reader of feature files reports damage.
        with suppress(OSError), h5py.File(path, "r") as file:
            return "train" in file and "format" not in file.attrs
        return False
    return path.suffix in READERS and path.is_file() and not is_scan_array(path)


def read_vectors(path: Path) -> VectorRows:
    """Read a file of vectors; dense vectors stay on disk if the format allows it. Raises
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
                f"an array {part.rows.shape} of {part.rows.dtype}, not (n, d) of numbers",
            )
        for what, values in (("ids", part.ids), ("sentences", part.sentences)):
            if values is not None and len(values) != part.rows.shape[0]:
                raise ValueError(f"{part.rows.shape[0]} vectors, but {len(values)} {what}")
    except DAMAGE as error:
        check_system(path, error, SourceError)
        raise SourceError(
            f"{path}: cannot be read as vectors ({error}); correct it, or write it as .npy",
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
            raise ValueError(f"its distance {str(distance)!r} is not an inner product")
        return VectorRows(path, rows[:], exact=distance in ("dot", "ip"))


def _fvecs(path: Path) -> VectorRows:
    dim = int(np.fromfile(path, "<i4", 1)[0])
    return VectorRows(path, np.memmap(path, "<f4", "r").reshape(-1, dim + 1)[:, 1:])


def _bin(path: Path) -> VectorRows:
    shape = tuple(np.fromfile(path, "<u4", 2).tolist())
    kind = np.dtype({".fbin": "<f4", ".u8bin": "u1"}[path.suffix])
    if 8 + math.prod(shape) * kind.itemsize > path.stat().st_size:
        raise ValueError(f"it has fewer bytes than {shape} numbers take")
    return VectorRows(path, np.memmap(path, kind, "r", 8, shape))


READERS: dict[str, Callable[[Path], VectorRows]] = {
    ".npy": lambda path: VectorRows(path, np.load(path, mmap_mode="r", allow_pickle=False)),
    ".h5": _ann,
    ".hdf5": _ann,
    ".fvecs": _fvecs,
    ".fbin": _bin,
    ".u8bin": _bin,
}
