"""Convert an HDF5 file in the format of ann-benchmarks to feature files of a gallery and queries.

``train`` (n, d) is the gallery, ``test`` (q, d) are the queries, ``neighbors`` (q, at least 10) are
row numbers of ``train``, best first. The attribute ``distance`` names the distance (Aumüller,
Bernhardsson and Faithfull, ANN-Benchmarks, Information Systems 87, 2020). boc scores by the inner
product. ``angular`` vectors are scaled to unit length, ``dot`` and ``ip`` vectors are copied
unchanged, and all other distances are rejected.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from bench.datasets.captions import DataError
from bench.race.data import BATCH, K, Matrix, append, log, nearest
from boc.inputs.feature_writer import FeatureWriter
from boc.inputs.features import FeatureFile, Header

ANGULAR = ("angular", "cosine")
DOT = ("dot", "ip")
SAMPLED = 100  # number of queries whose neighbours are checked
SAME = 1e-4  # maximum relative difference between scores that count as equal


@dataclass(frozen=True)
class FeatureFiles:
    """Feature files, with the rows of each query's exact top 10 if the source has them."""

    gallery: Path
    queries: Path
    truth: Path | None


def convert(path: Path, out: Path) -> FeatureFiles:
    """Write gallery.h5, queries.h5 and, if the source has neighbours, truth.npy int64 (q, 10) to
    ``out``.

    Existing files from the same source are kept. Raises DataError if the source has another format,
    if its distance is not an inner product, or if its neighbours are not the nearest rows.
    """
    out.mkdir(parents=True, exist_ok=True)
    files = FeatureFiles(out / "gallery.h5", out / "queries.h5", out / "truth.npy")
    with _open_hdf5(path) as file:
        unit = _distance(path, file) in ANGULAR
        train = _matrix(path, file, "train")
        test = _matrix(path, file, "test")
        if train.shape[1] != test.shape[1]:
            raise DataError(
                f"{path}: train has {train.shape[1]} components and test {test.shape[1]}; "
                "download the file again",
            )
        digest = _digest(train, test)
        header = Header(
            "embeddings",
            f"ann:{path.stem}",
            digest,
            train.shape[1],
            "float32",
            digest,
        )
        for target, data in ((files.gallery, train), (files.queries, test)):
            _write(path, target, data, header, unit)
        if "neighbors" not in file:
            return FeatureFiles(files.gallery, files.queries, None)
        _check_shapes(path, file)
        rows = file["neighbors"][:, :K].astype(np.int64)
    _check(path, files, rows)
    assert files.truth is not None
    np.save(files.truth, rows)
    return files


@contextmanager
def _open_hdf5(path: Path) -> Iterator[Any]:
    try:
        with h5py.File(path, "r") as file:
            yield file
    except OSError as error:
        raise DataError(
            f"{path}: not a readable HDF5 file ({error}); download the file again",
        ) from error


def _distance(path: Path, file: Any) -> str:
    value = file.attrs.get("distance")
    name = value.decode() if isinstance(value, bytes) else str(value)
    if name not in (*ANGULAR, *DOT):
        raise DataError(
            f"{path}: its distance is {name!r}; only {', '.join((*ANGULAR, *DOT))} are inner "
            "products, which codes approximate; "
            "use an angular file, such as glove-100-angular.hdf5",
        )
    return name


def _matrix(path: Path, file: Any, name: str) -> Any:
    if (
        name not in file
        or file[name].ndim != 2
        or not file[name].size
        or file[name].dtype.kind not in "fiu"
    ):
        raise DataError(
            f"{path}: contains no matrix of numbers {name!r}; use a file in the format of "
            "ann-benchmarks",
        )
    return file[name]


def _check_shapes(path: Path, file: Any) -> None:
    n = len(file["train"])
    q = len(file["test"])
    neighbours = file["neighbors"]
    if neighbours.ndim != 2 or len(neighbours) != q or neighbours.shape[1] < min(K, n):
        raise DataError(
            f"{path}: neighbors is {neighbours.shape} for {q} queries; at least {K} per query are "
            "needed",
        )
    if "distances" in file and file["distances"].shape != neighbours.shape:
        raise DataError(
            f"{path}: distances is {file['distances'].shape}, neighbors {neighbours.shape}; "
            "download the file again",
        )


def _digest(*matrices: Any) -> str:
    """Return a digest of the shapes and of the first and last rows."""
    digest = hashlib.sha256()
    for matrix in matrices:
        digest.update(repr((matrix.shape, str(matrix.dtype))).encode())
        digest.update(matrix[:K].tobytes() + matrix[-K:].tobytes())
    return digest.hexdigest()


def _write(path: Path, target: Path, data: Any, header: Header, unit: bool) -> None:
    """Copy a matrix to a feature file, block by block."""
    if target.exists():
        with FeatureFile(target) as file:
            if file.header != header:
                raise DataError(f"{target} was created from other data; name another folder")
        return
    with FeatureWriter(target, header) as writer:
        for start in range(writer.done, len(data), BATCH):
            rows: Matrix = data[start : start + BATCH].astype(np.float32)
            lengths = np.linalg.norm(rows, axis=1, keepdims=True)
            bad = ~np.isfinite(lengths) | (unit & (lengths == 0))
            if bad.any():
                row = start + int(np.flatnonzero(bad)[0])
                raise DataError(
                    f"{path}: row {row} of {data.name.strip('/')} is zero or not finite; leave "
                    "it out",
                )
            if unit:
                rows /= lengths
            append(writer, start, rows)
            log(f"{target.name}: {start + len(rows)} of {len(data)}")
        writer.finish()


def _check(path: Path, files: FeatureFiles, rows: NDArray[np.int64]) -> None:
    """Raise DataError unless, for a sample of queries, the neighbours score as high as the exact
    neighbours."""
    with FeatureFile(files.gallery) as gallery, FeatureFile(files.queries) as queries:
        vectors = gallery.memory_map("image", "dense/vectors")
        if rows.min() < 0 or rows.max() >= len(vectors):
            raise DataError(
                f"{path}: neighbors contains rows that are not in train; download the file again",
            )
        step = max(1, len(rows) // SAMPLED)
        sample = queries.memory_map("image", "dense/vectors")[::step]
        starts = range(0, len(vectors), BATCH)
        blocks = ((i, vectors[i : i + BATCH].astype(np.float32)) for i in starts)
        exact, _ = nearest(np.ascontiguousarray(sample, np.float32), blocks)
        pairs = zip(rows[::step], sample, strict=True)
        scores = np.stack([vectors[row] @ query for row, query in pairs])
    distinct = [len(set(row)) == len(row) for row in rows[::step].tolist()]
    expected = -np.sort(-scores, axis=1)
    same = np.isclose(
        expected,
        exact[:, : expected.shape[1]],
        rtol=SAME,
        atol=SAME,
    )
    right = same.all(axis=1) & distinct
    if not right.all():
        worst = step * int(np.flatnonzero(~right)[0])
        raise DataError(
            f"{path}: neighbors of query {worst} are not the nearest rows of train "
            f"({(~right).sum()} of {len(right)} "
            "checked queries); download the file again, or delete neighbors from the file, so that "
            "they are computed",
        )
