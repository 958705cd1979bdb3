"""Concatenated rectifier: signed components to non-negative ones."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from boc.codecs.base import Step


class CReLU(Step):
    """Append the negated vector and clip at zero: v -> max([v, -v], 0).

    Term frequencies cannot be negative; a component and its opposite become two terms. The dot product of two images
    under this map is that of the originals, less what components of opposite sign contributed (BoC, section IV).

    Examples
    --------
    >>> import numpy as np
    >>> CReLU().fit_transform(np.array([[0.5, -2.0]])).tolist()
    [[0.5, 0.0, 0.0, 2.0]]
    """

    @property
    def _n_features_out(self) -> int:
        return 2 * int(self.n_features_in_)

    def transform(self, X: NDArray[Any]) -> NDArray[np.float32]:
        """X (n, d) -> float32 (n, 2 d), all >= 0."""
        X = self._validated(X, reset=False).astype(np.float32)
        halves: NDArray[np.float32] = np.concatenate([X, -X], axis=1)
        return np.maximum(halves, 0)
