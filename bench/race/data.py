"""Data of a race: vectors, queries, and exact results.

``synthetic`` draws N unit vectors block by block, with a separate seed for each block. The vectors
form 3,000 clusters in 100 groups in a 128-dimensional space whose scales decrease as j**-0.4. They
are embedded in ``dim`` dimensions by a random matrix, with slight noise in all dimensions and a
mean of 0.3. Each component is multiplied by its own scale, the exponential of a normal variable
with standard deviation 0.5. Queries are items plus noise. For 1M x 1,024, the cosines between a
query and the items at ranks 1, 10 and 100 are about .85, .58 and .52, and the participation ratio
is 42.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from boc.inputs.feature_writer import FeatureWriter
from boc.inputs.features import FeatureFile, Header
from boc.types import Batch, Embeddings, Item, Modality

K = 10
BATCH = 20_000

Matrix = NDArray[np.float32]


@dataclass(frozen=True)
class Data:
    """Data of a race: feature files of the gallery, of the reported queries, and of the queries for
    choosing settings (``validation``; without it, every other query is used). ``work`` is the
    folder for all files derived from the data. ``truth`` can contain the rows of the exact top 10
    per query, best first, int64 (q, 10); otherwise they are computed.
    """

    work: Path
    gallery: Path
    queries: Path
    validation: Path | None
    terms: int | None
    seed: int
    truth: Path | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return only the fields, because a child process maps the files itself instead of
        receiving a copy of the vectors."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @cached_property
    def modality(self) -> Modality:
        with FeatureFile(self.gallery) as file:
            return "image" if file.count("image") else "text"

    @cached_property
    def asking(self) -> Modality:
        """Return the modality of the queries."""
        with FeatureFile(self.queries) as file:
            return "image" if file.count("image") else "text"

    @cached_property
    def vectors(self) -> NDArray[Any]:
        """Return the memory-mapped vectors (n, d) of the gallery."""
        with FeatureFile(self.gallery) as file:
            return np.asarray(
                file.memory_map(self.modality, "dense/vectors"),
            )  # codes take longer to validate a subclass

    @cached_property
    def halves(self) -> NDArray[np.float16]:
        """Return the vectors as memory-mapped float16, which other engines use for re-ranking."""
        if self.vectors.dtype == np.float16 and self.vectors.flags.aligned:
            return self.vectors
        path = self.work / "vectors.npy"
        if not path.exists():
            part = path.with_suffix(".part")
            out = np.lib.format.open_memmap(part, "w+", np.float16, self.shape)
            for start, block in self.blocks():
                out[start : start + len(block)] = block
            out.flush()
            part.rename(path)
        return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))

    @property
    def shape(self) -> tuple[int, int]:
        return self.vectors.shape

    def blocks(self) -> Iterator[tuple[int, Matrix]]:
        """Yield all vectors in blocks, with the number of each block's first row."""
        for start in range(0, len(self.vectors), BATCH):
            yield start, self.vectors[start : start + BATCH].astype(np.float32)

    @cached_property
    def query_sets(self) -> tuple[Matrix, Matrix]:
        """Return the reported queries, and the queries for choosing settings."""
        queries = read(self.queries)
        if self.validation:
            return queries, read(self.validation)
        return queries[::2], queries[1::2]

    @cached_property
    def top(self) -> tuple[list[set[int]], list[set[int]]]:
        """Return the rows of the exact top 10 for both sets of queries."""
        path = self.work / "truth.npy"
        if not path.exists():
            np.save(path, self._exact())
        rows = [set(row) for row in np.load(path, allow_pickle=False).tolist()]
        n = len(self.query_sets[0])
        return rows[:n], rows[n:]

    def _exact(self) -> NDArray[np.int64]:
        """Return the row numbers (n, K) of the exact neighbours, first for the queries, then for
        the validation queries."""
        if self.truth is not None and self.validation is None:
            rows = np.load(self.truth, allow_pickle=False)
            return np.concatenate([rows[::2], rows[1::2]])
        return nearest(np.concatenate(self.query_sets), self.blocks())[1]

    @cached_property
    def rows(self) -> dict[str, int]:
        """Return a mapping from ids to row numbers."""
        with FeatureFile(self.gallery) as file:
            return {key: row for row, key in enumerate(file.ids(self.modality))}

    def check(self) -> None:
        """Raise UsageError if the work folder was created for other files, another seed or another
        vocabulary."""
        note = self.work / "data.json"
        mine = {"terms": self.terms, "seed": self.seed}
        for path in (self.gallery, self.queries, self.validation, self.truth):
            if path is not None:
                mine[str(path.resolve())] = path.stat().st_size
        if note.exists() and json.loads(note.read_text()) != mine:
            raise click.UsageError(
                f"{self.work} contains indexes of other data; name another --work",
            )
        note.write_text(json.dumps(mine))


def nearest(
    queries: Matrix,
    blocks: Iterable[tuple[int, Matrix]],
) -> tuple[Matrix, NDArray[np.int64]]:
    """Return the scores and rows of the K best inner products in ``blocks`` (first row, vectors),
    best first, padded with -inf and 0."""
    import faiss

    scores = np.full((len(queries), K), -np.inf, np.float32)
    rows = np.zeros((len(queries), K), np.int64)
    for start, block in blocks:
        block_scores, places = faiss.knn(queries, block, K, faiss.METRIC_INNER_PRODUCT)
        both = np.hstack([scores, block_scores])
        where = np.hstack([rows, places + start])
        best = np.argsort(-both, axis=1, kind="stable")[:, :K]
        scores = np.take_along_axis(both, best, axis=1)
        rows = np.take_along_axis(where, best, axis=1)
        log(f"exact answers over {start + len(block)} vectors")
    return scores, rows


