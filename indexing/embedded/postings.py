"""Store posting lists in blocks of rows, and score a query over them.

Rows are split into B blocks of 65,536 rows, so that lists can store 16-bit row numbers and the
scores of a block stay in the cache while all lists of a query are added to them (term-at-a-time
evaluation). The postings of a term are contiguous, block by block. Searches use ``kernel.py``. If
the kernel was not built, or if a score may reach 2**32, NumPy code produces the same results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from boc.errors import BackendError
from boc.types import TermMatrix
from boc.vectors import Array, Doubles, Ints

from .kernel import BLOCK

RowScores: TypeAlias = tuple[Ints, Array]
"""Rows of a segment and their scores."""

FREQUENCIES = (np.uint8, np.uint16, np.int32)


@dataclass(frozen=True, eq=False)
class Postings:
    """Term frequencies of n rows over V terms, grouped by term.

    ``starts`` is uint32 (V * B + 1,), and the list of term j in block b is ``[starts[j * B + b],
    starts[j * B + b + 1])``. ``rows`` is uint16 (P,) and contains row - 65,536 b, ascending within
    a list. ``frequencies`` is (P,), of the smallest type among uint8, uint16 and int32 that fits
    the maximum frequency, or (0,) if all frequencies are 1. The arrays may be memory maps. Raises
    ValueError if the arrays are inconsistent, either here or when a damaged list is read.
    """

    starts: NDArray[np.uint32]
    rows: NDArray[np.uint16]
    frequencies: Array
    n: int
    n_terms: int

    def __post_init__(self) -> None:
        arrays: tuple[Array, ...] = self.starts, self.rows, self.frequencies
        lengths = self.n_terms * self.blocks + 1, len(self.rows), len(self.frequencies)
        if (
            self.starts.dtype != np.uint32
            or self.rows.dtype != np.uint16
            or self.frequencies.dtype not in FREQUENCIES
            or tuple(each.shape for each in arrays) != tuple((length,) for length in lengths)
            or not all(each.flags.c_contiguous for each in arrays)
            or len(self.frequencies) not in (0, len(self.rows))
            or (self.starts[0], self.starts[-1]) != (0, len(self.rows))
        ):
            shapes = ", ".join(f"{a.dtype} {a.shape}" for a in arrays)
            raise ValueError(
                f"postings of {self.n} rows and {self.n_terms} terms do not match each other: "
                f"{shapes}",
            )

    @property
    def blocks(self) -> int:
        return max(1, -(-self.n // BLOCK))

    @classmethod
    def from_matrix(cls, terms: TermMatrix) -> Postings:
        """Build postings from a term matrix (n, V). Raises BackendError if the matrix has 2**32 or
        more values."""
        n, n_terms = terms.shape
        if terms.nnz >= 1 << 32:
            raise BackendError(
                f"{terms.nnz} postings do not fit into one segment; index at most {2**32 - 1} at a "
                "time",
            )
        largest = int(terms.data.max(initial=1))
        dtype = next(t for t in FREQUENCIES if largest <= np.iinfo(t).max)
        parts = [terms[first : first + BLOCK].tocsc() for first in range(0, max(1, n), BLOCK)]
        starts = np.zeros(n_terms * len(parts) + 1, np.uint32)
        lengths = np.stack([np.diff(part.indptr) for part in parts], axis=1)
        np.cumsum(lengths, out=starts[1:], dtype=np.uint32)
        rows = np.empty(terms.nnz, np.uint16)
        frequencies = np.empty(terms.nnz if largest > 1 else 0, dtype)
        for b, part in enumerate(parts):
            moved = starts[b : -1 : len(parts)] - part.indptr[:-1]
            places = np.arange(part.nnz) + np.repeat(moved, np.diff(part.indptr))
            rows[places] = part.indices
            if largest > 1:
                frequencies[places] = part.data
        return cls(
            starts,
            rows,
            frequencies,
            n,
            n_terms,
        )

    @cached_property
    def arrays(self) -> tuple[Array, ...]:
        """Return the arrays that the kernel uses. The last array contains the maximum frequency of
        each term, or 0 if the kernel has not computed it yet."""
        return self.starts, self.rows, self.frequencies, np.zeros(self.n_terms, np.uint32)

    def scores(self, terms: Array, weights: Array) -> Doubles:
        """Return the scores (n,) of all rows for a query. Scores are integers, which are exact up
        to 2**53."""
        if weights.min(initial=0) < 0:
            raise ValueError(f"the weights of a query must not be negative, got {weights.min()}")
        scores = np.zeros(self.n)
        for term, weight in zip(terms.tolist(), weights.tolist(), strict=True):
            _, rows, frequencies = self.lists(term, term + 1)
            scores[rows] += float(weight) * frequencies
        return scores

    def lists(
        self,
        first: int,
        last: int,
    ) -> tuple[Ints, NDArray[np.int32], NDArray[np.int32]]:
        """Return the posting lists of the terms from ``first`` to ``last`` - 1, as offsets,
        concatenated rows and concatenated frequencies."""
        bounds = self.starts[first * self.blocks : last * self.blocks + 1].astype(np.int64)
        span = slice(int(bounds[0]), int(bounds[-1]))
        blocks = np.arange(self.blocks, dtype=np.int32)
        rows = self._absolute(self.rows[span], np.diff(bounds), blocks)
        return bounds[:: self.blocks] - bounds[0], rows, self._frequencies(span, len(rows))

    def matrix_of(self, chosen: Ints) -> TermMatrix:
        """Return the ``chosen`` rows (len(chosen), V) of the term matrix, in the same order.

        Only the blocks that contain these rows are read.
        """
        distinct, order = np.unique(chosen, return_inverse=True)
        matrices = [sparse.csr_array((0, self.n_terms), dtype=np.int32)]
        for b in np.unique(distinct // BLOCK).tolist():
            wanted = distinct[distinct // BLOCK == b]
            begins = self.starts[b :: self.blocks][: self.n_terms].astype(np.int64)
            ends = self.starts[b + 1 :: self.blocks].astype(np.int64)
            spans = zip(begins.tolist(), ends.tolist(), strict=True)
            rows = np.concatenate([self.rows[:0], *(self.rows[begin:end] for begin, end in spans)])
            listed = self._absolute(rows, ends - begins, np.array([b], np.int32))
            at = np.flatnonzero(np.isin(listed, wanted))
            # Ends of the lists in this array. In the file, these lists are separated by lists of
            # other blocks.
            lasts = np.cumsum(ends - begins)
            terms = np.searchsorted(lasts, at, side="right")
            frequencies = self._frequencies(at + (ends - lasts)[terms], len(at))
            values = frequencies, (np.searchsorted(wanted, listed[at]), terms)
            matrices.append(sparse.csr_array(values, shape=(len(wanted), self.n_terms)))
        return sparse.vstack(matrices, format="csr")[order]

    def lookup(self, chosen: Ints, among: Sequence[int]) -> TermMatrix:
        """Return the frequencies (len(chosen), V) of the terms ``among`` in the ``chosen`` rows, in
        the same order.

        Only the lists of these terms are read.
        """
        indptr = [0]
        indices = [np.empty(0, np.int64)]
        data = [np.empty(0, np.int32)]
        ordered = sorted(set(among))
        for term in ordered:
            _, listed, frequencies = self.lists(term, term + 1)
            places = np.searchsorted(listed, chosen)
            inside = np.flatnonzero(places < len(listed))
            inside = inside[listed[places[inside]] == chosen[inside]]
            indices.append(inside)
            data.append(frequencies[places[inside]])
            indptr.append(indptr[-1] + len(inside))
        columns = np.repeat(ordered, np.diff(indptr)).astype(np.int64)
        values = np.concatenate(data), (np.concatenate(indices), columns)
        return sparse.csr_array(values, shape=(len(chosen), self.n_terms))

    def document_frequencies(self) -> Ints:
        """Return the number of rows that contain each term (V,)."""
        bounds = self.starts[:: self.blocks].astype(np.int64)
        return bounds[1:] - bounds[:-1]

    def _frequencies(self, places: Ints | slice, n: int) -> NDArray[np.int32]:
        if not len(self.frequencies):
            return np.ones(n, np.int32)
        return self.frequencies[places].astype(np.int32)

    def _absolute(
        self,
        rows: NDArray[np.uint16],
        lengths: Ints,
        blocks: NDArray[np.int32],
    ) -> NDArray[np.int32]:
        """Convert row numbers within ``blocks`` to row numbers in the segment. ``lengths`` contains
        the number of rows for each block."""
        if lengths.min(initial=0) < 0 or lengths.sum() != len(rows):
            raise ValueError(
                "the postings are damaged: a list does not end where it should; rebuild the index",
            )
        absolute = np.repeat(np.tile(blocks * BLOCK, len(lengths) // len(blocks)), lengths)
        absolute += rows
        if absolute.max(initial=-1) >= self.n:
            raise ValueError(
                f"the postings are damaged: row {absolute.max()} of {self.n}; rebuild the index",
            )
        return absolute
