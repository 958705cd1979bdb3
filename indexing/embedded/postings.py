"""Posting lists in blocks of rows, and the k best scores of a query over them.

Rows are split into B blocks of 65,536, so that a list has 16-bit rows and the scores of a block
stay in the cache while all lists of a query are added to them (term-at-a-time evaluation). The
postings of a term are contiguous, block by block. ``kernel.py`` does the search; if it was not
built, or a score may reach 2**32, numpy does the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from boc.errors import BackendError
from boc.topk import topk_positive
from boc.types import TermMatrix

from .kernel import BLOCK, Kernel

RowScores: TypeAlias = tuple[NDArray[np.int64], NDArray[Any]]
"""Rows of a segment and their scores."""

FREQUENCIES = (np.uint8, np.uint16, np.int32)


@dataclass(frozen=True, eq=False)
class Postings:
    """The term frequencies of n rows over V terms, by term.

    ``starts`` is uint32 (V * B + 1,): the list of term j in block b is ``[starts[j * B + b],
    starts[j * B + b + 1])``. ``rows`` is uint16 (P,), row - 65,536 b, ascending in a list.
    ``frequencies`` is (P,) of the smallest of uint8, uint16 and int32 that holds the largest; (0,)
    if all are 1. The arrays may be memory maps: ValueError if they are inconsistent, here or when a
    damaged list is read.
    """

    starts: NDArray[np.uint32]
    rows: NDArray[np.uint16]
    frequencies: NDArray[Any]
    n: int
    n_terms: int
    _peaks: NDArray[np.uint32] = field(
        init=False,
        repr=False,
    )  # largest frequency of each term; 0 if unknown

    def __post_init__(self) -> None:
        arrays: tuple[NDArray[Any], ...] = self.starts, self.rows, self.frequencies
        sizes = self.n_terms * self.blocks + 1, len(self.rows), len(self.frequencies)
        if (
            self.starts.dtype != np.uint32
            or self.rows.dtype != np.uint16
            or self.frequencies.dtype not in FREQUENCIES
            or any(
                a.shape != (size,) or not a.flags.c_contiguous
                for a, size in zip(arrays, sizes, strict=True)
            )
            or len(self.frequencies) not in (0, len(self.rows))
            or (self.starts[0], self.starts[-1]) != (0, len(self.rows))
        ):
            shapes = ", ".join(f"{a.dtype} {a.shape}" for a in arrays)
            raise ValueError(
                f"postings of {self.n} rows and {self.n_terms} terms do not fit each other: "
                f"{shapes}",
            )
        object.__setattr__(self, "_peaks", np.zeros(self.n_terms, np.uint32))

    @property
    def blocks(self) -> int:
        return max(1, -(-self.n // BLOCK))

    @classmethod
    def from_matrix(cls, terms: TermMatrix) -> Postings:
        """Make postings of a term matrix (n, V); BackendError if it has 2**32 values."""
        n, n_terms = terms.shape
        if terms.nnz >= 1 << 32:
            raise BackendError(
                f"{terms.nnz} postings do not go into one segment; index at most {2**32 - 1} at "
                "a time",
            )
        largest = int(terms.data.max(initial=1))
        dtype = next(t for t in FREQUENCIES if largest <= np.iinfo(t).max)
        parts = [terms[first : first + BLOCK].tocsc() for first in range(0, n, BLOCK)] or [
            terms.tocsc(),
        ]
        starts = np.zeros(n_terms * len(parts) + 1, np.uint32)
        np.cumsum(
            np.stack([np.diff(part.indptr) for part in parts], axis=1),
            out=starts[1:],
            dtype=np.uint32,
        )
        rows = np.empty(terms.nnz, np.uint16)
        frequencies = np.empty(terms.nnz if largest > 1 else 0, dtype)
        for b, part in enumerate(parts):
            moved = starts[b : -1 : len(parts)] - part.indptr[:-1]
            places = np.arange(part.nnz) + np.repeat(moved, np.diff(part.indptr))
            rows[places] = part.indices
            if largest > 1:
                frequencies[places] = part.data
        return cls(starts, rows, frequencies, n, n_terms)

    @property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        """The arrays that the kernel takes."""
        return self.starts, self.rows, self.frequencies, self._peaks

    def top(
        self,
        queries: TermMatrix,
        k: int,
        mask: NDArray[np.uint8] | None = None,
    ) -> list[RowScores]:
        """Return rows and scores of at most k largest positive scores per query, best first, ties
        to the lower row.

        The score of a row is the sum over the terms of the query, ``queries`` (q, V), of weight
        times frequency: exact up to 2**53. A row whose ``mask`` (n,) is 0 is left out.
        """
        if queries.shape[1] != self.n_terms:
            raise ValueError(f"queries have {queries.shape[1]} terms, the postings {self.n_terms}")
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        if mask is not None and (
            mask.shape != (self.n,) or mask.dtype != np.uint8 or not mask.flags.c_contiguous
        ):
            raise ValueError(f"the mask must be uint8 ({self.n},), got {mask.dtype} {mask.shape}")
        ranked = Kernel([((*self.arrays, mask, *5 * [None]), self.n)]).best(queries, k, k)
        if ranked is not None:
            _, rows, scores, counts = ranked[0]
            return [(rows[i, :count], scores[i, :count]) for i, count in enumerate(counts.tolist())]
        answers = []
        for begin, end in zip(queries.indptr[:-1], queries.indptr[1:], strict=True):
            sums = self.scores(queries.indices[begin:end], queries.data[begin:end])
            best = topk_positive(sums if mask is None else sums * mask, k)
            answers.append((best, sums[best]))
        return answers

    def scores(self, terms: NDArray[Any], weights: NDArray[Any]) -> NDArray[np.float64]:
        """Return scores (n,) of all rows for one query; integers, exact up to 2**53."""
        if not len(terms):
            return np.zeros(self.n)
        if weights.min() < 0:
            raise ValueError(f"the weights of a query must not be negative, got {weights.min()}")
        rows, lengths, spans = self._lists(np.asarray(terms, dtype=np.int64))
        products = np.repeat(weights.astype(np.float64), lengths)
        if len(self.frequencies):
            products *= np.concatenate([self.frequencies[span] for span in spans])
        return np.bincount(rows, products, self.n).astype(np.float64, copy=False)

    def lists(
        self,
        first: int,
        last: int,
    ) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32]]:
        """Return the lists of terms ``first`` to ``last`` - 1: offsets, and concatenated rows and
        frequencies."""
        bounds = self.starts[first * self.blocks : last * self.blocks + 1].astype(np.int64)
        span = slice(int(bounds[0]), int(bounds[-1]))
        rows = self._absolute(self.rows[span], np.diff(bounds))
        frequencies = (
            self.frequencies[span].astype(np.int32)
            if len(self.frequencies)
            else np.ones(len(rows), np.int32)
        )
        return bounds[:: self.blocks] - bounds[0], rows, frequencies

    def matrix(self) -> TermMatrix:
        """Return the term matrix (n, V) that ``from_matrix`` was given; reads every posting."""
        offsets, rows, frequencies = self.lists(0, self.n_terms)
        return sparse.csc_array((frequencies, rows, offsets), shape=(self.n, self.n_terms)).tocsr()

    def matrix_of(self, chosen: NDArray[np.int64]) -> TermMatrix:
        """Return the ``chosen`` rows (len(chosen), V) of the term matrix, in that order.

        Reads the blocks that contain them.
        """
        distinct, places = np.unique(chosen, return_inverse=True)
        parts = [sparse.csr_array((0, self.n_terms), dtype=np.int32)]
        parts += [
            self._of_block(b, distinct[distinct // BLOCK == b])
            for b in np.unique(distinct // BLOCK).tolist()
        ]
        return sparse.vstack(parts, format="csr")[places]

    def _of_block(self, b: int, wanted: NDArray[np.int64]) -> TermMatrix:
        """Return the rows ``wanted``, ascending and all in block b, of the term matrix."""
        begins, ends = (
            self.starts[b + i :: self.blocks][: self.n_terms].astype(np.int64) for i in (0, 1)
        )
        spans = zip(begins.tolist(), ends.tolist(), strict=True)
        rows = np.concatenate([self.rows[:0], *(self.rows[begin:end] for begin, end in spans)])
        listed = self._absolute(rows, ends - begins, b)
        at = np.flatnonzero(np.isin(listed, wanted))
        lasts = np.cumsum(
            ends - begins,
        )  # ends of the lists here; in the file, other blocks lie between them
        terms = np.searchsorted(lasts, at, side="right")
        places = at + (ends - lasts)[terms]
        data = (
            self.frequencies[places].astype(np.int32)
            if len(self.frequencies)
            else np.ones(len(at), np.int32)
        )
        values = data, (np.searchsorted(wanted, listed[at]), terms)
        return sparse.csr_array(values, shape=(len(wanted), self.n_terms))

    def lookup(self, chosen: NDArray[np.int64], among: Sequence[int]) -> TermMatrix:
        """Return frequencies (len(chosen), V) of the terms ``among`` in the ``chosen`` rows, in
        that order.

        Reads the lists of those terms only.
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

    def document_frequencies(self) -> NDArray[np.int64]:
        """Return the number of rows with each term (V,)."""
        bounds = self.starts[:: self.blocks].astype(np.int64)
        return bounds[1:] - bounds[:-1]

    def _lists(
        self,
        terms: NDArray[np.int64],
    ) -> tuple[NDArray[np.int32], NDArray[np.int64], list[slice]]:
        """Return the concatenated rows in the lists of ``terms``, the length of each list, and its
        slice."""
        bounds = self.starts[terms[:, None] * self.blocks + np.arange(self.blocks + 1)].astype(
            np.int64,
        )
        spans = [slice(begin, end) for begin, end in bounds[:, [0, -1]].tolist()]
        rows = np.concatenate([self.rows[span] for span in spans])
        return self._absolute(rows, np.diff(bounds).ravel()), bounds[:, -1] - bounds[:, 0], spans

    def _absolute(
        self,
        rows: NDArray[np.uint16],
        lengths: NDArray[np.int64],
        block: int | None = None,
    ) -> NDArray[np.int32]:
        """Return rows of the segment for rows in blocks: of lists whose blocks have ``lengths``, or
        of a ``block``."""
        if lengths.min(initial=0) < 0 or lengths.sum() != len(rows):
            raise ValueError(
                "the postings are damaged: a list does not end where it should; index again",
            )
        blocks = np.arange(self.blocks) if block is None else np.array([block])
        firsts = (blocks * BLOCK).astype(np.int32)
        absolute = np.repeat(np.tile(firsts, len(lengths) // len(firsts)), lengths)
        absolute += rows
        if absolute.max(initial=-1) >= self.n:
            raise ValueError(
                f"the postings are damaged: row {absolute.max()} of {self.n}; index again",
            )
        return absolute
