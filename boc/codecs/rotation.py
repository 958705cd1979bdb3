"""Random rotation."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from boc.codecs._base import Step


class RandomRotation(Step):
    """Multiply by a random orthogonal matrix.

    Dot products stay; the energy of a vector spreads evenly over the components, so no posting list grows much longer
    than the others.

    Parameters
    ----------
    seed : int, default=0
        The same seed and width give the same matrix.

    Attributes
    ----------
    rotation_ : ndarray of float32 (d, d)
        Uniformly distributed (Haar): the Q of a Gaussian matrix, signs fixed by the diagonal of R (Mezzadri, How to
        Generate Random Matrices from the Classical Compact Groups, 2007).
    """

    learned: ClassVar[tuple[str, ...]] = ("rotation_",)

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def fit(self, X: NDArray[Any], y: object = None) -> RandomRotation:
        """Draw the matrix for vectors as wide as ``X``."""
        width = self._validated(X, reset=True).shape[1]
        Q, R = np.linalg.qr(np.random.default_rng(self.seed).standard_normal((width, width)))
        self.rotation_ = (Q * np.sign(np.diag(R))).astype(np.float32)
        return self

    def transform(self, X: NDArray[Any]) -> NDArray[np.float32]:
        """X (n, d) -> float32 (n, d) = X R."""
        X = self._validated(X, reset=False)
        rotated: NDArray[np.float32] = X.astype(np.float32) @ self.rotation_
        return rotated
