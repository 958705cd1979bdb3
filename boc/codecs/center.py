"""Centring: one mean per modality."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from boc.codecs.base import FLOAT32, Step
from boc.types import Modality

ALIKE = 1e-6  # squared distance from the mean, as a share of its squared length, that rounding alone gives
BLOCK = 1024  # rows compared at a time


class Center(Step):
    """Subtract the mean vector of the item's modality.

    Pictures and sentences lie in two distant cones of the common space. Without their means the components of a
    code are balanced, and fewer postings are read at the same recall. Distances between items of one modality do not
    change; dot products do, so the final order needs the original vectors (re-ranking).

    Attributes
    ----------
    labels_ : ndarray of str (m,)
        The modalities seen in ``fit`` (``y``, one label per row), sorted; one empty label without ``y``.
    means_ : ndarray of float32 (m, d)
        Their means; zero for a modality whose rows are all equal.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.array([[1.0, 0.0], [3.0, 0.0], [0.0, 8.0]])
    >>> step = Center().fit(X, ["image", "image", "text"])
    >>> step.transform(X[:1], "image").tolist()
    [[-1.0, 0.0]]
    """

    learned: ClassVar[tuple[str, ...]] = ("labels_", "means_")

    def fit(self, X: NDArray[Any], y: object = None) -> Center:
        """Learn the mean of the rows of ``X`` (n, d) for each label of ``y`` (n,)."""
        X = self._validated(X, reset=True)
        labels = np.zeros(len(X), dtype="U1") if y is None else np.asarray(y).astype(str)
        if labels.shape != (len(X),):
            raise ValueError(f"y must hold one label for each of the {len(X)} rows, got shape {labels.shape}")
        self.labels_ = np.unique(labels)
        self.means_ = np.stack([_mean(X[labels == k]) for k in self.labels_]).astype(np.float32)
        return self

    def transform(self, X: NDArray[Any], modality: str | None = None) -> NDArray[np.float32]:
        """X (n, d) -> float32 (n, d). A modality not seen in ``fit``, or None, is centred by the mean of the means."""
        return self._centred(X, modality)

    def encode_documents(self, X: Any, modality: Modality) -> NDArray[np.float32]:
        return self._centred(X, modality)

    def _centred(self, X: Any, modality: str | None) -> NDArray[np.float32]:
        X = self._validated(X, reset=False)
        centred: NDArray[np.float32] = (X if X.dtype == FLOAT32 else X.astype(np.float32)) - self.mean(modality)
        return centred

    def mean(self, modality: str | None) -> NDArray[np.float32]:
        """What is subtracted from rows of a modality."""
        labels = self.labels_.tolist()
        mean: NDArray[np.float32] = (
            self.means_[labels.index(modality)] if modality in labels else self.means_.mean(axis=0)
        )
        return mean


def _mean(rows: NDArray[Any]) -> NDArray[np.float64]:
    """The mean of some rows; zero if all are equal to it, of which centring would leave nothing to search by."""
    mean: NDArray[np.float64] = rows.mean(axis=0, dtype=np.float64)
    least = ALIKE * np.square(mean).sum()
    blocks = (rows[i : i + BLOCK] for i in range(0, len(rows), BLOCK))  # the first one tells, but of equal rows
    differ = any(np.square(block - mean).sum(axis=1).max() > least for block in blocks)
    return mean if differ else np.zeros_like(mean)
