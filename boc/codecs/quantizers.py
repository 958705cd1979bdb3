"""Scalar quantisation: the frequency of a component is proportional to its value."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from scipy import sparse

from boc.codecs.base import SparseStep, as_rows, frequencies


class ScalarQuantizer(SparseStep):
    """tf = floor(scale * v), negative components dropped (BoC, section III-A; Amato et al., Large-scale
    Instance-level Image Retrieval, IP&M 2019).

    A frequency cannot be negative. c-ReLU before this step makes two terms of a component, one for each sign;
    ``ShiftedCReLU`` adds a constant, and is how signed numbers are indexed without a loss.

    Parameters
    ----------
    scale : float, default=1000
        Greater than 0. Components below 1 / scale become 0.

    Examples
    --------
    >>> import numpy as np
    >>> ScalarQuantizer().fit_transform(np.array([[0.25, -0.5, 0.0016]])).toarray().tolist()
    [[250, 0, 1]]
    """

    def __init__(self, scale: float = 1000) -> None:
        self.scale = scale

    def fit(self, X: Any, y: object = None) -> ScalarQuantizer:
        """Check the scale."""
        if not 0 < self.scale < np.inf:
            raise ValueError(f"scale must be a number greater than 0, got {self.scale}")
        self._validated(X, reset=True)
        return self

    def transform(self, X: Any) -> sparse.csr_array:
        """X (n, d) -> int32 csr (n, d)."""
        rows = as_rows(self._validated(X, reset=False))
        return frequencies(np.floor(rows.data.astype(np.float64) * self.scale), rows)


class BitQuantizer(SparseStep):
    """tf = ceil((2**bits - 1) * v / peak), at most 2**bits - 1: few-bit frequencies for a small index.

    A positive component always keeps its term (frequency at least 1), so the budget of ``TopZ`` is fully used;
    ``bits=1`` gives binary codes.

    Parameters
    ----------
    bits : int, default=4
        1 to 15.

    Attributes
    ----------
    peak_ : ndarray of float32 (1,)
        The largest component seen in ``fit``; larger components are clipped to it.
    """

    learned: ClassVar[tuple[str, ...]] = ("peak_",)

    def __init__(self, bits: int = 4) -> None:
        self.bits = bits

    def fit(self, X: Any, y: object = None) -> BitQuantizer:
        """Learn the peak of ``X``."""
        if not 1 <= self.bits <= 15:
            raise ValueError(f"bits must be between 1 and 15, got {self.bits}")
        rows = as_rows(self._validated(X, reset=True))
        self.peak_ = np.array([rows.data.max(initial=0)], dtype=np.float32)
        return self

    def transform(self, X: Any) -> sparse.csr_array:
        """X (n, d) -> int32 csr (n, d), values 1 ... 2**bits - 1."""
        rows = as_rows(self._validated(X, reset=False))
        top = 2**self.bits - 1
        peak = float(self.peak_[0]) or 1.0
        return frequencies(np.minimum(np.ceil(rows.data.astype(np.float64) * (top / peak)), top), rows)
