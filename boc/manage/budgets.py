"""Choose the budgets of a dictionary index: the cheapest budgets that find the target share of the
exact nearest items.

Budgets are chosen after the load, with realistic queries. Captions in the index search for its
pictures. Pictures search for its captions, which have separate budgets. Without captions, the
queries are sentences if an encoder is available. Otherwise they are items, each moved by a fraction
of the difference between two other items. An item is easier to find by another item than by a
sentence, because the near copies of the other item come first. Therefore moved items search for the
nearest items twice, with and without near copies.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from functools import lru_cache, partial
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from boc import plugins
from boc.codecs import Code, SurrogateCodec
from boc.errors import BocError
from boc.manage.learn import held_out
from boc.manage.load import BATCH, VectorSource, usual_cosines
from boc.manage.stored import StoredItems
from boc.manifest import with_query_z
from boc.plan import candidates, least_items, postings_read, quick_items, usual_way
from boc.plugins import Encoder, Engine
from boc.search.searcher import Searcher
from boc.types import Embeddings, Modality, SearchRequest
from boc.vectors import Floats, Ints, unit_rows

RECALL = 0.98
HITS = 10  # number of hits over which recall is measured

ASKED = ("captions", "pictures")
"""Kinds of queries that are items of the index and search for items of the other modality."""
FEWEST = 20
"""Smallest number of items that serve as queries."""

BUDGETS = (8, 12, 16, 24, 32, 40, 48, 64, 80, 96, 112, 128, 160, 192, 256, 384, 512)
"""Numbers of terms per query to try."""
DEEP = 4000
"""Largest number of candidates per query."""
EVERY = 10_010
"""Number of candidates that represents all items that share a term; a server otherwise re-ranks
fewer."""
MOVED = 0.65
"""Share of the difference between two items by which a third item is moved."""
COPY = 0.9
"""Smallest cosine between an item and a near copy of it."""
COPIES = 50
"""Largest number of near copies of an item that a query passes over to find other items."""
LAST = 0.01
"""Largest part of the recall to give up, if it costs more than ``START`` postings and more than 0.4
times as much as the rest of the recall."""
START = 3200
"""Cost of a search beside its terms and candidates, in postings."""
EASIER = 1.5
"""Factor by which captions of an index miss fewer pictures than sentences that its encoder never
saw."""


def promise(
    recall: float | None,
    code: object,
    rm: float | None,
    codec: SurrogateCodec,
) -> dict[str, Any]:
    """Return the manifest entry of an index whose budgets are still to be chosen; return an empty
    entry if budgets were set by hand."""
    if recall is not None and not 0 < recall < 1:
        raise BocError(f"recall must be between 0 and 1, got {recall:g}; the default is 0.98")
    by_hand = rm is not None or not isinstance(code, Code) or code.query_z is not None
    if by_hand or codec.query_budget is None:
        if recall is not None:
            raise BocError(
                "recall chooses the budgets of a dictionary; leave out rm and query_z, or leave "
                "out recall",
            )
        return {}
    return {"target": recall or RECALL}


def choose_budgets(
    name: str,
    at: str,
    source: VectorSource,
    encoder: Callable[[], Encoder] | None = None,
) -> None:
    """Choose the budgets of a loaded index with a target recall, and store them in its manifest.

    ``source`` provides the vectors of its items; ``encoder`` encodes sentences as queries if the
    index has no captions.
    """
    backend = plugins.backend(at)
    index = backend.open(name)
    counts = index.manifest.items
    promised = index.manifest.recall["target"]
    find: Modality = "image" if counts["image"] else "text"
    searcher = Searcher(index)
    budgets = {}
    chosen = {"target": promised, "items": sum(counts.values())}
    # A server that scores terms is slower, so it answers fewer queries.
    most = 80 if 0 < index.costs.unscored < math.inf else 400

    def choose(find: Modality) -> tuple[int, float, dict[str, float], _Sample]:
        sample = _sample_queries(index, source, find, encoder, most)
        aim = 1 - (1 - promised) / EASIER if sample.kind in ASKED else promised
        # Compact codes hardly tell near copies apart.
        if sample.copies > HITS:
            chosen["read"] = HITS * sample.copies
            index.costs = index.costs._replace(read=HITS * sample.copies)
        return *_Tuner(searcher, find, sample).choose(aim), sample

    asking = len(held_out(counts["image"]))
    if find == "image" and counts["text"] > least_items(index) and asking >= FEWEST:
        query_z, rm, figures, _ = choose("text")
        chosen["texts"] = {"rm": rm, "query_z": query_z, **figures}
    if counts[find] > least_items(index):
        query_z, rm, figures, sample = choose(find)
        budgets = {"rm": rm, "codec": with_query_z(index.manifest.codec, query_z)}
        known = index.statistics(find)
        quick = quick_items(known, index.costs, query_z, candidates(HITS, rm, planned=True))
        # An exhaustive comparison can meet a recall target that term search cannot. It is chosen if
        # it does not take much longer. A server plans without this entry.
        if index.costs.row and figures["high"] < promised and known.passing < 4 * quick:
            chosen["whole"] = True
        chosen |= {**figures, "queries": len(sample.queries), "source": sample.kind}
    with backend.edit(name) as editor:
        editor.commit(index.manifest.source, recall=chosen, **budgets)


def renew_measurements(name: str, at: str) -> None:
    """Measure the usual cosines of an edited index again, and choose its budgets again, if it has
    grown by a quarter since the last measurement. Budgets are also chosen when searches begin to
    use them."""
    backend = plugins.backend(at)
    stored = StoredItems(backend, name)
    manifest = stored.manifest
    if manifest.has_grown(manifest.usual):
        with backend.edit(name) as editor:
            editor.commit(manifest.source, usual=usual_cosines(stored))
    recall = manifest.recall
    if not recall:
        return
    needed = "measured" not in recall and usual_way(stored.index, metric="dot") != "all"
    if needed or manifest.has_grown(recall):
        choose_budgets(name, at, stored)


class _Sample(NamedTuple):
    """Queries of one ``kind``, with one or two truths: the ids of the exact nearest items of each
    query. The harder truth comes first; ``skipped`` hits may precede its items. Half of the items
    have at least as many near ``copies``, themselves included."""

    kind: str
    queries: Embeddings
    truths: list[list[list[str]]]
    skipped: int = 0
    copies: int = 1

    def ranks(self, order: NDArray[np.object_]) -> Ints:
        """Return the ranks of the true items in ``order`` (queries, hits), as an array (truths,
        queries, HITS).

        A true item that is not in ``order`` ranks after all hits. If fewer items exist, the
        remaining entries rank before all hits.
        """
        ranks = np.full((len(self.truths), len(order), HITS), -1)
        for query, hits in enumerate(order):
            places = {key: place for place, key in enumerate(hits)}
            for number, truth in enumerate(self.truths):
                mine = [places.get(key, 1 << 40) for key in truth[query]]
                ranks[number, query, : len(mine)] = mine
        return ranks


def _sample_queries(
    index: Engine,
    source: VectorSource,
    find: Modality,
    encoder: Callable[[], Encoder] | None,
    most: int,
) -> _Sample:
    asking: Modality = "text" if find == "image" else "image"
    chosen = held_out(index.manifest.items[asking])[:: -(-250 // most)]
    if len(chosen) >= FEWEST:
        queries = np.concatenate(list(source.sample(asking, chosen)))
        return _sample_of(ASKED[asking == "image"], source, find, queries)
    if find == "image" and encoder is not None:
        lines = files("boc").joinpath("sentences.txt").read_text("utf-8").splitlines()
        queries = encoder().encode_texts(lines[:most]).vectors
        return _sample_of("sentences", source, find, queries)
    rows = unit_rows(index.vectors(index.sample(3 * most, find)).astype(np.float32))
    n = len(rows) // 3
    items = rows[0 : 3 * n : 3]
    # Neighbouring items of an index may be alike.
    difference = rows[1 : 3 * n : 3] - np.roll(rows[2 : 3 * n : 3], n // 2, axis=0)
    queries = unit_rows(items + MOVED * difference)
    return _sample_of("moved items", source, find, queries, items)


class _Nearest:
    """Collects the ids of the best items of each query, from several batches of items."""

    def __init__(self, queries: int) -> None:
        self._scores = np.full((queries, HITS), -np.inf, np.float32)
        self._ids = np.full((queries, HITS), "", object)

    def add(self, scores: Floats, ids: NDArray[np.object_]) -> None:
        """Add a batch of items; ``scores`` has the shape (queries, items)."""
        scores = np.concatenate([self._scores, scores], axis=1)
        rows = np.argpartition(-scores, HITS - 1, axis=1)[:, :HITS]
        old = np.take_along_axis(self._ids, np.minimum(rows, HITS - 1), axis=1)
        self._ids = np.where(rows < HITS, old, ids[np.maximum(rows - HITS, 0)])
        self._scores = np.take_along_axis(scores, rows, axis=1)

    def truth(self) -> list[list[str]]:
        """Return the ids of the nearest items for each query."""
        return [
            ids[exist].tolist()
            for ids, exist in zip(self._ids, self._scores > -np.inf, strict=True)
        ]


def _sample_of(
    kind: str,
    source: VectorSource,
    find: Modality,
    queries: Floats,
    moved: Floats | None = None,
) -> _Sample:
    """Return queries (q, d) with their truths. There is one truth, or two if the queries are the
    items ``moved`` (q, d) after their move; then near copies count in the second truth only."""
    near = _Nearest(len(queries))
    apart = _Nearest(len(queries))
    copies = np.zeros(len(queries), np.int64)
    for _, _, read in source.lazy_batches(find, BATCH, sets=False):
        batch = read()
        ids = np.array([item.id for item in batch.items], object)
        scores = queries @ batch.embeddings.vectors.T
        near.add(scores, ids)
        if moved is not None:
            alike = moved @ unit_rows(batch.embeddings.vectors).T > COPY
            copies += alike.sum(axis=1)
            scores[alike] = -np.inf
            apart.add(scores, ids)
    embeddings = Embeddings("image" if kind == ASKED[1] else "text", queries)
    if moved is None:
        return _Sample(kind, embeddings, [near.truth()])
    # If more copies exist, they hide all items farther away, also from users.
    few = copies <= COPIES
    truth = [row if each else [] for row, each in zip(apart.truth(), few, strict=True)]
    skipped = int(copies[few].max(initial=0))
    return _Sample(kind, embeddings, [truth, near.truth()], skipped, int(np.median(copies)))


class _Tuner:
    """Chooses how many terms and how many candidates a query has. It sets the budgets of the codec
    of ``searcher``."""

    def __init__(self, searcher: Searcher, find: Modality, sample: _Sample) -> None:
        index = searcher.index
        n_terms = searcher.codec.n_terms
        self.searcher = searcher
        self.find = find
        self.sample = sample
        self.budgets = [each for each in BUDGETS if each < n_terms] or [1]
        self.depth = min(DEEP, index.manifest.items[find])
        self.ranks = lru_cache(None)(self.rank_truth)
        # For moved items, the harder truth is harder to reach than for sentences.
        self.bound = "low" if len(sample.truths) == 1 else "measured"
        list_length = index.manifest.postings / n_terms
        self.cost = partial(postings_read, list_length=list_length, compact=index.costs.compact)

    def choose(self, target: float) -> tuple[int, float, dict[str, float]]:
        """Return the number of terms, the candidates per hit and the recall of the cheapest budgets
        that reach ``target``, or come close to it if reaching it takes much longer."""
        if math.isinf(self.searcher.index.costs.unscored):
            return self.choose_terms(target)
        chosen = self.cheapest(target - LAST) or (self.budgets[-1], self.depth)
        cost = self.cost(*chosen)
        most = max(cost + START, 1.4 * cost)
        chosen = self.cheapest(target, most) or chosen
        aim = target
        while True:
            figures = self.measure(*chosen)
            reached = figures[self.bound]
            if reached >= target:
                break
            # Compact codes lose some candidates, so the next try aims at fewer misses.
            aim = 1 - (1 - aim) * (1 - target) / (1 - reached)
            better = self.cheapest(min(aim, 0.9995), most)
            if better is None or better == chosen:
                break
            chosen = better
        return chosen[0], float(math.ceil(chosen[1] / HITS)), figures

    def choose_terms(self, target: float) -> tuple[int, float, dict[str, float]]:
        """Choose the fewest terms if all items that share a term are compared: searches reach
        ``target``, or come close to the recall with the most terms. Returns the same values as
        ``choose``."""
        measure = lru_cache(None)(lambda query_z: self.measure(query_z, EVERY))
        wanted = min(target, measure(self.budgets[-1])[self.bound] - LAST)
        least = bisect_left(self.budgets, wanted, key=lambda each: measure(each)[self.bound])
        query_z = self.budgets[min(least, len(self.budgets) - 1)]
        return query_z, 300.0, measure(query_z)

    def cheapest(self, aim: float, most: float = math.inf) -> tuple[int, int] | None:
        """Return the numbers of terms and candidates with the lowest cost, below ``most``, at which
        the candidates include a share ``aim`` of the true items. Returns None if no budgets reach
        this share."""
        best = None
        for query_z in self.budgets:
            if self.cost(query_z, HITS) >= most:
                break
            ranks = self.ranks(query_z)[0]
            candidates = max(HITS, 1 + int(np.quantile(ranks, aim, method="inverted_cdf")))
            cost = self.cost(query_z, candidates)
            if candidates <= self.depth and cost < most:
                best = query_z, candidates
                most = cost
        return best

    def rank_truth(self, query_z: int) -> Ints:
        """Return the ranks of the true items in a search with ``query_z`` terms."""
        terms = self.set_terms(query_z).encode_queries(self.sample.queries)
        order, _ = self.searcher.index.rank(SearchRequest(terms, self.depth, self.find))
        return self.sample.ranks(order)

    def set_terms(self, query_z: int) -> SurrogateCodec:
        codec = self.searcher.codec
        return codec.set_budgets(codec.steps[-1].get_params()["z"], query_z)

    def measure(self, query_z: int, candidates: int) -> dict[str, float]:
        """Return the recall of searches with these budgets: its mean over queries for the harder
        truth (``measured``), and the bounds ``low`` and ``high`` of the 95 % confidence intervals
        (normal approximation) for all truths."""
        self.set_terms(query_z)
        recalls = np.empty((len(self.sample.truths), len(self.sample.queries)))
        for number, k in enumerate((HITS + self.sample.skipped, HITS)[-len(recalls) :]):
            rm = max(1.0, math.ceil(candidates / HITS) * HITS / k)
            hits, _ = self.searcher.rank_vectors(self.sample.queries, k=k, rm=rm, find=self.find)
            recalls[number] = (self.sample.ranks(hits)[number] < k).mean(axis=1)
        means = recalls.mean(axis=1)
        halves = np.ones(len(means))
        if recalls.shape[1] > 1:
            halves = 1.96 * recalls.std(axis=1, ddof=1) / math.sqrt(recalls.shape[1])
        bounds = {
            "measured": means.min(),
            "low": max(0.0, (means - halves).min()),
            "high": min(1.0, (means + halves).max()),
        }
        return {name: round(float(value), 4) for name, value in bounds.items()}
