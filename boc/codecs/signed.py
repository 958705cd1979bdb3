"""Steps that convert signed vectors to non-negative components: centring, rotation and
rectification.

A component code consists of Center, RandomRotation, CReLU and steps from
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

# maximum squared distance from the mean due to rounding, as a fraction of its squared length
ALIKE = 1e-6
BLOCK = 1024  # rows compared at a time


class Center(Step):
    """Subtract the mean vector of the modality.

    Pictures and sentences lie in two distant cones of the common space. Subtracting the mean of
    each cone balances the components of a code, so that a query reads fewer postings for the same
    recall. Distances between items of the same modality do not change, but dot products do, so hits
    must be re-ranked by the original vectors.

    Attributes
    ----------
    labels_ : ndarray of str (m,)
        Sorted labels passed to ``fit`` as ``y``; a single empty label if ``y`` is None.
    means_ : ndarray of float32 (m, d)
        Mean for each label; zero if all rows with this label are equal.

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
        """Learn the mean of the rows of ``X`` (n, d) for each label in ``y`` (n,)."""
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
        """Compute the means in one pass over the blocks. A second pass, which checks whether all
        rows of a modality are equal, ends early if they are not."""
        sums: dict[str, Doubles] = {}
        counts = Counter[str]()
        for X, label in blocks:
            sums[label] = sums.get(label, 0) + X.sum(axis=0, dtype=np.float64)
            counts[label] += len(X)
        means = {label: sums[label] / counts[label] for label in sorted(sums)}
        # Centring would set all rows to zero if they are equal.
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
        """Centre X (n, d) -> float32 (n, d). For a modality that ``fit`` did not see, subtract the
        mean of the means."""
        X = self._validate(X, reset=False)
        return X.astype(np.float32, copy=False) - self.mean(modality)

    def encode_documents(self, X: Any, modality: Modality) -> Any:
        return self.transform(X, modality)

    def mean(self, modality: str | None) -> Floats:
        """Return the mean to subtract from rows of a modality."""
        return mean_of(modality, self.labels_, self.means_)


def _differ(rows: Array, mean: Doubles) -> bool:
    """Return whether at least one row differs from the mean."""
    least = ALIKE * np.square(mean).sum()
    # The first block usually contains such a row.
    for block in batches(rows, BLOCK):
        squares = np.square(block - mean).sum(axis=1)
        if squares.max() > least:
            return True
    return False


class RandomRotation(Step):
    """Multiply by a random orthogonal matrix.

    Dot products do not change. The rotation distributes the energy of a vector evenly over its
    components, so that posting lists have similar lengths and components have equal weights.

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
        """Draw a random matrix for vectors as wide as ``X`` (n, d)."""
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
    product of two results equals the original dot product without the products of components with
    opposite signs (BoC, section IV).

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
        """Rectify X (n, d) -> float32 (n, 2 d), with all values >= 0."""
        X = self._validate(X, reset=False).astype(np.float32)
        halves: Floats = np.concatenate([X, -X], axis=1)
        return np.maximum(halves, 0)
