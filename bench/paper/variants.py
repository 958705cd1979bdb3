"""Alternative readings of the papers' codes, as chains of steps without a ``--code`` name.

The paper (III-A) turns all components into frequencies and then keeps "the first z higher values";
``scalar`` and ``permutation`` keep first. With d components before c-ReLU:

- ``printed``: scalar computes floor(1000 v) of all components and keeps the z largest. Their cosine
  is the dot product after scaling to unit length, with a second, finer rounding. Permutation ranks
  all 2d components, and keeps 2d ... 2d - z + 1.
- ``offset``: the ranks z ... 1 of the kept components, plus z.
- ``authors``: scalar as in the package by the authors' group (str-encoders, ``TopKSQ``): floor(1000
  v) of the z largest components, compared by dot product, without scaling to unit length again.
- ``shifted``: components are not clipped or dropped, so items have the same order as by dense
  vectors (``ShiftedCReLU``). Several concatenated rotations distort the ranks less.

All variants are "plain", that is, without centring and rotation, except for the rotations of a
shifted code.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bench.paper.codebooks import carries_content
from boc.codecs import (
    CReLU,
    DeepPermutation,
    HardAssignment,
    RandomRotation,
    ScalarQuantizer,
    SoftAssignment,
    SurrogateCodec,
    TopZ,
    UnitNorm,
)
from boc.codecs.base import Step
from boc.errors import BocError
from boc.types import Embeddings, Modality, Ragged

POLE = 1e-6  # the printed similarity is limited to 1 / POLE
FINE = 10_000  # scale for values that are already rounded, or that lose no precision otherwise


class ShiftedCReLU(Step):
    """Encode documents as [c + v, c - v], and queries by the plain c-ReLU max([q, -q], 0).

    If c is the maximum of |v|, components are not clipped, and the dot product is q.v + c |q|_1,
    where the second summand is the same for all documents. The drawback is that every document
    contains every term.
    """

    learned: ClassVar[tuple[str, ...]] = ("shift_",)

    def fit(self, X: Any, y: object = None) -> ShiftedCReLU:
        X = self._validate(X, reset=True)
        self.shift_ = np.array([np.abs(X).max()], dtype=np.float32)
        return self

    @property
    def _n_features_out(self) -> int:
        return 2 * int(self.n_features_in_)

    def transform(self, X: Any) -> NDArray[np.float32]:
        sides = [self.shift_ + X, self.shift_ - X]
        both = np.concatenate(sides, axis=1, dtype=np.float32)
        return np.maximum(both, 0)

    def encode_queries(self, X: Any, modality: Modality) -> NDArray[np.float32]:
        both = np.concatenate([X, -X], axis=1, dtype=np.float32)
        return np.maximum(both, 0)


class Rotations(Step):
    """Multiply by several random rotations, concatenate the results, and divide by the square root
    of the number of rotations."""

    learned: ClassVar[tuple[str, ...]] = ("rotation_",)

    def __init__(self, count: int = 1) -> None:
        self.count = count

    def fit(self, X: Any, y: object = None) -> Rotations:
        X = self._validate(X, reset=True)
        each = [RandomRotation(seed).fit(X).rotation_ for seed in range(self.count)]
        self.rotation_ = np.concatenate(each, axis=1) / np.float32(np.sqrt(self.count))
        return self

    @property
    def _n_features_out(self) -> int:
        return int(self.rotation_.shape[1])

    def transform(self, X: Any) -> Any:
        return X @ self.rotation_


class OffsetPermutation(DeepPermutation):
    """Ranks that count from twice the number of kept components."""

    def transform(self, X: Any) -> sparse.csr_array:
        terms = super().transform(X)
        lengths = np.diff(terms.indptr)
        terms.data += np.repeat(lengths, lengths).astype(terms.dtype)
        return terms


class PrintedSimilarity(SoftAssignment):
    """Similarity as printed in the paper, 1 / (1 - D). Negative frequencies cannot be stored, so
    the sign is dropped, which does not change the cosine of sums as long as all D > 1. Near the
    pole, the value is limited to 10**6."""

    @property
    def _ufunc(self) -> np.ufunc:
        # For D > 1, 1 / (1 - D) is negative, so the maximum is the value with the smallest
        # magnitude.
        return np.add if self.aggregate == "sum" else np.minimum

    def _similar(self, squared: NDArray[np.float32]) -> NDArray[np.float32]:
        apart = np.abs(1 - np.sqrt(squared))
        similar: NDArray[np.float32] = np.reciprocal(np.maximum(apart, np.float32(POLE)))
        return similar


class WithoutStopwords(HardAssignment):
    """Hard assignment without the concepts of English stop words."""

    def read(self, embeddings: Embeddings) -> Ragged:
        concepts = super().read(embeddings)
        if embeddings.modality != "text":
            return concepts
        if embeddings.words is None:
            raise BocError(
                "stop words cannot be dropped, because the words are unknown; extract the captions "
                "again",
            )
        keep = [carries_content(pieces) for pieces in embeddings.words]
        flat = np.array([stays for rows in keep for stays in rows], dtype=bool)
        lengths = [sum(rows) for rows in keep]
        offsets = np.cumsum([0, *lengths], dtype=np.int64)
        return Ragged(concepts.values[flat], offsets)


def printed_order(code: str, z: int | None = None, query_z: int | None = None) -> SurrogateCodec:
    """Return ``scalar`` or ``permutation`` in the printed order, which quantises before it selects
    components."""
    if code == "permutation":
        return SurrogateCodec([CReLU(), DeepPermutation(), TopZ(z, query_z), ScalarQuantizer(1)])
    return SurrogateCodec(
        [CReLU(), ScalarQuantizer(), TopZ(z, query_z), UnitNorm(), ScalarQuantizer(FINE)],
    )


def offset_ranks(z: int | None = None, query_z: int | None = None) -> SurrogateCodec:
    """Return ``permutation`` with ranks that count from twice the number of kept components."""
    return SurrogateCodec([CReLU(), TopZ(z, query_z), OffsetPermutation()])


def authors_scalar(z: int | None = None, query_z: int | None = None) -> SurrogateCodec:
    """Return ``scalar`` as in the authors' package, for vectors of unit length."""
    return SurrogateCodec([CReLU(), TopZ(z, query_z), ScalarQuantizer()])


def shifted_crelu(code: str, rotations: int = 0) -> SurrogateCodec:
    """Return ``scalar`` or ``permutation`` that keeps all terms, over several concatenated
    rotations."""
    before = [Rotations(rotations)] if rotations else []
    if code == "permutation":
        return SurrogateCodec([*before, ShiftedCReLU(), TopZ(), DeepPermutation()])
    return SurrogateCodec([*before, ShiftedCReLU(), ScalarQuantizer(FINE)])
