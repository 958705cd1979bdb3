"""The search kernel against slow loops, over parts of many small blocks, sound and damaged.

BOC_CALLS sets how many random calls are made (default 100), and BOC_DAMAGED how many with damaged
arrays (default as many).
"""

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.random import Generator, default_rng
from numpy.typing import NDArray

from boc.plan import Plan
from boc.rerank.compact import CompactCode, CompactRows
from boc.rerank.storage import SCALE, restore_rows
from indexing.embedded import kernel
from tests.boc.rerank.test_compact import estimates

NATIVE: Any = kernel._search
pytestmark = pytest.mark.skipif(NATIVE is None, reason="indexing.embedded._search is not built")

CALLS = int(os.environ.get("BOC_CALLS", "100"))
DAMAGED = int(os.environ.get("BOC_DAMAGED", CALLS))
SIZES = (0, 1, 7, 63, 64, 65, 128, 200, 1000)  # rows of a part
BLOCKS = (64, 128, 65536)
WIDTHS = (0, 1, 5, 16, 19)  # components of vectors
TERMS = 6
MOST = 2**32  # scores from here on are not answered
VALUED = ("starts", "rows", "frequencies", "mask", "compact")  # any value has a right answer

Ranked = list[tuple[float, str, int, int]]
"""Minus the score, the id, part and row of candidates."""


class UnknownError(Exception):
    """A list that holds a row twice, whose score may be any."""


@dataclass
class Part:
    """The ``arrays`` of a part by their names, in the order of ``_search.parts``, and the ids of
    its rows."""

    ids: list[str]
    block: int
    arrays: dict[str, Any]

    @property
    def given(self) -> tuple[Any, ...]:
        """As if no list was checked before."""
        return tuple((self.arrays | {"peaks": np.zeros(TERMS, np.uint32)}).values())

    @property
    def lengths(self) -> list[int]:
        """The rows of each block."""
        n = len(self.ids)
        return [min(self.block, n - first) for first in range(0, max(1, n), self.block)]

    @property
    def shown(self) -> NDArray[np.bool_]:
        mask = self.arrays["mask"]
        return np.ones(len(self.ids), np.bool_) if mask is None else mask != 0

    def scores(self, terms: list[int], weights: list[int]) -> NDArray[np.int64]:
        """The scores (n,) of all rows. ValueError for lists that lead out of the part,
        OverflowError if a score may be ``MOST``."""
        frequencies = self.arrays["frequencies"]
        if frequencies.itemsize == 4:
            frequencies = frequencies.view(np.uint32)
        blocks = len(self.lengths)
        scores = np.zeros((blocks, self.block), np.int64)
        bound = 0
        for term, weight in zip(terms, weights, strict=True):
            if not 0 <= term < TERMS or weight < 0:
                raise ValueError
            ends = self.arrays["starts"][term * blocks : (term + 1) * blocks + 1].tolist()
            if ends != sorted(ends) or ends[-1] > len(self.arrays["rows"]):
                raise ValueError
            most = 0
            for b, size in enumerate(self.lengths):
                span = slice(ends[b], ends[b + 1])
                rows = self.arrays["rows"][span]
                if (rows >= size).any():
                    raise ValueError
                if len(set(rows.tolist())) < len(rows):
                    raise UnknownError
                each = (frequencies[span] if len(frequencies) else rows * 0 + 1).astype(np.int64)
                scores[b, rows] += weight * each
                most = max(most, int(each.max(initial=0)))
            bound += weight * most
        if bound >= MOST:
            raise OverflowError
        return scores.ravel()[: len(self.ids)] * self.shown


