"""Verify an index by comparing its contents with the manifest and its scores with the code."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress, islice
from pathlib import Path

import numpy as np
from scipy import sparse

from boc.codecs import SurrogateCodec
from boc.codecs.frequencies import heaviest
from boc.errors import BocError
from boc.inputs.features import FeatureFiles
from boc.manage.load import check_same_encoder
from boc.plugins import Engine
from boc.rerank.storage import LARGEST, round_trip
from boc.types import MODALITIES, Embeddings, Hit, Item, Modality, Ragged, SearchRequest, TermMatrix
from boc.vectors import Ints, batches

PAIRS = 1000
PER_QUERY = 50  # items compared with each query
HITS = 1000  # hits per query
QUERY_TERMS = 128  # maximum number of terms per query, which all engines accept
LIGHT = 15  # maximum frequency in a query that is derived from a document, so that scores are exact
BATCH = 1000  # items looked up at a time
ROUNDED = 2  # number of terms per item whose frequencies may differ by 1 between processors
SHAKES = 64  # number of vectors tried that could have been rounded to a stored vector


@dataclass(frozen=True)
class Mismatch:
    """Query and item whose score ``found`` (0 if the item is not a hit) differs from ``expected``.
    ``query`` is the id of the item whose code is the query, and ``item`` is the id of the scored
    item."""

    query: str
    item: str
    found: float
    expected: int


@dataclass(frozen=True)
class Verification:
    """Result of a verification.

    ``against`` is the origin of the frequencies in the integer dot products: the codec applied to
    the stored "vectors" or to "features" in files, the stored "terms", or "nothing". ``rounded``
    lists the ids of items whose stored frequencies differ from the code by rounding errors; their
    scores were compared with the stored frequencies. ``counts`` maps modalities and postings to
    pairs (counted, in the manifest). ``repeated`` lists ids that occur more than once, and
    ``damaged`` lists files whose content has changed.
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
        """Return whether the verification found no errors. Items without terms are allowed, unless
        all items have no terms."""
        wrong = self.damaged or self.mismatches or self.repeated or not self.counts["postings"][0]
        return not wrong and all(count == expected for count, expected in self.counts.values())


