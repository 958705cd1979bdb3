"""Read and write what a copy of an index adds to a feature file: manifest, code, and the terms of
items as stored.

::

    /                   attribute index: the manifest, as JSON
    /code/NAME          arrays of the code, each as the bytes of an .npy file
    /image, /text
        terms/starts    (n + 1,) int64, where the terms of each item begin
        terms/columns   (N,) int32 term ids, ascending per item; terms/values their frequencies
        terms/scales    (rows,) float32, the scale of each row of int8 concept sets
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from boc.errors import FeatureFileError
from boc.foreign import read_npy
from boc.types import Ragged, StoredConcepts, TermMatrix

NAMES = ("starts", "columns", "values")


def allocate(group: h5py.Group, items: int, postings: int, rows: int | None) -> None:
    """Make the arrays for the terms of ``items`` with ``postings`` altogether, and the scales of
    ``rows``, if any."""
    group.create_dataset("terms/starts", data=np.zeros(items + 1, dtype=np.int64))
    for name in NAMES[1:]:
        group.create_dataset(f"terms/{name}", shape=(postings,), dtype=np.int32)
    if rows is not None:
        group.create_dataset("terms/scales", shape=(rows,), dtype=np.float32)


def fill(
    group: h5py.Group,
    terms: TermMatrix,
    scales: NDArray[np.float32] | None,
    item: int,
    row: int,
) -> None:
    """Write the terms of items from number ``item`` on, whose ragged rows begin at ``row``."""
    begin = int(group["terms/starts"][item])
    group["terms/starts"][item + 1 : item + 1 + terms.shape[0]] = (
        terms.indptr[1:].astype(np.int64) + begin
    )
    group["terms/columns"][begin : begin + terms.nnz] = terms.indices
    group["terms/values"][begin : begin + terms.nnz] = terms.data
    if scales is not None:
        group["terms/scales"][row : row + len(scales)] = scales


def read(
    path: Path,
    group: h5py.Group,
    start: int,
    stop: int,
    n_terms: int,
) -> tuple[TermMatrix, NDArray[np.float32] | None]:
    """Return the terms of items ``start`` to ``stop``, and the scales of their int8 concept sets.

    FeatureFileError if they cannot be terms.
    """
    starts = group["terms/starts"][start : stop + 1]
    low = int(starts[0])
    high = int(starts[-1])
    columns = group["terms/columns"][low:high]
    values = group["terms/values"][low:high]
    terms = sparse.csr_array((values, columns, starts - low), shape=(stop - start, n_terms))
    if len(values) and (columns.min() < 0 or columns.max() >= n_terms or values.min() < 1):
        raise FeatureFileError(
            f"{path}: some of its terms are none of the {n_terms} of its code; copy the index "
            "again",
        )
    if not terms.has_sorted_indices:
        raise FeatureFileError(
            f"{path}: the terms of an item are not in order; copy the index again",
        )
    first = group["offsets"][start]
    last = group["offsets"][stop]
    return terms, group["terms/scales"][first:last] if "terms/scales" in group else None


def write_arrays(file: h5py.File, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write the arrays of a code."""
    for name, array in arrays.items():
        buffer = io.BytesIO()
        np.save(buffer, array, allow_pickle=False)
        file.create_dataset(f"code/{name}", data=np.frombuffer(buffer.getvalue(), np.uint8))


def read_arrays(file: h5py.File, names: Iterable[str]) -> dict[str, NDArray[Any]]:
    """Return the arrays of these ``names`` of the code, as far as they are there."""
    group = file.get("code", {})
    return {name: read_npy(group[name][:].tobytes()) for name in names if name in group}


def concepts_of(sets: Ragged, scales: NDArray[np.float32] | None) -> StoredConcepts:
    """Return concept sets exactly as the index had them, float16 or int8."""
    if scales is None:
        return StoredConcepts(sets.values.astype(np.float16), sets.offsets)
    steps = np.where(scales > 0, scales, 1)[:, None]
    return StoredConcepts(np.rint(sets.values / steps).astype(np.int8), sets.offsets, scales)
