"""Shifted concatenated rectifier: non-negative components that keep the order of the dense vectors."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from boc.codecs.base import Step
from boc.types import Modality


class ShiftedCReLU(Step):
    """Documents become [c + v, c - v], clipped at zero; queries the plain c-ReLU max([q, -q], 0).

    With c at least the largest |v| nothing is clipped, and the dot product of the two is q.v + c |q|_1: the second
    part is the same for all documents, so they come in the order of q.v. The price is that a document has every
    term and a query reads half of all postings.

    Attributes
    ----------
    shift_ : ndarray of float32 (1,)
        c: the largest absolute component seen in ``fit``.

    Examples
    --------
    >>> import numpy as np
    >>> step = ShiftedCReLU().fit(np.array([[0.5, -2.0]]))
    >>> step.transform(np.array([[0.5, -2.0]])).tolist()
    [[2.5, 0.0, 1.5, 4.0]]
    >>> step.encode_queries(np.array([[0.5, -2.0]]), "text").tolist()
    [[0.5, 0.0, 0.0, 2.0]]
    """

    learned: ClassVar[tuple[str, ...]] = ("shift_",)

    def fit(self, X: Any, y: object = None) -> ShiftedCReLU:
        """Learn the shift from ``X`` (n, d)."""
        X = self._validated(X, reset=True)
        self.shift_ = np.array([np.abs(X).max()], dtype=np.float32)
        return self

    @property
    def _n_features_out(self) -> int:
        return 2 * int(self.n_features_in_)

    def transform(self, X: Any) -> NDArray[np.float32]:
        """The document side: X (n, d) -> float32 (n, 2 d), all >= 0."""
        X = self._validated(X, reset=False)
        return _halves(X, self.shift_)

    def encode_queries(self, X: Any, modality: Modality) -> NDArray[np.float32]:
        """The query side: X (n, d) -> float32 (n, 2 d), all >= 0."""
        return _halves(self._validated(X, reset=False), np.zeros(1, np.float32))


def _halves(X: NDArray[Any], shift: NDArray[np.float32]) -> NDArray[np.float32]:
    X = X.astype(np.float32)
    halves: NDArray[np.float32] = np.concatenate([shift + X, shift - X], axis=1)
    return np.maximum(halves, 0)
