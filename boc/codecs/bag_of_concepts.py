"""Bag of Concepts: convert sets of region or word vectors to histograms over a codebook (BoC,
section III-B).

For item i with concepts v_1 ... v_m and centroids c_1 ... c_p::

    hard   h_i[k] = number of v_l whose nearest centroid is c_k                       (L2)
    soft   a_i[k] = aggr_l s(l, k),   s(l, k) = similarity(|v_l - c_k|),   aggr = sum or max

If z is given, only the z highest similarities of each concept are kept before the aggregation.
``UnitNorm`` and ``ScalarQuantizer`` follow, since the paper compares histograms by cosine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from scipy import sparse

from boc.clustering.kmeans import center, nearest, row_block, squared_distances
from boc.codecs.base import (
    EMPTY,
    ConceptStep,
    frequencies,
    reduce_sets,
    stack_rows,
    take_codebook,
)
from boc.codecs.frequencies import keep_block
from boc.types import Modality, Ragged
from boc.vectors import Array, Bytes, Floats, Ints, unit_rows

if TYPE_CHECKING:
    from typing import Self

    from boc.clustering.codebook import Codebook

# Exponent of summed deviations. On held-out training photographs, .5 found as many pictures with
# 256 terms but fewer with 64.
POWER = 0.7


class _Assignment(ConceptStep):
    """Base class for hard and soft assignment, with the codebook."""

    learned = ("centroids_", "term_labels_", "means_", "axes_")
    added: ClassVar[Mapping[str, Array]] = {
        "means_": EMPTY["means"],
        "axes_": EMPTY["axes"],
    }
    retired: ClassVar[Mapping[str, Any]] = {"seed": 0, "sigma": None, "drop_stopwords": False}
    outputs = "centroids_"
    centroids_: Floats
    means_: Floats
    axes_: Floats
    term_labels_: Bytes

    def __init__(self, clusters: int, *, spherical: bool = False) -> None:
        self.clusters = clusters
        self.spherical = spherical

    def fit(self, X: Any, y: object = None) -> _Assignment:
        """Raise ValueError, because only ``from_codebook`` makes a complete step."""
        raise ValueError(f"{type(self).__name__} learns no centroids; make it by from_codebook")

    def encode_documents(self, X: Any, modality: Modality) -> sparse.csr_array:
        return self.transform(self._center(X, modality))

    def _center(self, X: Any, modality: Modality) -> Any:
        """Centre the concepts by the mean of their modality and multiply them by the axes; skip
        steps that the codebook lacks."""
        if not self.means_.size:
            return X
        sets = self._sets(X)
        return Ragged(
            center(
                sets.values,
                modality,
                self.means_,
                self.axes_,
            ),
            sets.offsets,
        )

    @classmethod
    def from_codebook(cls, codebook: Codebook, **options: Any) -> Self:
        """Make a fitted step from the centroids of ``codebook``. ``options`` are parameters other
        than ``clusters`` and ``spherical``. Raises ValueError for a parameter out of range."""
        step = cls(len(codebook), spherical=codebook.spherical, **options)
        step._check()
        take_codebook(
            step,
            codebook,
            centroids_="centroids",
            term_labels_="labels",
            means_="means",
            axes_="axes",
        )
        step.frozen = True
        return step

    def _check(self) -> None:
        """Raise ValueError for a parameter out of its range."""

    def _blocks(self, sets: Ragged, compared: int) -> Iterator[Ragged]:
        """Yield the sets in blocks, sized for comparisons of each row with ``compared``
        centroids."""
        for block in sets.blocks(row_block(compared)):
            if self.spherical:
                block = Ragged(unit_rows(block.values), block.offsets)
            yield block


class HardAssignment(_Assignment):
    """Histogram of nearest centroids: tf_k is the number of the item's concepts whose nearest
    centroid is c_k.

    Parameters
    ----------
    clusters : int
        Number of centroids.
    spherical : bool, default=False
        Compare by cosine: concepts and centroids are scaled to unit length.

    Attributes
    ----------
    centroids_ : ndarray of float32 (p, d)
    term_labels_ : ndarray of uint8
        Labels of the centroids, packed by ``boc.labels``; empty unless they come from a codebook.
    means_ : ndarray of float32 (2, d) or (0, 0)
        Means that are subtracted from the concepts of pictures and of sentences; empty unless the
        codebook has means.
    axes_ : ndarray of float32 (d, d) or (0, 0)
        Matrix that multiplies the centred concepts; empty unless the codebook has one.

    Examples
    --------
    >>> import numpy as np
    >>> from boc.clustering.codebook import Codebook
    >>> from boc.types import Identity, Ragged
    >>> centroids = np.array([[0, 0], [4, 0]], np.float32)
    >>> step = HardAssignment.from_codebook(Codebook(centroids, Identity("", "", 2), (), {}, 2))
    >>> step.transform(Ragged.from_sets([[[0, 1], [1, 0], [3, 1]], []], 2)).toarray().tolist()
    [[2, 1], [0, 0]]
    """

    def transform(self, X: Any) -> sparse.csr_array:
        """Return one histogram per set, n sets -> int32 csr (n, p); an empty set yields an empty
        row."""
        sets = self._sets(X)
        parts = []
        for block in self._blocks(sets, 1):
            columns = nearest(block.values, self.centroids_, 1)[0][:, 0]
            counts = (np.ones(len(columns), np.int32), columns, block.offsets)
            rows = sparse.csr_array(counts, shape=(len(block), len(self.centroids_)))
            rows.sum_duplicates()
            parts.append(frequencies(rows.data, rows))
        return stack_rows(parts, len(self.centroids_), np.int32)


class SoftAssignment(_Assignment):
    """Similarities to all centroids, or to the nearest ones, aggregated over the item's concepts.

    Parameters
    ----------
    clusters, spherical
        As in ``HardAssignment``.
    similarity : {"inverse", "deviation"}, default="inverse"
        Function of the distance D: 1 / (1 + D), or its deviation from the mean over all centroids,
        which is negative for distant centroids. Deviations are summed with their signs. A sum above
        0, raised to the power .7, is the item's frequency; the z largest are kept. The power
        prevents a few large terms from dominating (Perronnin et al., ECCV 2010). The paper prints 1
        / (1 - D). This function has a pole at D = 1 and is negative for larger D, such as the
        distances of TERN's concepts (``bench/paper/variants.py``).
    aggregate : {"sum", "max"}, default="sum"
    z : int or None, default=None
        Number of nearest centroids kept per document concept; None keeps all. With "deviation",
        number of terms kept per document.
    query_z : int or None, default=None
        Like ``z``, for queries; None means ``z``.

    Attributes
    ----------
    centroids_, term_labels_, means_, axes_
        As in ``HardAssignment``.

    Examples
    --------
    >>> import numpy as np
    >>> from boc.clustering.codebook import Codebook
    >>> from boc.types import Identity, Ragged
    >>> centroids = np.array([[0, 0], [3, 0]], np.float32)
    >>> step = SoftAssignment.from_codebook(Codebook(centroids, Identity("", "", 2), (), {}, 2))
    >>> step.transform(Ragged.from_sets([[[0, 0], [3, 0]], [[0, 7]]], 2)).toarray()[:, 0].tolist()
    [1.25, 0.125]
    """

    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "similarity": ("inverse", "deviation"),
        "aggregate": ("sum", "max"),
    }

    def __init__(
        self,
        clusters: int,
        *,
        similarity: str = "inverse",
        aggregate: str = "sum",
        z: int | None = None,
        query_z: int | None = None,
        spherical: bool = False,
    ) -> None:
        super().__init__(clusters, spherical=spherical)
        self.similarity = similarity
        self.aggregate = aggregate
        self.z = z
        self.query_z = query_z

    def transform(self, X: Any) -> sparse.csr_array:
        """Aggregate similarities per set, n sets -> float32 csr (n, p); an empty set yields an
        empty row."""
        return self._assign(X, self.z)

    def encode_queries(self, X: Any, modality: Modality) -> sparse.csr_array:
        return self._assign(self._center(X, modality), self.query_z or self.z)

    def _check(self) -> None:
        for name, allowed in self.choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"{name} must be one of {', '.join(allowed)}; got {getattr(self, name)!r}",
                )
        for name, z in (("z", self.z), ("query_z", self.query_z)):
            if z is not None and z < 1:
                raise ValueError(f"{name} must be at least 1, got {z}")

    def _assign(self, X: Any, z: int | None) -> sparse.csr_array:
        sets = self._sets(X)
        p = len(self.centroids_)
        z = min(z or p, p)
        signed = self.similarity == "deviation"
        parts = []
        if z < p and not signed:
            for block in self._blocks(sets, z):
                columns, squared = nearest(block.values, self.centroids_, z)
                parts.append(self._aggregate_nearest(block, columns, self._similar(squared)))
        else:
            for block in self._blocks(sets, p):
                similar = self._similar(squared_distances(block.values, self.centroids_))
                rows = reduce_sets(self._ufunc, similar, block)
                if signed:
                    parts.append(keep_block(rows, z).power(POWER))
                else:
                    parts.append(sparse.csr_array(rows))
        terms = stack_rows(parts, p)
        terms.eliminate_zeros()
        return terms

    def _aggregate_nearest(
        self,
        block: Ragged,
        columns: Ints,
        similar: Floats,
    ) -> sparse.csr_array:
        """Aggregate, per set, the similarities ``similar`` (rows, z) to the centroids ``columns``
        (rows, z)."""
        entries = (similar.ravel(), columns.ravel(), block.offsets * columns.shape[1])
        rows = sparse.csr_array(entries, shape=(len(block), len(self.centroids_)))
        rows.sort_indices()
        fresh = np.diff(rows.indices, prepend=-1) != 0
        fresh[rows.indptr[:-1][np.diff(rows.indptr) > 0]] = True
        first = np.flatnonzero(fresh)
        values = self._ufunc.reduceat(rows.data, first)
        indptr = np.searchsorted(first, rows.indptr)
        return sparse.csr_array((values, rows.indices[first], indptr), shape=rows.shape)

    @property
    def _ufunc(self) -> np.ufunc:
        return {"sum": np.add, "max": np.maximum}[self.aggregate]

    def _similar(self, squared: Floats) -> Floats:
        similar: Floats = np.reciprocal(1 + np.sqrt(squared))
        if self.similarity == "deviation":
            similar -= similar.mean(axis=1, keepdims=True)
        return similar
