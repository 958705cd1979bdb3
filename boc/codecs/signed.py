"""Steps that turn signed vectors into non-negative components: centring, rotation, and a rectifier.

A component code consists of Center, RandomRotation, CReLU, and the steps in
``boc.codecs.frequencies``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np

from boc.codecs.base import Blocks, Step, labels_of
from boc.types import Modality
from boc.vectors import Array, Doubles, Floats, batches, mean_of

# largest squared distance from the mean caused by rounding, as a share of its squared length
ALIKE = 1e-6
BLOCK = 1024  # rows compared at a time


class Center(Step):
    """Subtract the mean vector of the item's modality.

    Pictures and sentences lie in two distant cones of the common space. Subtracting the mean of
    each cone balances the components of a code, so a query reads fewer postings at the same recall.
    Distances between items of one modality do not change. Dot products do change, so the final
    order needs the original vectors (re-ranking).

    Attributes
    ----------
    labels_ : ndarray of str (m,)
        Sorted modalities seen by ``fit`` (``y``, one label per row); one empty label without ``y``.
    means_ : ndarray of float32 (m, d)
        Mean of each modality; zero if all rows of the modality are equal.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.array([[1.0, 0.0], [3.0, 0.0], [0.0, 8.0]])
    >>> step = Center().fit(X, ["image", "image", "text"])
    >>> step.transform(X[:1], "image").tolist()
    [[-1.0, 0.0]]
    """

    learned: ClassVar[tuple[str, ...]] = ("labels_", "means_")

    def fit(self, X: Array, y: object = None) -> Center:
        """Learn the mean of the rows of ``X`` (n, d) for each label of ``y`` (n,)."""
        X = self._validate(X, reset=True)
        labels = labels_of(y, len(X))
        if labels.shape != (len(X),):
            raise ValueError(
                f"y must contain one label for each of the {len(X)} rows, got shape {labels.shape}",
            )
        parts = [(X[labels == label], label) for label in np.unique(labels).tolist()]
        return self._learn(Blocks(len(X), partial(iter, parts)))

    def fit_blocks(self, blocks: Blocks, n_items: int | None) -> Center:
        def validated() -> Iterator[tuple[Any, Modality]]:
            return ((self._validate(X, reset=True), label) for X, label in blocks)

        return self._learn(Blocks(len(blocks), validated))

    def _learn(self, blocks: Blocks) -> Center:
        """Compute the means in one pass over the blocks. A second pass ends as soon as every
        modality is known to have unequal rows."""
        sums: dict[str, Doubles] = {}
        counts = Counter[str]()
        for X, label in blocks:
            sums[label] = sums.get(label, 0) + X.sum(axis=0, dtype=np.float64)
            counts[label] += len(X)
        means = {label: sums[label] / counts[label] for label in sorted(sums)}
        # If all rows are equal, centring would turn them into zeros.
        alike = set(means)
        for X, label in blocks:
            if label in alike and _differ(X, means[label]):
                alike.remove(label)
            if not alike:
                break
        for each in alike:
            means[each] *= 0
        self.labels_ = np.array(list(means))
        self.means_ = np.stack(list(means.values())).astype(np.float32)
        return self

    def transform(
        self,
        X: Array,
        modality: str | None = None,
    ) -> Floats:
        """Centre X (n, d) -> float32 (n, d). Rows of a modality that ``fit`` did not see are
        centred by the mean of the means."""
        X = self._validate(X, reset=False)
        return X.astype(np.float32, copy=False) - self.mean(modality)

    def encode_documents(self, X: Any, modality: Modality) -> Any:
        return self.transform(X, modality)

    def mean(self, modality: str | None) -> Floats:
        """Return the mean to subtract from rows of a modality."""
        return mean_of(modality, self.labels_, self.means_)


def _differ(rows: Array, mean: Doubles) -> bool:
    """Return whether any row differs from the mean."""
    least = ALIKE * np.square(mean).sum()
    # The first block usually decides.
    for block in batches(rows, BLOCK):
        squares = np.square(block - mean).sum(axis=1)
        if squares.max() > least:
            return True
    return False


class RandomRotation(Step):
    """Multiply by a random orthogonal matrix.

    Dot products do not change. The rotation spreads a vector's energy evenly over its components,
    so no posting list grows much longer than the others, and component ranks carry equal weight.

    Parameters
    ----------
    seed : int, default=0
        Random seed; the same seed and width give the same matrix.

    Attributes
    ----------
    rotation_ : ndarray of float32 (d, d)
        Haar-distributed matrix: the Q factor of a Gaussian matrix, with signs fixed by the diagonal
        of R (Mezzadri, How to Generate Random Matrices from the Classical Compact Groups, 2007).
    """

    learned = ("rotation_",)
    retired: ClassVar[Mapping[str, Any]] = {"expand": 1}

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def fit(self, X: Array, y: object = None) -> RandomRotation:
        """Draw the matrix for vectors with the width of ``X``."""
        width = self._validate(X, reset=True).shape[1]
        normal = np.random.default_rng(self.seed).standard_normal((width, width))
        Q, R = np.linalg.qr(normal)
        self.rotation_ = (Q * np.sign(np.diag(R))).astype(np.float32)
        return self

    def transform(self, X: Array) -> Floats:
        """Rotate X (n, d) -> float32 (n, d)."""
        X = self._validate(X, reset=False)
        return X.astype(np.float32, copy=False) @ self.rotation_


class CReLU(Step):
    """Append the negated vector and clip at zero: v -> max([v, -v], 0).

    Term frequencies cannot be negative, so a component and its negation become two terms. The dot
    product of two mapped rows is the original dot product without the products of opposite signs
    (BoC, section IV).

    Examples
    --------
    >>> import numpy as np
    >>> CReLU().fit_transform(np.array([[0.5, -2.0]])).tolist()
    [[0.5, 0.0, 0.0, 2.0]]
    """

    @property
    def _n_features_out(self) -> int:
        return 2 * int(self.n_features_in_)

    def transform(self, X: Array) -> Floats:
        """Rectify X (n, d) -> float32 (n, 2 d), all >= 0."""
        X = self._validate(X, reset=False).astype(np.float32)
        halves: Floats = np.concatenate([X, -X], axis=1)
        return np.maximum(halves, 0)
