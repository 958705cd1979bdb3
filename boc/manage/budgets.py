"""Choose the budgets of a dictionary index. These are the cheapest budgets with which searches find
the target percentage of the exact nearest items.

Budgets are chosen after the load, using realistic queries. To find pictures, the queries are
captions from the index. To find captions, which have separate budgets, the queries are pictures. If
the index has no captions, the queries are sentences if an encoder is available. Otherwise, the
queries are items, each shifted by a fraction of the difference between two other items. Items are
easier to find with other items than with sentences, because the near-duplicates of a query item
rank first. Therefore, recall for shifted items is measured twice, with and without near-duplicates.
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
HITS = 10  # number of hits at which recall is measured

ASKED = ("captions", "pictures")
"""Kinds of queries that are items of the index and are used to find items of the other modality."""
FEWEST = 20
"""Minimum number of items used as queries."""

BUDGETS = (8, 12, 16, 24, 32, 40, 48, 64, 80, 96, 112, 128, 160, 192, 256, 384, 512)
"""Numbers of terms per query to try."""
DEEP = 4000
"""Maximum number of candidates per query."""
EVERY = 10_010
"""Number of candidates that means all items that share a term with the query. For smaller values,
servers re-rank only the given number of items."""
MOVED = 0.65
"""Fraction of the difference between two items by which a third item is shifted."""
COPY = 0.9
"""Minimum cosine between an item and its near-duplicates, after subtracting the mean of the
items."""
COPIES = 50
"""Maximum number of near-duplicates of an item that are skipped to measure how well a query finds
other items."""
LAST = 0.01
"""Maximum loss in recall that is accepted if the lost recall would cost more than ``START``
postings and more than 0.4 times as much as the rest of the recall."""
START = 3200
"""Fixed cost of a search, in addition to its terms and candidates, in postings."""
EASIER = 1.5
"""Factor by which captions from the index miss fewer pictures than sentences that the encoder has
never seen."""


def promise(
    recall: float | None,
    code: object,
    rm: float | None,
    codec: SurrogateCodec,
) -> dict[str, Any]:
    """Return the manifest entry for an index whose budgets have not been chosen yet. Return an
    empty entry if the user has set the budgets."""
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
    """Choose the budgets of a loaded index that has a target recall, and store the budgets in the
    manifest.

    ``source`` provides the vectors of the items. ``encoder`` encodes sentences as queries if the
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
    # Servers that score terms are slower, so use fewer queries.
    most = 80 if 0 < index.costs.unscored < math.inf else 400

    def choose(find: Modality) -> tuple[int, float, dict[str, float], _Sample]:
        sample = _sample_queries(index, source, find, encoder, most)
        aim = 1 - (1 - promised) / EASIER if sample.kind in ASKED else promised
        # Compact codes can barely distinguish near-duplicates.
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
        # An exhaustive comparison can reach a target recall that a search by terms cannot reach.
        # Choose it if it does not take much longer. Servers do not use this entry for planning.
        if index.costs.row and figures["high"] < promised and known.passing < 4 * quick:
            chosen["whole"] = True
        chosen |= {**figures, "queries": len(sample.queries), "source": sample.kind}
    with backend.edit(name) as editor:
        editor.commit(index.manifest.source, recall=chosen, **budgets)