def verify(
    index: Engine,
    *,
    pairs: int = PAIRS,
    seed: int = 0,
    files: Sequence[Path | str] = (),
) -> Verification:
    """Compare the scores of about ``pairs`` random pairs of queries and items with integer dot
    products, and count items.

    The queries are the codes of random items of all modalities. Each query is compared with hits at
    all ranks and with other random items. The codec of the index computes the frequencies from the
    stored vectors or, if given, from the feature files ``files``. Without ``files``, if the codec
    reads concept sets or the vectors are stored rounded, the stored frequencies are used, and only
    scores are checked. If files are damaged, scores are not compared.

    Raises BocError if an item is missing from ``files``.
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
        opened = stack.enter_context(FeatureFiles(files)) if files else None
        source = _FrequencySource(index, codec, opened)
        trials = _ask(index, source, sample, pairs, chance)
        mismatches, rounded = _compare(source, trials)
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
    )


@dataclass(frozen=True)
class _Trial:
    """Query derived from an item: the ``id`` and ``code`` (1, V) of the item, the ``hits`` of the
    code, and the ``items`` to compare."""

    id: str
    code: TermMatrix
    hits: Sequence[Hit]
    items: Sequence[Item]

    @cached_property
    def scores(self) -> dict[str, float]:
        return {hit.item.id: hit.score for hit in self.hits}

    def agrees(self, item: str, expected: int) -> bool:
        """Return whether an item has the ``expected`` score. For an item that is not a hit, this
        score must be 0 or rank the item after the last hit."""
        if item in self.scores:
            return self.scores[item] == expected
        behind = len(self.hits) == HITS and (-expected, item) > (
            -self.hits[-1].score,
            self.hits[-1].item.id,
        )
        return expected == 0 or behind


def _ask(
    index: Engine,
    source: _FrequencySource,
    sample: Sequence[Item],
    pairs: int,
    chance: random.Random,
) -> list[_Trial]:
    """Run queries derived from the sample, and choose items to compare with each query. If
    possible, half of the items are hits."""
    if not sample:
        return []
    each = min(PER_QUERY, len(sample))
    queries = chance.sample(sample, min(len(sample), math.ceil(pairs / each)))
    codes = heaviest(source.queries(queries), QUERY_TERMS)
    trials = []
    for i, query in enumerate(queries):
        hits = index.search(SearchRequest(codes[[i]], HITS))[0]
        chosen = [hit.item for hit in chance.sample(hits, min(len(hits), each // 2))]
        taken = {item.id for item in chosen}
        others = (item for item in chance.sample(sample, len(sample)) if item.id not in taken)
        compared = [*chosen, *islice(others, each - len(chosen))]
        trials.append(_Trial(query.id, codes[[i]], hits, compared))
    return trials


def _compare(
    source: _FrequencySource,
    trials: Sequence[_Trial],
) -> tuple[list[Mismatch], list[str]]:
    """Return the pairs whose scores disagree with ``source``, and the ids of items that differ only
    by rounding.

    For items that differ only by rounding, the scores are compared with the stored frequencies.
    These frequencies agree with the code of the vector except for ``ROUNDED`` terms, or with the
    code of another vector that is rounded to the same stored vector. If two centroids are almost
    equally near, rounding determines which centroid becomes a term.
    """
    items = list({item.id: item for one in trials for item in one.items}.values())
    first = _mismatches(trials, items, source.documents)
    ids = {wrong.item for wrong in first}
    suspects = [item for item in items if item.id in ids]
    rounded = []
    if suspects and source.name != "terms":
        apart = _apart(source.documents(suspects), source.stored(suspects))
        rounded = list(compress(suspects, apart == 1))
        others = list(compress(suspects, apart > 1))
        for seed in range(SHAKES):
            if others:
                apart = _apart(source.shaken(others, seed), source.stored(others))
                rounded += compress(others, apart <= 1)
                others = list(compress(others, apart > 1))
    again = _mismatches(trials, rounded, source.stored)
    names = [item.id for item in rounded]
    return [wrong for wrong in first if wrong.item not in names] + again, names


def _apart(codes: TermMatrix, stored: TermMatrix) -> Ints:
    """Return the maximum difference of frequencies in each row, or at least 2 if more than
    ``ROUNDED`` frequencies differ."""
    apart = abs(codes - stored)
    apart.eliminate_zeros()
    many = np.diff(apart.indptr) > ROUNDED
    most: Ints = np.maximum(apart.max(axis=1).toarray().ravel(), 2 * many)
    return most


def _mismatches(
    trials: Sequence[_Trial],
    items: Sequence[Item],
    documents: Callable[[Sequence[Item]], TermMatrix],
) -> list[Mismatch]:
    """Return the pairs of queries and ``items`` whose scores differ from the dot products of
    queries and ``documents``."""
    if not items:
        return []
    place = {item.id: row for row, item in enumerate(items)}
    queries = sparse.vstack([one.code for one in trials], format="csr").astype(np.int64)
    expected = (queries @ documents(items).astype(np.int64).T).toarray()
    mismatches = []
    for one, scores in zip(trials, expected.tolist(), strict=True):
        for id in (item.id for item in one.items if item.id in place):
            score = scores[place[id]]
            if not one.agrees(id, score):
                mismatches.append(Mismatch(one.id, id, one.scores.get(id, 0.0), score))
    return mismatches


class _FrequencySource:
    """Origin of the expected frequencies: the codec applied to the stored vectors or to feature
    ``files``, or the stored terms."""

    def __init__(
        self,
        index: Engine,
        codec: SurrogateCodec,
        files: FeatureFiles | None,
    ) -> None:
        self.name = "vectors"
        self._index = index
        self._codec = codec
        self._files = files
        if files is not None:
            self.name = "features"
            check_same_encoder(files, index.manifest)
            self._places = {
                (modality, key): (file, row)
                for file in files.files
                for modality in MODALITIES
                for row, key in enumerate(file.ids(modality))
            }
        elif codec.reads_concepts or not index.exact_vectors:
            self.name = "terms"

    def stored(self, items: Sequence[Item]) -> TermMatrix:
        return self._index.terms([item.id for item in items])

    def documents(self, items: Sequence[Item]) -> TermMatrix:
        if self.name == "terms":
            return self.stored(items)
        return self._rows(items, self._codec.encode_documents)

    def shaken(self, items: Sequence[Item], seed: int) -> TermMatrix:
        """Return the codes of random vectors that differ from the vectors of ``items`` by at most
        one unit in the last place."""
        chance = np.random.default_rng(seed)
        dtype = self._index.manifest.vector_dtype

        def encode(read: Embeddings) -> TermMatrix:
            rows = np.abs(read.vectors)
            if dtype == "int8":
                units = np.broadcast_to(rows.max(axis=1, keepdims=True) / LARGEST, rows.shape)
            else:
                units = np.spacing(rows.astype(dtype)).astype(np.float32)
            moved = read.vectors + units * chance.uniform(-1, 1, rows.shape).astype(np.float32)
            return self._codec.encode_documents(replace(read, vectors=moved))

        return self._rows(items, encode)

    def queries(self, items: Sequence[Item]) -> TermMatrix:
        if self.name == "terms":
            codes = self.stored(items)
            codes.data = np.minimum(codes.data, LIGHT)
            return codes
        return self._rows(items, self._codec.encode_queries)

    def _rows(
        self,
        items: Sequence[Item],
        encode: Callable[[Embeddings], TermMatrix],
    ) -> TermMatrix:
        parts = [sparse.csr_array((0, self._codec.n_terms), dtype=np.int32)]
        rows = []
        for modality in MODALITIES:
            of = [row for row, item in enumerate(items) if item.modality == modality]
            for some in batches(of, BATCH):
                batch = [items[row] for row in some]
                # A single item is encoded twice, because products with a single row are rounded
                # differently.
                if len(batch) == 1:
                    batch *= 2
                parts.append(encode(self._read(batch, modality))[: len(some)])
                rows += some
        return sparse.vstack(parts, format="csr")[np.argsort(rows)]

    def _read(self, items: Sequence[Item], modality: Modality) -> Embeddings:
        if self._files is None:
            try:
                vectors = self._index.vectors([item.id for item in items])
            except KeyError as error:
                raise BocError(
                    f"item {error.args[0]!r} was deleted meanwhile; run the verification while no "
                    "program changes the index",
                ) from None
            return Embeddings(modality, vectors.astype(np.float32))
        parts = []
        for item in items:
            if (modality, item.id) not in self._places:
                raise BocError(
                    f"{self._files.path}: lacks the item {item.id!r} of the index; give all "
                    "feature files of the index",
                )
            file, row = self._places[modality, item.id]
            batch = file.batch(modality, row, row + 1, sets=self._codec.reads_concepts)
            parts.append(batch.embeddings)
        sets = [one.concepts for one in parts if one.concepts is not None]
        words = [one.words[0] for one in parts if one.words is not None]
        vectors = np.concatenate([one.vectors for one in parts])
        return Embeddings(
            modality,
            round_trip(vectors, self._index.manifest.vector_dtype).astype(np.float32, copy=False),
            Ragged.concatenate(sets) if sets else None,
            words=words or None,
        )


def _census(
    index: Engine,
    chance: random.Random,
    size: int,
) -> tuple[dict[str, int], list[Item], list[str]]:
    """Return the number of items in each modality, a random sample of items, and repeated ids."""
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
