"""Read vectors of other programs: arrays of numpy, with ids and captions from files beside them.

Beside X.npy, ``X.ids.txt`` has one id per line. For vectors of sentences, ``X.txt`` has one
sentence per line, after the id of its picture and a tab; without these ids, each picture in turn
has the same number of sentences.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from boc.errors import SourceError, check_system
from boc.foreign import DAMAGE
from boc.inputs.scan_arrays import is_scan_array
from boc.inputs.text_lines import read_ids, text_lines


@dataclass
class VectorRows:
    """The rows of a file, an array (n, d), with ids, sentences, and the ids of the pictures of the
    sentences; each is None if the file lacks it."""

    path: Path
    rows: Any
    ids: list[str] | None = None
    sentences: list[str] | None = None
    owners: list[str] | None = None


def has_vectors(path: Path) -> bool:
    """Return whether a file has vectors of another program, judged by its name."""
    return path.suffix == ".npy" and path.is_file() and not is_scan_array(path)


def read_vectors(path: Path) -> VectorRows:
    """Read a file of vectors, which stay on disk. Raises SourceError for a damaged file."""
    try:
        part = VectorRows(path, np.lib.format.open_memmap(path, "r"))
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
