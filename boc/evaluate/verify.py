"""Whether an index holds what its manifest says, and scores as its code says."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path

import numpy as np
from scipy import sparse

from boc.codecs import SurrogateCodec
from boc.errors import BocError, EncoderError
from boc.inputs.features import FeatureFiles, embeddings
from boc.plugins import Index
from boc.types import MODALITIES, Embeddings, Hit, Item, Modality, Ragged, TermMatrix

PAIRS = 1000
PER_QUERY = 50  # documents that a query is paired with
ALL_HITS = 10_000  # hits asked for where there are fewer items
SOME_HITS = 1000  # and where there are not
QUERY_TERMS = 128  # kept of a query, the heaviest: every engine takes so many
LIGHT = 15  # the largest frequency of a query that is made of a document's: scores must not grow out of the exact
BATCH = 1000  # items looked up at a time
ROUNDED = 2  # terms of an item that may differ by 1 from what another batch, or another processor, computes

Encode = Callable[[Embeddings], TermMatrix]


@dataclass(frozen=True)
class Mismatch:
    """A pair whose score is ``found``, 0 where the item is no hit, but ought to be ``expected``. ``query`` and ``item``
    are ids: the code of an item is asked for another."""

    query: str
    item: str
    found: float
    expected: int


@dataclass(frozen=True)
class Verification:
    """What was compared and what was wrong.

    ``against`` says where the frequencies of the integer dot product come from: the codec over the stored "vectors" or
    over a file of "features", the stored "terms", or "nothing". ``rounded`` are ids of items whose stored frequencies
    are a rounding away from the codec's; their scores were held against the stored ones. ``counts`` are (found, as the
    manifest says) of items by modality and of postings. ``repeated`` are ids that occur more than once, ``damaged`` the
    files whose bytes are not those that were written.
    """

    pairs: int
    queries: int
    against: str
    mismatches: list[Mismatch]
    rounded: list[str]
    counts: dict[str, tuple[int, int]]
    repeated: list[str]
    damaged: list[str]

    @property
    def right(self) -> bool:
        """Whether nothing was wrong."""
        wrong = self.damaged or self.mismatches or self.repeated
        return not wrong and all(found == told for found, told in self.counts.values())


def verify(index: Index, *, pairs: int = PAIRS, seed: int = 0, files: Sequence[Path | str] = ()) -> Verification:
    """Compare the scores of about ``pairs`` random pairs with integer dot products, and count what is there.

    The codes of random items are asked for, over all modalities; each query is paired with hits of all ranks and with
    other items, hits or not. Frequencies are computed by the index's codec from its vectors, or from feature files:
    those that it was made of. Without a file they are those that the index holds, so that only its scores are checked,
    if the codec reads concept sets, or the vectors are stored rounded. Where files are damaged nothing is compared.

    BocError if the files do not hold an item.
    """
    told = {**index.manifest.items, "postings": index.manifest.postings}
    damaged = index.damaged()
    if damaged:
        return Verification(
            0, 0, "nothing", [], [], {name: (count, count) for name, count in told.items()}, [], damaged
        )
    codec = SurrogateCodec.restore(index.manifest.codec, index.arrays())
    chance = random.Random(seed)
    counts, sample, repeated = _census(index, chance, pairs)
    with ExitStack() as stack:
        source = _source(codec, index, files, stack)
        k = ALL_HITS if sum(counts.values()) < ALL_HITS else SOME_HITS
        asked = _ask(index, source, sample, pairs, k, chance)
        mismatches, rounded = _compare(index, source, asked)
    found = {**counts, "postings": int(index.document_frequencies().sum())}
    return Verification(
        sum(len(one.items) for one in asked),
        len(asked),
        source.name,
        mismatches,
        rounded,
        {name: (count, told[name]) for name, count in found.items()},
        repeated,
        damaged,
    )


@dataclass(frozen=True)
class _Asked:
    """A query: the id of the item whose ``code`` (1, V) it is, its at most ``k`` hits, the ``items`` to compare."""

    id: str
    code: TermMatrix
    k: int
    hits: Sequence[Hit]
    items: Sequence[Item]

    @cached_property
    def scores(self) -> dict[str, float]:
        """By id of the hits."""
        return {hit.item.id: hit.score for hit in self.hits}

    def agrees(self, item: str, expected: int) -> bool:
        """Whether an item has this score; one that is no hit has none, or comes behind the last."""
        if item in self.scores:
            return self.scores[item] == expected
        behind = len(self.hits) == self.k and (-expected, item) > (-self.hits[-1].score, self.hits[-1].item.id)
        return expected == 0 or behind


def _ask(
    index: Index, source: _Source, sample: Sequence[Item], pairs: int, k: int, chance: random.Random
) -> list[_Asked]:
    """Queries of some of the sample, each with items to pair it with: half of them hits, if there are as many."""
    if not sample:
        return []
    each = min(PER_QUERY, len(sample))
    queries = chance.sample(sample, min(len(sample), math.ceil(pairs / each)))
    codes = _heaviest(source.queries(queries), QUERY_TERMS)
    asked = []
    for i, query in enumerate(queries):
        hits = index.search(codes[[i]], k)[0]
        found = [hit.item for hit in chance.sample(hits, min(len(hits), each // 2))]
        taken = {item.id for item in found}
        others = (item for item in chance.sample(sample, len(sample)) if item.id not in taken)
        asked.append(_Asked(query.id, codes[[i]], k, hits, [*found, *islice(others, each - len(found))]))
    return asked


def _compare(index: Index, source: _Source, asked: Sequence[_Asked]) -> tuple[list[Mismatch], list[str]]:
    """The pairs that disagree with ``source``; ids of items a rounding away from it, which are held against what is
    stored."""
    items = list({item.id: item for one in asked for item in one.items}.values())
    first = _mismatches(asked, items, source.documents)
    suspects = {wrong.item for wrong in first}
    rounded = _rounded(index, source, [item for item in items if item.id in suspects])
    again = _mismatches(asked, rounded, lambda near: index.terms([item.id for item in near]))
    ids = {item.id: None for item in rounded}
    return [wrong for wrong in first if wrong.item not in ids] + again, list(ids)


def _mismatches(
    asked: Sequence[_Asked], items: Sequence[Item], documents: Callable[[Sequence[Item]], TermMatrix]
) -> list[Mismatch]:
    """The pairs of queries with ``items`` whose scores are not the dot products with their ``documents``."""
    if not items:
        return []
    place = {item.id: row for row, item in enumerate(items)}
    queries = sparse.vstack([one.code for one in asked], format="csr").astype(np.int64)
    expected = (queries @ documents(items).astype(np.int64).T).toarray()
    pairs = [
        (one, item.id, int(expected[i, place[item.id]]))
        for i, one in enumerate(asked)
        for item in one.items
        if item.id in place
    ]
    return [
        Mismatch(one.id, item, one.scores.get(item, 0.0), wanted)
        for one, item, wanted in pairs
        if not one.agrees(item, wanted)
    ]


class _Source:
    """Where the frequencies come from that scores are held against."""

    name: str

    def __init__(self, codec: SurrogateCodec) -> None:
        self._codec = codec

    def embeddings(self, items: Sequence[Item], modality: Modality) -> Embeddings:
        """Of some items of one modality, in their order."""
        raise NotImplementedError

    def documents(self, items: Sequence[Item]) -> TermMatrix:
        """One row an item, as it is indexed."""
        return self._rows(items, self._codec.encode_documents)

    def queries(self, items: Sequence[Item]) -> TermMatrix:
        """One row an item, as it is asked for."""
        return self._rows(items, self._codec.encode_queries)

    def _rows(self, items: Sequence[Item], encode: Encode) -> TermMatrix:
        parts, rows = [sparse.csr_array((0, self._codec.n_terms), dtype=np.int32)], []
        for modality in MODALITIES:
            of = [row for row, item in enumerate(items) if item.modality == modality]
            for some in (of[start : start + BATCH] for start in range(0, len(of), BATCH)):
                # A batch of two, though one is wanted: a product with one row is rounded otherwise.
                asked = [items[row] for row in some] + [items[row] for row in some if len(some) == 1]
                parts.append(encode(self.embeddings(asked, modality))[: len(some)])
                rows += some
        return sparse.vstack(parts, format="csr")[np.argsort(rows)]


class _Vectors(_Source):
    name = "vectors"

    def __init__(self, codec: SurrogateCodec, index: Index) -> None:
        super().__init__(codec)
        self._index = index

    def embeddings(self, items: Sequence[Item], modality: Modality) -> Embeddings:
        try:
            vectors = self._index.vectors([item.id for item in items])
        except KeyError as error:
            raise BocError(
                f"item {error.args[0]!r} went away meanwhile; verify when nobody changes the index"
            ) from None
        return Embeddings(modality, vectors.astype(np.float32))


class _Files(_Source):
    name = "features"

    def __init__(self, codec: SurrogateCodec, files: FeatureFiles, index: Index) -> None:
        super().__init__(codec)
        found, wanted = files.header.identity, index.manifest.identity
        if found.digest != wanted.digest:
            raise EncoderError(f"{files.path}: made by {found.spec}, the index by {wanted.spec}; use the same encoder")
        self._path = files.path
        self._place = {
            (modality, key): (file, row)
            for file in files.files
            for modality in MODALITIES
            for row, key in enumerate(file.ids(modality))
        }

    def embeddings(self, items: Sequence[Item], modality: Modality) -> Embeddings:
        found = []
        for item in items:
            if (modality, item.id) not in self._place:
                raise BocError(
                    f"{self._path}: no item {item.id!r}, which the index holds; give all the files that it was made of"
                )
            file, row = self._place[modality, item.id]
            found.append(embeddings(file.rows(modality, row, row + 1, sets=self._codec.reads_concepts), modality))
        sets = [one.concepts for one in found if one.concepts is not None]
        words = [one.words[0] for one in found if one.words is not None]
        return Embeddings(
            modality,
            np.concatenate([one.vectors for one in found]),
            Ragged.concatenate(sets) if sets else None,
            words=words or None,
        )


class _Terms(_Source):
    name = "terms"

    def __init__(self, codec: SurrogateCodec, index: Index) -> None:
        super().__init__(codec)
        self._index = index

    def documents(self, items: Sequence[Item]) -> TermMatrix:
        return self._index.terms([item.id for item in items])

    def queries(self, items: Sequence[Item]) -> TermMatrix:
        found = self.documents(items)
        found.data = np.minimum(found.data, LIGHT)
        return found


def _source(codec: SurrogateCodec, index: Index, files: Sequence[Path | str], stack: ExitStack) -> _Source:
    if files:
        return _Files(codec, stack.enter_context(FeatureFiles(files)), index)
    if codec.reads_concepts or not index.exact_vectors:
        return _Terms(codec, index)
    return _Vectors(codec, index)


def _census(index: Index, chance: random.Random, size: int) -> tuple[dict[str, int], list[Item], list[str]]:
    """Number of items by modality, a random sample of them, and ids that stand there twice."""
    counts, sample, repeated = Counter[str](), list[Item](), list[str]()
    before = None
    for n, item in enumerate(index.items()):
        counts[item.modality] += 1
        if item.id == before:
            repeated.append(item.id)
            continue
        before = item.id
        if len(sample) < size:
            sample.append(item)
        elif (place := chance.randrange(n + 1)) < size:
            sample[place] = item
    return {modality: counts[modality] for modality in MODALITIES}, sample, repeated


def _rounded(index: Index, source: _Source, items: Sequence[Item]) -> list[Item]:
    """Those whose stored frequencies are a rounding away from those of ``source``, but not the same."""
    if source.name == "terms" or not items:
        return []
    apart = abs(source.documents(items) - index.terms([item.id for item in items]))
    apart.eliminate_zeros()
    near = (apart.max(axis=1).toarray().ravel() == 1) & (np.diff(apart.indptr) <= ROUNDED)
    return [item for item, is_near in zip(items, near.tolist(), strict=True) if is_near]


def _heaviest(queries: TermMatrix, n: int) -> TermMatrix:
    """Each row with its n largest frequencies only, ties to the lower term."""
    rows = np.repeat(np.arange(queries.shape[0]), np.diff(queries.indptr))
    order = np.lexsort((queries.indices, -queries.data, rows))
    rank = np.arange(len(order)) - np.repeat(queries.indptr[:-1], np.diff(queries.indptr))
    kept = np.sort(order[rank < n])
    return sparse.csr_array((queries.data[kept], (rows[kept], queries.indices[kept])), shape=queries.shape)