@dataclass
class Case:
    """Parts, and the queries that are asked of them; ``code`` made compact codes, if any."""

    parts: list[Part]
    plan: Plan
    k: int
    lists: dict[str, Any]
    vectors: NDArray[np.float32] | None
    code: CompactCode | None

    def native(self) -> Any:
        """The hits (id, score) of each query; None if a score may be ``MOST``."""
        parts = NATIVE.parts(
            tuple((part.given, len(part.ids)) for part in self.parts),
            0 if self.vectors is None else self.vectors.shape[1],
            None if self.code is None else self.code.signs,
            self.parts[0].block,
        )
        lists = tuple(self.lists.values())
        *out, read, _ = NATIVE.best(parts, self.plan, self.k, self.vectors, lists)
        if read < 0:
            return None
        ranked = kernel.TopRows(self.k, *out)
        return [
            [
                (self.parts[part].ids[row], score)
                for part, row, score in zip(*ranked.query(i), strict=True)
            ]
            for i in range(len(ranked.lengths()))
        ]

    def slow(self) -> Any:
        """The same by loops over all rows."""
        try:
            return [self._hits(i) for i in range(len(self.lists["offsets"]) - 1)]
        except OverflowError:
            return None

    def _hits(self, i: int) -> list[tuple[str, float]]:
        offsets, terms, weights = self.lists.values()
        span = slice(offsets[i], offsets[i + 1])
        everything = []
        found = []
        for number, part in enumerate(self.parts):
            for row in np.flatnonzero(part.shown).tolist():
                everything.append((0, part.ids[row], number, row))
            if self.plan.way != "all":
                scores = part.scores(terms[span].tolist(), weights[span].tolist())
                for row in np.flatnonzero(scores).tolist():
                    found.append((-float(scores[row]), part.ids[row], number, row))
        depth = self.plan.depth
        few = len(found) < min(depth, len(everything)) and self.plan.are_few(
            len(found),
            len(terms[span]),
        )
        found = sorted(found)[:depth]
        if self.vectors is not None:
            if self.plan.way == "all" or (few and self.code is None):
                found = everything
            elif few:
                found = self._estimated(everything, i)[:depth]
            elif self.code is not None and len(found) > self.plan.size:
                found = self._estimated(found, i)[: self.plan.size]
            found = self._compared(found, i)
        return [(key, -score) for score, key, *_ in found[: self.k]]

    def _estimated(self, found: Ranked, i: int) -> Ranked:
        of = []
        for part in self.parts:
            stored = CompactRows(part.arrays["compact"], part.arrays["compact_scales"])
            of.append(estimates(self.code, self.vectors[i], stored))  # type: ignore
        return sorted((-float(of[number][row]), key, number, row) for _, key, number, row in found)

    def _compared(self, found: Ranked, i: int) -> Ranked:
        query = self.vectors[i].astype(np.float64)  # type: ignore[index]
        ranked = []
        for _, key, number, row in found:
            stored = restore_rows(self.parts[number].arrays["vectors"][row : row + 1])
            ranked.append((-float(stored[0].astype(np.float64) @ query), key, number, row))
        return sorted(ranked)


def make_case(rng: Generator) -> Case:
    """Parts of several blocks, in some of which a list is empty and in others full; products of the
    vectors are exact."""
    block = int(rng.choice(BLOCKS))
    dim = int(rng.choice(WIDTHS))
    sizes = rng.choice(SIZES, rng.integers(1, 4)).tolist()
    keys = rng.permutation(sum(sizes)).tolist()
    code = None
    if dim and rng.random() < 0.5:
        code = CompactCode(np.zeros((2, dim), np.float32))
    dtype = str(rng.choice(["float16", "float32", "uint8"]))
    parts = []
    for size in sizes:
        ids = sorted(f"{keys.pop():x}{'é' * (size % 3)}" for _ in range(size))
        parts.append(
            make_part(
                rng,
                block,
                ids,
                dim,
                dtype,
                code,
            ),
        )
    depth = int(
        rng.choice(
            [
                1,
                2,
                10,
                50,
                300,
            ],
        ),
    )
    plan = Plan("terms", depth, int(rng.integers(1, depth + 1)))
    if dim:
        plan = plan._replace(
            way=str(rng.choice(["terms", "terms", "all"])),
            least=int(rng.choice([0, 10, 500])),
            share=float(rng.choice([0, 0.5, 60])),
        )
    n = int(rng.integers(0, 4))
    asked = [np.flatnonzero(rng.random(TERMS) < 0.5) for _ in range(n)]
    terms = np.concatenate([np.zeros(0, np.int32), *asked]).astype(np.int32)
    return Case(
        parts,
        plan,
        int(rng.integers(1, depth + 1)),
        {
            "offsets": np.cumsum([0, *map(len, asked)]),
            "terms": terms,
            "weights": rng.integers(0, rng.choice([2, 50, 3000]), len(terms)).astype(np.int32),
        },
        (rng.integers(-3, 4, (n, dim)) / 4).astype(np.float32) if dim else None,
        code,
    )