def renew_measurements(name: str, at: str) -> None:
    """Measure the usual cosines and choose the budgets again if an edited index has grown by a
    quarter since the last measurement. Budgets are also chosen when the index becomes large enough
    for searches to use them."""
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
    """Queries of one ``kind``, with one or two ground truths, each of which contains the ids of the
    exact nearest items for each query. The harder ground truth is listed first, and up to
    ``skipped`` other hits may rank before its items. ``copies`` is the median number of
    near-duplicates of an item, including the item itself."""

    kind: str
    queries: Embeddings
    truths: list[list[list[str]]]
    skipped: int = 0
    copies: int = 1

    def ranks(self, order: NDArray[np.object_]) -> Ints:
        """Return the ranks of the true nearest items in ``order`` (queries, hits), as an array
        (truths, queries, HITS).

        Items that are not in ``order`` rank after all hits. If fewer than HITS items exist, the
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
    # Adjacent items in an index may be similar.
    difference = rows[1 : 3 * n : 3] - np.roll(rows[2 : 3 * n : 3], n // 2, axis=0)
    queries = unit_rows(items + MOVED * difference)
    return _sample_of("moved items", source, find, queries, items)


class _Nearest:
    """Collect the ids of the best items for each query from several batches of items."""

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
    """Return queries (q, d) with their ground truths. There is one ground truth, or two if the
    queries are shifted items. ``moved`` (q, d) contains these items before the shift, and only the
    second ground truth includes near-duplicates."""
    near = _Nearest(len(queries))
    apart = _Nearest(len(queries))
    copies = np.zeros(len(queries), np.int64)
    if moved is not None:
        # In many spaces, all vectors share a direction, which makes any two items alike.
        mean = moved.mean(axis=0)
        moved = unit_rows(moved - mean)
    for _, _, read in source.lazy_batches(find, BATCH, sets=False):
        batch = read()
        ids = np.array([item.id for item in batch.items], object)
        scores = queries @ batch.embeddings.vectors.T
        near.add(scores, ids)
        if moved is not None:
            rows = unit_rows(unit_rows(batch.embeddings.vectors) - mean)
            alike = moved @ rows.T > COPY
            copies += alike.sum(axis=1)
            scores[alike] = -np.inf
            apart.add(scores, ids)
    embeddings = Embeddings("image" if kind == ASKED[1] else "text", queries)
    if moved is None:
        return _Sample(kind, embeddings, [near.truth()])
    # If there are more near-duplicates, they hide all items that are farther away, also from users.
    few = copies <= COPIES
    truth = [row if each else [] for row, each in zip(apart.truth(), few, strict=True)]
    skipped = int(copies[few].max(initial=0))
    return _Sample(kind, embeddings, [truth, near.truth()], skipped, int(np.median(copies)))


class _Tuner:
    """Choose the number of terms and candidates per query. This class changes the budgets in the
    codec of ``searcher``."""

    def __init__(self, searcher: Searcher, find: Modality, sample: _Sample) -> None:
        index = searcher.index
        n_terms = searcher.codec.n_terms
        self.searcher = searcher
        self.find = find
        self.sample = sample
        self.budgets = [each for each in BUDGETS if each < n_terms] or [1]
        self.depth = min(DEEP, index.manifest.items[find])
        self.ranks = lru_cache(None)(self.rank_truth)
        # For shifted items, the harder ground truth is harder to find than for sentences.
        self.bound = "low" if len(sample.truths) == 1 else "measured"
        list_length = index.manifest.postings / n_terms
        self.cost = partial(postings_read, list_length=list_length, compact=index.costs.compact)

    def choose(self, target: float) -> tuple[int, float, dict[str, float]]:
        """Return the number of terms, the number of candidates per hit and the recall for the
        cheapest budgets that reach ``target``, or that come close to it if reaching it takes much
        longer."""
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
            # Compact codes lose some candidates, so aim for fewer misses in the next attempt.
            aim = 1 - (1 - aim) * (1 - target) / (1 - reached)
            better = self.cheapest(min(aim, 0.9995), most)
            if better is None or better == chosen:
                break
            chosen = better
        return chosen[0], float(math.ceil(chosen[1] / HITS)), figures

    def choose_terms(self, target: float) -> tuple[int, float, dict[str, float]]:
        """Choose the minimum number of terms when all items that share a term are compared. With
        this number, searches reach ``target`` or come close to the recall for the maximum number of
        terms. Returns the same values as ``choose``."""
        measure = lru_cache(None)(lambda query_z: self.measure(query_z, EVERY))
        wanted = min(target, measure(self.budgets[-1])[self.bound] - LAST)
        least = bisect_left(self.budgets, wanted, key=lambda each: measure(each)[self.bound])
        query_z = self.budgets[min(least, len(self.budgets) - 1)]
        return query_z, 300.0, measure(query_z)

    def cheapest(self, aim: float, most: float = math.inf) -> tuple[int, int] | None:
        """Return the numbers of terms and candidates with the lowest cost, below ``most``, for
        which the candidates include a fraction ``aim`` of the true nearest items. Returns None if
        this fraction cannot be reached."""
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
        """Return the ranks of the true nearest items in searches with ``query_z`` terms."""
        terms = self.set_terms(query_z).encode_queries(self.sample.queries)
        order, _ = self.searcher.index.rank(SearchRequest(terms, self.depth, self.find))
        return self.sample.ranks(order)

    def set_terms(self, query_z: int) -> SurrogateCodec:
        codec = self.searcher.codec
        return codec.set_budgets(codec.steps[-1].get_params()["z"], query_z)

    def measure(self, query_z: int, candidates: int) -> dict[str, float]:
        """Return the recall of searches with these budgets. ``measured`` is the mean over all
        queries for the harder ground truth. ``low`` and ``high`` are the bounds of the 95%
        confidence intervals (normal approximation) over all ground truths."""
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
