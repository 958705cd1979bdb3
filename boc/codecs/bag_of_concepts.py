"""Bag of Concepts: convert sets of region or word vectors to histograms over a codebook (BoC,
section III-B).

For item i with concepts v_1 ... v_m and centroids c_1 ... c_p::

    hard   h_i[k] = number of v_l whose nearest centroid is c_k                       (L2)
    soft   a_i[k] = aggr_l s(l, k),   s(l, k) = similarity(|v_l - c_k|),   aggr = sum or max

If z is set, only the z highest similarities of each concept are aggregated. The next steps are
``UnitNorm`` and ``ScalarQuantizer``, because the paper compares histograms by cosine.
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

# Exponent for summed deviations. On held-out training pictures, .5 gave the same recall with 256
# terms, but a lower recall with 64.
POWER = 0.7


class _Assignment(ConceptStep):
    """Base class for hard and soft assignment to the centroids of a codebook."""

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
        """Raise ValueError, because a step can be created only by ``from_codebook``."""
        raise ValueError(
            f"{type(self).__name__} cannot learn centroids; create the step with from_codebook",
        )

    def encode_documents(self, X: Any, modality: Modality) -> sparse.csr_array:
        return self.transform(self._center(X, modality))

    def _center(self, X: Any, modality: Modality) -> Any:
        """Subtract the mean of the modality from the concepts and multiply the result by the axes,
        if the codebook contains means and axes."""
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
        """Create a fitted step from ``codebook``. ``options`` are the parameters other than
        ``clusters`` and ``spherical``. Raises ValueError if a parameter is out of range."""
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
        """Raise ValueError if a parameter is out of range."""

    def _blocks(self, sets: Ragged, compared: int) -> Iterator[Ragged]:
        """Yield blocks of sets whose rows can be compared with ``compared`` centroids each within
        the memory limit."""
        for block in sets.blocks(row_block(compared)):
            if self.spherical:
                block = Ragged(unit_rows(block.values), block.offsets)
            yield block


class HardAssignment(_Assignment):
    """Histogram of nearest centroids: tf_k is the number of concepts in the item whose nearest
    centroid is c_k.

    Parameters
    ----------
    clusters : int
        Number of centroids.
    spherical : bool, default=False
        If True, scale concepts and centroids to unit length, so that they are compared by cosine.

    Attributes
    ----------
    centroids_ : ndarray of float32 (p, d)
    term_labels_ : ndarray of uint8
        Labels of the centroids, packed by ``boc.labels``; empty if the codebook has no labels.
    means_ : ndarray of float32 (2, d) or (0, 0)
        Means to subtract from the concepts of pictures and of sentences; empty if the codebook has
        no means.
    axes_ : ndarray of float32 (d, d) or (0, 0)
        Matrix by which the centred concepts are multiplied; empty if the codebook has no axes.

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
        """Compute one histogram per set, n sets -> int32 csr (n, p). Empty sets become empty
        rows."""
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
    """Similarities to all centroids or to the nearest centroids, aggregated over the concepts of an
    item.

    Parameters
    ----------
    clusters, spherical
        As in ``HardAssignment``.
    similarity : {"inverse", "deviation"}, default="inverse"
        Function of the distance D: "inverse" is 1 / (1 + D), and "deviation" is the deviation of 1
        / (1 + D) from its mean over all centroids, which is negative for distant centroids.
        Deviations are summed with their signs. Positive sums are raised to the power .7, and the z
        largest results are kept. The power prevents a few large terms from dominating (Perronnin et
        al., ECCV 2010). The paper prints 1 / (1 - D). This function has a pole at D = 1 and is
        negative for larger distances, which are typical of TERN concepts
        (``bench/paper/variants.py``).
    aggregate : {"sum", "max"}, default="sum"
    z : int or None, default=None
        Number of nearest centroids to keep for each concept of a document; None keeps all. With
        "deviation", number of terms to keep per document.
    query_z : int or None, default=None
        Same as ``z``, for queries; None means ``z``.

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
        """Aggregate similarities per set, n sets -> float32 csr (n, p). Empty sets become empty
        rows."""
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
        """Aggregate the similarities ``similar`` (rows, z) to the centroids ``columns`` (rows, z)
        for each set."""
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