def make_part(
    rng: Generator,
    block: int,
    ids: list[str],
    dim: int,
    dtype: str,
    code: CompactCode | None,
) -> Part:
    n = len(ids)
    part = Part(ids, block, {})
    shares = rng.choice([0, 0.02, 0.2, 1], (TERMS, len(part.lengths)))
    # Blocks of few postings fill the buffer of keys before those of many.
    shares[:, : rng.choice([0, rng.integers(len(part.lengths))])] = 0.03
    lists = [
        np.flatnonzero(rng.random(size) < share)
        for of in shares
        for share, size in zip(of, part.lengths, strict=True)
    ]
    starts = np.cumsum([0, *map(len, lists)]).astype(np.uint32)
    kind, largest = [(np.uint8, 9), (np.uint8, 255), (np.uint16, 60_000), (np.int32, 2**30)][
        rng.integers(4)
    ]
    whole = rng.integers(-2, 3, (n, dim)).astype(np.int8)
    vectors = whole.astype(np.float32) / 4
    if dtype == "uint8":
        scale = np.full((n, 1), 0.25, np.float32).view(np.uint8).reshape(n, SCALE)
        vectors = np.hstack([whole.view(np.uint8), scale])
    else:
        vectors = vectors.astype(dtype)
    encoded = [key.encode() for key in ids]
    part.arrays = {
        "starts": starts,
        "rows": np.concatenate([[0], *lists])[1:].astype(np.uint16),
        "frequencies": rng.integers(
            1,
            largest,
            starts[-1] * rng.integers(2),
            dtype=kind,
        ),
        "peaks": None,
        "mask": (rng.random(n) < rng.choice([0.02, 0.8])).astype(np.uint8),
        "ids": np.frombuffer(b"".join(encoded), np.uint8),
        "offsets": np.cumsum([0, *map(len, encoded)]),
        "vectors": vectors if dim else None,
        "compact": None,
        "compact_scales": None,
    }
    if rng.random() < 0.5:
        part.arrays["mask"] = None
    if code is not None:
        compact = code.encode(vectors, np.zeros(n, np.uint8))
        part.arrays |= {"compact": compact.codes, "compact_scales": compact.scales}
    return part


@settings(max_examples=CALLS)
@given(seed=st.integers(0, 2**32))
def test_hits_are_those_of_loops_over_all_rows(seed: int):
    case = make_case(default_rng(seed))
    assert case.native() == case.slow()


@settings(max_examples=DAMAGED)
@given(seed=st.integers(0, 2**32))
def test_damaged_arrays_are_refused_or_answered_as_they_are(seed: int):
    """Whatever they say, no hit lies outside the parts, and the next call is not disturbed."""
    rng = default_rng(seed)
    case = make_case(rng)
    sound = case.native()
    arrays = case.lists if rng.random() < 0.2 else case.parts[rng.integers(len(case.parts))].arrays
    name = str(rng.choice([key for key, array in arrays.items() if array is not None]))
    before = arrays[name]
    valued = name in (*VALUED, "terms", "weights")
    arrays[name] = damaged = before.copy()
    if rng.random() < 0.2:
        valued = False
        arrays[name] = [before[:-1], before[None], np.repeat(before, 2, 0), before.astype("f8")][
            rng.integers(4)
        ]
    elif before.size:
        change = rng.integers(
            0,
            256,
            before.itemsize,
            np.uint8,
        ).tobytes()
        values = [*np.frombuffer(change, before.dtype), 0, 1, 65, *before.flat[:1]]
        damaged.flat[rng.integers(before.size)] = values[rng.integers(len(values))]
    try:
        right = case.slow() if valued else UnknownError
    except (ValueError, UnknownError) as error:
        right = type(error)
    try:
        assert case.native() == right or right is UnknownError
    except ValueError:
        assert right in (ValueError, UnknownError)
    arrays[name] = before
    assert case.native() == sound
