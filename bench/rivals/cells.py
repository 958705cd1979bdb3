"""Codes with a coarse partition from the authors of surrogate text (Carrara et al.,
fabiocarrara/str-encoders).

``CellScalar`` is IVF x scalar quantisation. The components kept by scalar quantisation become terms
of the vector's cell, so each posting list belongs to one component in one cell. A query has terms
for its components in each of its nearest cells. ``CellRanks`` is SPQR. The residual between a
vector and the centre of its cell is split into pieces, and the nearest centroids of each piece are
terms with the weights z ... 1. A query reads only its own cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from boc.clustering.kmeans import kmeans, nearest, squared_distances
from boc.codecs.base import terms_of
from boc.codecs.frequencies import largest
from boc.types import Embeddings, TermMatrix
from boc.vectors import Floats, unit_rows

SCALE = 1000  # scale of components, as in the authors' code


class Cells:
    """Common steps of both codes: scaling vectors to unit length, as in the authors' code, or
    subtracting the mean of each modality (``centred``), and learning the cells from a
    ``sample``."""

    def __init__(self, sample: Sequence[Embeddings], cells: int, centred: bool, seed: int) -> None:
        self.means = {
            each.modality: centred * unit_rows(each.vectors).mean(axis=0) for each in sample
        }
        self.sample = np.concatenate([self.rows(each) for each in sample])
        self.centres = kmeans(self.sample, cells, seed=seed)

    def rows(self, embeddings: Embeddings) -> Floats:
        """Return the rows, float32 (n, d)."""
        return unit_rows(unit_rows(embeddings.vectors) - self.means[embeddings.modality])


class CellScalar(Cells):
    """Encode the ``z`` largest components and their signs in ``cells``. A query uses ``query_z``
    components in each of ``probes`` cells."""

    def __init__(
        self,
        sample: Sequence[Embeddings],
        cells: int,
        probes: int,
        z: int = 32,
        query_z: int = 32,
        centred: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(sample, cells, centred, seed)
        self.probes = probes
        self.z = z
        self.query_z = query_z

    def encode_documents(self, embeddings: Embeddings) -> TermMatrix:
        """Encode items -> int32 csr (n, cells * 2 d)."""
        return self._encode(self.rows(embeddings), self.z, 1)

    def encode_queries(self, embeddings: Embeddings) -> TermMatrix:
        """Encode queries -> int32 csr (n, cells * 2 d)."""
        return self._encode(self.rows(embeddings), self.query_z, self.probes)

    def _encode(self, rows: Floats, z: int, probes: int) -> TermMatrix:
        probes = min(probes, len(self.centres))
        width = 2 * rows.shape[1]
        columns = largest(np.abs(rows), min(z, rows.shape[1])).astype(np.int64)
        values = np.take_along_axis(rows, columns, axis=1)
        columns += np.where(values < 0, rows.shape[1], 0)
        cells, _ = nearest(rows, self.centres, probes)
        spread = cells[:, :, None] * width + columns[:, None, :]
        scaled = np.fix(SCALE * np.abs(values).astype(np.float64))
        return _matrix(
            spread.reshape(len(rows), -1),
            np.tile(scaled, probes),
            width * len(self.centres),
        )


class CellRanks(Cells):
    """Encode the ``z`` nearest of ``fine`` centroids for each of ``pieces`` pieces of the residual,
    in ``cells``. Queries use the ``query_z`` nearest centroids."""

    def __init__(
        self,
        sample: Sequence[Embeddings],
        cells: int,
        pieces: int,
        z: int = 1,
        query_z: int = 1,
        fine: int = 16,
        centred: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(sample, cells, centred, seed)
        self.pieces = pieces
        self.fine = fine
        self.z = z
        self.query_z = query_z
        self.centroids = [
            kmeans(piece, fine, seed=seed) for piece in self._residuals(self.sample)[1]
        ]

    def _residuals(self, rows: Floats) -> tuple[NDArray[np.int64], list[Floats]]:
        cells = nearest(rows, self.centres, 1)[0][:, 0]
        return cells, np.array_split(rows - self.centres[cells], self.pieces, axis=1)

    def encode_documents(self, embeddings: Embeddings) -> TermMatrix:
        """Encode items -> int32 csr (n, cells * pieces * fine)."""
        return self._encode(self.rows(embeddings), self.z)

    def encode_queries(self, embeddings: Embeddings) -> TermMatrix:
        """Encode queries -> int32 csr (n, cells * pieces * fine)."""
        return self._encode(self.rows(embeddings), self.query_z)

    def _encode(self, rows: Floats, z: int) -> TermMatrix:
        cells, pieces = self._residuals(rows)
        columns = []
        first = cells[:, None] * (self.pieces * self.fine)
        for number, (piece, centroids) in enumerate(zip(pieces, self.centroids, strict=True)):
            distances = squared_distances(piece, centroids)
            order = np.argsort(distances, axis=1, kind="stable")
            columns.append(first + number * self.fine + order[:, :z])
        ranks = np.concatenate([np.arange(part.shape[1], 0, -1) for part in columns])
        weights = np.broadcast_to(ranks, (len(rows), len(ranks)))
        return _matrix(
            np.concatenate(columns, axis=1),
            weights,
            len(self.centres) * self.pieces * self.fine,
        )


def _matrix(columns: NDArray[np.int64], weights: NDArray[Any], width: int) -> TermMatrix:
    """Return the term matrix (n, width) with the given columns and weights (n, m), without
    zeros."""
    order = np.argsort(columns, axis=1)
    columns, weights = (np.take_along_axis(each, order, axis=1) for each in (columns, weights))
    matrix: sparse.csr_array = terms_of(
        weights.astype(np.int32),
        columns.astype(np.int32),
        width,
    )
    matrix.eliminate_zeros()
    return matrix
