"""Verification: checks the contents of an index against its manifest, and its scores against its
code."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path

import numpy as np
from scipy import sparse

from boc.codecs import SurrogateCodec
from boc.codecs.frequencies import heaviest
from boc.errors import BocError
from boc.inputs.features import FeatureFiles
from boc.manage.load import check_same_encoder
from boc.manage.shared_terms import term_faults
from boc.plugins import Engine
from boc.rerank.storage import round_trip
from boc.types import MODALITIES, Embeddings, Hit, Item, Modality, Ragged, SearchRequest, TermMatrix

PAIRS = 1000
PER_QUERY = 50  # items paired with each query
ALL_HITS = 10_000  # hits per query, if the index has fewer items
SOME_HITS = 1000  # hits per query, if the index has more items
QUERY_TERMS = 128  # largest terms kept of a query; every engine accepts so many
LIGHT = 15  # largest frequency of a query made from a document, so that scores stay exact
BATCH = 1000  # items looked up at a time
ROUNDED = 2  # terms per item that may differ by 1 from those of another batch or processor

Encode = Callable[[Embeddings], TermMatrix]
Read = Callable[[Sequence[Item], Modality], Embeddings]


@dataclass(frozen=True)
class Mismatch:
    """A pair whose score is ``found`` (0 if the item is no hit) instead of ``expected``. ``query``
    is the id of the item whose code is the query, ``item`` that of the scored item."""

    query: str
    item: str
    found: float
    expected: int


@dataclass(frozen=True)
class Verification:
    """The result of a verification.

    ``against`` is the origin of the frequencies of the integer dot products: the codec over the
    stored "vectors" or over a file of "features", the stored "terms", or "nothing". ``rounded`` are
    ids of items whose stored frequencies differ from those of the codec by rounding; their scores
    were compared with the stored frequencies. ``counts`` are (counted, in the manifest) for items
    by modality and for postings. ``repeated`` are ids that occur more than once, ``damaged`` the
    files whose bytes have changed, ``faults`` what is wrong with the terms of its items.
    """

    pairs: int
    queries: int
    against: str
    mismatches: list[Mismatch]
    rounded: list[str]
    counts: dict[str, tuple[int, int]]
    repeated: list[str]
    damaged: list[str]
    faults: list[str] = field(default_factory=list)

    @property
    def right(self) -> bool:
        """True if no error was found: items may lack terms, but not all."""
        wrong = (
            self.damaged
            or self.mismatches
            or self.repeated
            or (self.faults and not self.counts["postings"][0])
        )
        return not wrong and all(count == expected for count, expected in self.counts.values())


def verify(
    index: Engine,
    *,
    pairs: int = PAIRS,
    seed: int = 0,
    files: Sequence[Path | str] = (),
) -> Verification:
    """Compare the scores of about ``pairs`` random pairs with integer dot products, and count the
    items.

    The codes of random items are the queries, over all modalities. Each query is paired with hits
    of all ranks and with other items, hits or not. Frequencies are computed by the codec of the
    index from its vectors, or from ``files``, the feature files that it was made from. Without
    files, if the codec reads concept sets or the vectors are stored rounded, the stored frequencies
    are used, so only the scores are checked. If files are damaged, nothing is compared.

    BocError if ``files`` lack an item.
    """
    expected = {**index.manifest.items, "postings": index.manifest.postings}
    damaged = index.damaged_files()
    if damaged:
        return Verification(
            0,
            0,
            "nothing",
            [],
            [],
            {name: (count, count) for name, count in expected.items()},
            [],
            damaged,
        )
    codec = SurrogateCodec.restore(index.manifest.codec, index.arrays())
    chance = random.Random(seed)
    counts, sample, repeated = _census(index, chance, pairs)
    with ExitStack() as stack:
        source = _source(codec, index, files, stack)
        k = ALL_HITS if sum(counts.values()) < ALL_HITS else SOME_HITS
        trials = _ask(index, source, sample, pairs, k, chance)
        mismatches, rounded = _compare(index, source, trials)
    actual = {**counts, "postings": int(index.document_frequencies().sum())}
    return Verification(
        sum(len(one.items) for one in trials),
        len(trials),
        source.name,
        mismatches,
        rounded,
        {name: (count, expected[name]) for name, count in actual.items()},
        repeated,
        damaged,
        term_faults(index),
    )


@dataclass(frozen=True)
class _Trial:
    """A query: the id of the item with its ``code`` (1, V), its at most ``k`` hits, and the
    ``items`` to compare."""

    id: str
    code: TermMatrix
    k: int
    hits: Sequence[Hit]
    items: Sequence[Item]

    @cached_property
    def scores(self) -> dict[str, float]:
        return {hit.item.id: hit.score for hit in self.hits}

    def agrees(self, item: str, expected: int) -> bool:
        """Return whether an item has this score; an item that is no hit has score 0, or ranks after
        the last hit."""
        if item in self.scores:
            return self.scores[item] == expected
        behind = len(self.hits) == self.k and (-expected, item) > (
            -self.hits[-1].score,
            self.hits[-1].item.id,
        )
        return expected == 0 or behind


def _ask(
    index: Engine,
    source: _FrequencySource,
    sample: Sequence[Item],
    pairs: int,
    k: int,
    chance: random.Random,
) -> list[_Trial]:
    """Yield queries from the sample, each with items to compare, half of them hits if there are
    enough."""
    if not sample:
        return []
    each = min(PER_QUERY, len(sample))
    queries = chance.sample(sample, min(len(sample), math.ceil(pairs / each)))
    codes = heaviest(source.queries(queries), QUERY_TERMS)
    trials = []
    for i, query in enumerate(queries):
        hits = index.search(SearchRequest(codes[[i]], k))[0]
        chosen = [hit.item for hit in chance.sample(hits, min(len(hits), each // 2))]
        taken = {item.id for item in chosen}
        others = (item for item in chance.sample(sample, len(sample)) if item.id not in taken)
        trials.append(
            _Trial(query.id, codes[[i]], k, hits, [*chosen, *islice(others, each - len(chosen))]),
        )
    return trials


def _compare(
    index: Engine,
    source: _FrequencySource,
    trials: Sequence[_Trial],
) -> tuple[list[Mismatch], list[str]]:
    """Return the pairs that disagree with ``source``, and the ids of items that differ by rounding.

    These are compared with the stored frequencies.
    """
    items = list({item.id: item for one in trials for item in one.items}.values())
    first = _mismatches(trials, items, source.documents)
    suspects = {wrong.item for wrong in first}
    rounded = _differ_by_rounding(index, source, [item for item in items if item.id in suspects])
    again = _mismatches(trials, rounded, lambda near: index.terms([item.id for item in near]))
    ids = {item.id: None for item in rounded}
    return [wrong for wrong in first if wrong.item not in ids] + again, list(ids)


def _mismatches(
    trials: Sequence[_Trial],
    items: Sequence[Item],
    documents: Callable[[Sequence[Item]], TermMatrix],
) -> list[Mismatch]:
    """Return the pairs of queries and ``items`` whose scores are not the dot products with
    ``documents``."""
    if not items:
        return []
    place = {item.id: row for row, item in enumerate(items)}
    queries = sparse.vstack([one.code for one in trials], format="csr").astype(np.int64)
    expected = (queries @ documents(items).astype(np.int64).T).toarray()
    pairs = [
        (one, item.id, int(expected[i, place[item.id]]))
        for i, one in enumerate(trials)
        for item in one.items
        if item.id in place
    ]
    return [
        Mismatch(one.id, item, one.scores.get(item, 0.0), score)
        for one, item, score in pairs
        if not one.agrees(item, score)
    ]


class _FrequencySource:
    """The origin of the frequencies that scores are compared with: the codec over ``embeddings``,
    or stored terms."""

    def __init__(
        self,
        name: str,
        codec: SurrogateCodec,
        index: Engine,
        embeddings: Read | None = None,
    ) -> None:
        self.name = name
        self._codec = codec
        self._index = index
        self._embeddings = embeddings

    def documents(self, items: Sequence[Item]) -> TermMatrix:
        if self._embeddings is None:
            return self._index.terms([item.id for item in items])
        return self._rows(items, self._embeddings, self._codec.encode_documents)

    def queries(self, items: Sequence[Item]) -> TermMatrix:
        if self._embeddings is None:
            codes = self.documents(items)
            codes.data = np.minimum(codes.data, LIGHT)
            return codes
        return self._rows(items, self._embeddings, self._codec.encode_queries)

    def _rows(self, items: Sequence[Item], read: Read, encode: Encode) -> TermMatrix:
        parts = [sparse.csr_array((0, self._codec.n_terms), dtype=np.int32)]
        rows = []
        for modality in MODALITIES:
            of = [row for row, item in enumerate(items) if item.modality == modality]
            for some in (of[start : start + BATCH] for start in range(0, len(of), BATCH)):
                # A batch of two for one item, since a product with a single row is rounded
                # differently.
                batch = [items[row] for row in some] + [
                    items[row] for row in some if len(some) == 1
                ]
                parts.append(encode(read(batch, modality))[: len(some)])
                rows += some
        return sparse.vstack(parts, format="csr")[np.argsort(rows)]


def _source(
    codec: SurrogateCodec,
    index: Engine,
    files: Sequence[Path | str],
    stack: ExitStack,
) -> _FrequencySource:
    if files:
        return _FrequencySource(
            "features",
            codec,
            index,
            _reader(codec, stack.enter_context(FeatureFiles(files)), index),
        )
    if codec.reads_concepts or not index.exact_vectors:
        return _FrequencySource("terms", codec, index)

    def read(items: Sequence[Item], modality: Modality) -> Embeddings:
        try:
            vectors = index.vectors([item.id for item in items])
        except KeyError as error:
            raise BocError(
                f"item {error.args[0]!r} went away; verify when nobody changes the index",
            ) from None
        return Embeddings(modality, vectors.astype(np.float32))

    return _FrequencySource("vectors", codec, index, read)


def _reader(codec: SurrogateCodec, files: FeatureFiles, index: Engine) -> Read:
    """Return a function that reads items from the feature files of an index."""
    check_same_encoder(files, index.manifest)
    places = {
        (modality, key): (file, row)
        for file in files.files
        for modality in MODALITIES
        for row, key in enumerate(file.ids(modality))
    }

    def read(items: Sequence[Item], modality: Modality) -> Embeddings:
        parts = []
        for item in items:
            if (modality, item.id) not in places:
                raise BocError(
                    f"{files.path}: no item {item.id!r}, which the index holds; give all the "
                    "files that it was made of",
                )
            file, row = places[modality, item.id]
            parts.append(file.batch(modality, row, row + 1, sets=codec.reads_concepts).embeddings)
        sets = [one.concepts for one in parts if one.concepts is not None]
        words = [one.words[0] for one in parts if one.words is not None]
        vectors = round_trip(
            np.concatenate([one.vectors for one in parts]),
            index.manifest.vector_dtype,
        )
        return Embeddings(
            modality,
            vectors.astype(np.float32, copy=False),
            Ragged.concatenate(sets) if sets else None,
            words=words or None,
        )

    return read


def _census(
    index: Engine,
    chance: random.Random,
    size: int,
) -> tuple[dict[str, int], list[Item], list[str]]:
    """Count the items by modality, and return a random sample of them and the repeated ids."""
    counts = Counter[str]()
    sample = list[Item]()
    repeated = list[str]()
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


def _differ_by_rounding(
    index: Engine,
    source: _FrequencySource,
    items: Sequence[Item],
) -> list[Item]:
    """Return the items whose stored frequencies differ from those of ``source`` by rounding
    only."""
    if source.name == "terms" or not items:
        return []
    apart = abs(source.documents(items) - index.terms([item.id for item in items]))
    apart.eliminate_zeros()
    near = (apart.max(axis=1).toarray().ravel() == 1) & (np.diff(apart.indptr) <= ROUNDED)
    return [item for item, is_near in zip(items, near.tolist(), strict=True) if is_near]
