"""Random rotation."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from boc.codecs.base import Step


class RandomRotation(Step):
    """Multiply by a random orthogonal matrix, or by several side by side.

    Dot products stay; the energy of a vector spreads evenly over the components, so no posting list grows much longer
    than the others, and ranks of components weigh alike.

    ``CReLU`` drops the products of opposite signs, which disturbs the order the more, the fewer components there are.
    Under random directions the expectation of what it keeps grows with the cosine (Cho & Saul, Kernel Methods for Deep
    Learning, 2009), so with ``expand`` rotations the disturbance falls as one over its square root.

    Parameters
    ----------
    seed : int, default=0
        The same seed and width give the same matrix.
    expand : int, default=1
        Number of rotations; the output is ``expand * d`` wide.

    Attributes
    ----------
    rotation_ : ndarray of float32 (d, expand * d)
        Uniformly distributed (Haar) blocks: the Q of a Gaussian matrix, signs fixed by the diagonal of R (Mezzadri, How
        to Generate Random Matrices from the Classical Compact Groups, 2007), over the square root of ``expand``.
    """

    learned: ClassVar[tuple[str, ...]] = ("rotation_",)

    def __init__(self, seed: int = 0, expand: int = 1) -> None:
        self.seed = seed
        self.expand = expand

    def fit(self, X: NDArray[Any], y: object = None) -> RandomRotation:
        """Draw the matrix for vectors as wide as ``X``. ValueError if ``expand`` is below 1."""
        if self.expand < 1:
            raise ValueError(f"expand must be at least 1, got {self.expand}")
        width = self._validated(X, reset=True).shape[1]
        rng = np.random.default_rng(self.seed)
        blocks = [_orthogonal(width, rng) for _ in range(self.expand)]
        self.rotation_ = (np.concatenate(blocks, axis=1) / np.sqrt(self.expand)).astype(np.float32)
        return self

    @property
    def _n_features_out(self) -> int:
        return int(self.rotation_.shape[1])

    def transform(self, X: NDArray[Any]) -> NDArray[np.float32]:
        """X (n, d) -> float32 (n, expand * d)."""
        X = self._validated(X, reset=False)
        rotated: NDArray[np.float32] = X.astype(np.float32, copy=False) @ self.rotation_
        return rotated


def _orthogonal(width: int, rng: np.random.Generator) -> NDArray[np.float64]:
    Q, R = np.linalg.qr(rng.standard_normal((width, width)))
    matrix: NDArray[np.float64] = Q * np.sign(np.diag(R))
    return matrix