def first(gallery: Path, work: Path, count: int) -> Path:
    """Write the first ``count`` items of a gallery to a new feature file, and return its path. If
    the gallery has at most ``count`` items, return the path of the gallery."""
    with FeatureFile(gallery) as file:
        modality: Modality = "image" if file.count("image") else "text"
        if file.count(modality) <= count:
            return gallery
        path = work / f"first-{count}.h5"
        if not path.exists():
            source = hashlib.sha256(f"{file.header.source} {count}".encode()).hexdigest()
            with FeatureWriter(path, replace(file.header, source=source)) as writer:
                for start in range(writer.done, count, BATCH):
                    rows = file.batch(modality, start, min(start + BATCH, count), sets=False)
                    writer.append(len(rows), [rows])
                writer.finish()
    return path


def read(path: Path) -> Matrix:
    """Read all vectors of a feature file into memory."""
    with FeatureFile(path) as file:
        return np.concatenate([file.vectors("image"), file.vectors("text")])


class Mixture:
    """Mixture from which synthetic vectors are drawn, as described in the module docstring."""

    groups = 100
    clusters = 30
    rank = 128

    def __init__(self, dim: int, seed: int) -> None:
        rng = np.random.default_rng([seed, 0])
        falling = np.arange(1, self.rank + 1, dtype=np.float32) ** -0.4
        falling /= np.linalg.norm(falling)
        self.seed = seed
        basis = rng.standard_normal((self.rank, dim), np.float32)
        self.basis = basis * falling[:, None] / np.float32(dim**0.5)
        self.scales = np.exp(0.5 * rng.standard_normal(dim)).astype(np.float32)
        self.mean = rng.standard_normal(dim, np.float32) * np.float32(0.3 / dim**0.5)
        heads = rng.standard_normal((self.groups, 1, self.rank), np.float32)
        within = rng.standard_normal((self.groups, self.clusters, self.rank), np.float32)
        self.centres = (0.5 * heads + 0.5 * within).reshape(-1, self.rank)

    def block(self, number: int, count: int) -> Matrix:
        """Draw unit vectors (count, dim)."""
        rng = np.random.default_rng([self.seed, 1, number])
        rows = self.centres[rng.integers(len(self.centres), size=count)]
        rows = rows + np.float32(0.6) * rng.standard_normal((count, self.rank), np.float32)
        vectors = rows @ self.basis + self.mean
        vectors = vectors + noise(rng, (count, len(self.scales)), 0.3)
        return unit(vectors * self.scales)

    def perturb(self, rows: Matrix) -> Matrix:
        """Return unit vectors near ``rows``."""
        return unit(rows + noise(np.random.default_rng([self.seed, 2]), rows.shape, 0.62))


def unit(rows: Matrix) -> Matrix:
    scaled: Matrix = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return scaled


def noise(rng: np.random.Generator, shape: tuple[int, ...], length: float) -> Matrix:
    return rng.standard_normal(shape, np.float32) * np.float32(length / shape[1] ** 0.5)


def synthetic(work: Path, count: int, dim: int, queries: int, seed: int) -> tuple[Path, Path, Path]:
    """Write feature files of ``count`` items and of two sets of ``queries``, a reported set and a
        set for choosing settings.

    Existing files are kept. Raises UsageError if the existing files contain other data, or if there
    are fewer items than queries.
    """
    if count < 2 * queries:
        raise click.UsageError(
            f"{2 * queries} queries cannot be drawn from {count} items; set more items, or fewer "
            "--queries",
        )
    gallery = work / "gallery.h5"
    digest = f"{count}-{dim}-{queries}-{seed}".encode().hex().rjust(64, "0")
    header = Header("embeddings", "synthetic:vectors", digest, dim, "float16", digest)
    mixture = Mixture(dim, seed)
    if not gallery.exists():
        with FeatureWriter(gallery, header) as writer:
            for start in range(writer.done, count, BATCH):
                rows = mixture.block(start // BATCH, min(BATCH, count - start))
                append(writer, start, rows)
                log(f"drew {start + len(rows)} of {count} vectors")
            writer.finish()
    with FeatureFile(gallery) as file:
        if file.header != header:
            raise click.UsageError(f"{work} contains other synthetic data; name another --work")
        rng = np.random.default_rng([seed, 3])
        chosen = np.sort(rng.choice(count, 2 * queries, replace=False))
        rows = mixture.perturb(file.memory_map("image", "dense/vectors")[chosen].astype(np.float32))
    rng.shuffle(rows)
    paths = work / "queries.h5", work / "validation.h5"
    for path, part in zip(paths, (rows[:queries], rows[queries:]), strict=True):
        if not path.exists():
            with FeatureWriter(path, header) as writer:
                append(writer, 0, part)
                writer.finish()
    return gallery, *paths


def append(writer: FeatureWriter, start: int, vectors: Matrix) -> None:
    """Append vectors of pictures, numbered from ``start``."""
    names = [f"{i:08d}.jpg" for i in range(start, start + len(vectors))]
    items = [Item(name, "image", f"/photos/{name}", name) for name in names]
    writer.append(len(items), [Batch(items, Embeddings("image", vectors))])


def log(line: str) -> None:
    """Print a progress line to stderr."""
    click.echo(line, err=True)
