"""The budgets of an index under a dictionary: the cheapest that find a promised share of the exact
nearest items.

They are chosen when everything is loaded, on queries like real ones: captions of the index where it
holds pictures too, else sentences that an encoder at hand encodes, else pictures moved away from
where pictures lie. Items themselves find each other far more easily than sentences find them; they
are taken where only sentences are held.

Items of another kind that are added later lie farther from the centroids than those that the
dictionary was learned from. Then it drifts: the budgets are chosen again, and learning it again is
advised.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from boc import plugins
from boc.codecs import Code, SurrogateCodec
from boc.codecs.dictionary import nearest_cosines
from boc.errors import BocError, note
from boc.manage.learn import held_out
from boc.manage.load import BATCH, VectorSource
from boc.manage.stored import StoredItems
from boc.manifest import with_query_z
from boc.plan import usual_way
from boc.plugins import Encoder, Engine
from boc.search.searcher import Searcher
from boc.types import Embeddings, Modality, SearchRequest
from boc.vectors import unit_rows

RECALL = 0.98
HITS = 10  # hits that recall counts

BUDGETS = (8, 12, 16, 24, 32, 40, 48, 64, 80, 96, 112, 128, 160, 192, 256, 384, 512)
"""Terms of a query that are tried."""
DEEPEST = 3000
"""Candidates of a query at most."""
EVERY = 1001
"""Candidates of a hit, for all items that share a term: more than a server re-ranks otherwise."""
EASIER = 1.5
"""Captions of an index miss so many times fewer pictures than other sentences, which their encoder
never saw."""
SHORT = 0.02
"""Recall given away where not even the most reach the promise: the last of it takes most of the
time."""
LATER = 0.1
"""Share of items added later from which a drift counts."""

LEARNED = ("learned", "near", "far")
"""Entries of the manifest: items when a dictionary was learned, mean distances to centroids of all
and held out."""
DRIFT = (
    "holds items unlike those that its dictionary was learned from, so searches take longer or "
    "find less; learn it "
    "again, which needs no encoder"
)


def promise(
    recall: float | None,
    code: object,
    rm: float | None,
    codec: SurrogateCodec,
) -> dict[str, Any]:
    """Return the entry of a manifest whose budgets are to be chosen; an empty one if some were
    given by hand."""
    if recall is not None and not 0 < recall < 1:
        raise BocError(f"recall must lie between 0 and 1, got {recall:g}; 0.98 is the default")
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
    """Choose the budgets of a loaded index that promises a recall, and put them into its manifest.

    ``source`` gives the vectors of its items; ``encoder`` makes queries of sentences if no captions
    are there.
    """
    backend = plugins.backend(at)
    index = backend.open(name)
    counts = index.manifest.items
    promised = index.manifest.recall["target"]
    find = _target(index)
    searcher = Searcher(index)
    budgets = {}
    learned = {key: index.manifest.recall[key] for key in LEARNED if key in index.manifest.recall}
    if not learned:
        apart, _ = _take(source, find, held_out(counts[find]))
        near = distance(searcher.codec, find, _sample(index, find))
        far = distance(searcher.codec, find, apart.vectors)
        learned = {"learned": counts[find], "near": near, "far": far}
    chosen = {"target": promised, "items": sum(counts.values()), **learned}
    if _uses_budgets(index):
        # A server that scores terms answers more slowly.
        most = 80 if 0 < index.costs.unscored < math.inf else 250
        sample = _sample_queries(index, source, find, encoder, most)
        aim = 1 - (1 - promised) / EASIER if sample.kind == "captions" else promised
        query_z, rm, figures = _Tuner(searcher, find, sample).choose(aim)
        budgets = {"rm": rm, "codec": with_query_z(index.manifest.codec, query_z)}
        chosen |= {**figures, "queries": len(sample.queries), "source": sample.kind}
    with backend.edit(name) as editor:
        editor.commit(index.manifest.source, recall=chosen, **budgets)


def renew_budgets(name: str, at: str) -> None:
    """Choose the budgets of an edited index again if it has grown by half or drifted since they
    were chosen, or if searches use budgets from now on.

    BocWarning for a drift.
    """
    stored = StoredItems(plugins.backend(at), name)
    recall = stored.manifest.recall
    items = sum(stored.manifest.items.values())
    if not recall:
        return
    drifted = has_drifted(stored.index)
    if drifted:
        note(f"{name} {DRIFT}", f"<boc copy {name} --code dictionary --replace>")
    many_later = items >= (1 + LATER) * recall.get("items", 0)
    needed = "measured" not in recall and _uses_budgets(stored.index)
    if has_grown(recall, items) or needed or (drifted and many_later):
        choose_budgets(name, at, stored)


def has_grown(recall: dict[str, Any], items: int) -> bool:
    """Return whether budgets were promised, and chosen for an index that has grown by half since,
    or not at all."""
    return bool(recall) and items >= 1.5 * recall.get("items", 0)


def has_drifted(index: Engine) -> bool:
    """Return whether the items of an index lie farther from the centroids than when its dictionary
    was learned.

    An index that is compared as a whole has no need of them.
    """
    recall = index.manifest.recall
    find = _target(index)
    count = index.manifest.items[find]
    share = 1 - recall.get("learned", count) / max(1, count)  # of items that came later
    if share < LATER or not _uses_budgets(index):
        return False
    codec = SurrogateCodec.restore(index.manifest.codec, index.arrays())
    later = (distance(codec, find, _sample(index, find)) - (1 - share) * recall["near"]) / share
    return bool(later > 1.2 * recall["far"])


def _uses_budgets(index: Engine) -> bool:
    """Return whether searches find candidates by terms, and do not compare all items."""
    return usual_way(index) != "all"


def distance(codec: SurrogateCodec, modality: Modality, rows: NDArray[np.float32]) -> float:
    """Return the mean distance, 1 - cosine, of rows (n, d) to their nearest centroids; 0 without
    rows."""
    code = codec.query_code(modality)
    assert code is not None
    return round(1 - float(nearest_cosines(code, rows).mean()), 4) if len(rows) else 0.0


def _sample(index: Engine, modality: Modality) -> NDArray[np.float32]:
    return index.vectors(index.sample(1000, modality)).astype(np.float32)


def _target(index: Engine) -> Modality:
    return "image" if index.manifest.items["image"] else "text"


class _Sample(NamedTuple):
    """Queries of some ``kind``, the ids of the items that they are, and their true items: the ids
    of the exact nearest."""

    kind: str
    queries: Embeddings
    own: Sequence[str]
    truth: list[list[str]]

    def ranks(self, order: NDArray[np.object_]) -> NDArray[np.int64]:
        """Return ranks of the true items in ``order``, (queries, hits); those of missing ones are
        beyond all."""
        others = (row[row != mine] for row, mine in zip(order, self.own, strict=True))
        places = [{key: place for place, key in enumerate(row)} for row in others]
        pairs = zip(places, self.truth, strict=True)
        return np.array([[place.get(key, 1 << 40) for key in row] for place, row in pairs])


def _sample_queries(
    index: Engine,
    source: VectorSource,
    find: Modality,
    encoder: Callable[[], Encoder] | None,
    most: int,
) -> _Sample:
    counts = index.manifest.items
    captions = held_out(counts["text"])[:: -(-250 // most)]
    own = [""] * most
    if find == "text":
        kind = "items"
        queries, own = _take(source, find, _spread(most, counts[find]))
    elif len(captions) >= 20:
        kind = "captions"
        queries, own = _take(source, "text", captions)
    elif encoder is not None:
        kind = "sentences"
        lines = files("boc").joinpath("sentences.txt").read_text("utf-8").splitlines()
        queries = encoder().encode_texts(lines[:most])
    else:
        kind = "moved pictures"
        pictures = _take(source, find, _spread(3 * most, counts[find]))[0].vectors
        n = len(pictures) // 3
        first, second, third = pictures[: 3 * n].reshape(3, n, -1)
        # So moved, a picture is as far from all others as a sentence is.
        queries = Embeddings("text", unit_rows(first + 0.8 * (second - third)))
    own = own[: len(queries)]
    return _Sample(kind, queries, own, _nearest(source, find, queries.vectors, own))


def _spread(size: int, count: int) -> NDArray[np.int64]:
    """Return ``size`` numbers below ``count``, or all, at equal distances."""
    size = min(size, count)
    return np.arange(size) * count // max(1, size)


def _take(
    source: VectorSource,
    modality: Modality,
    chosen: NDArray[np.int64],
) -> tuple[Embeddings, list[str]]:
    """Return the vectors and ids of the items of these numbers."""
    seen = 0
    ids: list[str] = []
    vectors = [np.empty((0, source.header.dim), np.float32)]
    for count, _, read in source.lazy_batches(modality, BATCH, sets=False):
        wanted = (chosen[(chosen >= seen) & (chosen < seen + count)] - seen).tolist()
        seen += count
        if wanted:
            batch = read()
            ids += [batch.items[i].id for i in wanted]
            vectors.append(batch.embeddings.vectors[wanted])
    return Embeddings(modality, np.concatenate(vectors)), ids


def _nearest(
    source: VectorSource,
    find: Modality,
    queries: NDArray[np.float32],
    own: Sequence[str],
) -> list[list[str]]:
    """Return the ids of the exact nearest items of each query, but for itself."""
    best = np.full((len(queries), HITS + 1), -np.inf, np.float32)
    ids = np.full(best.shape, "", object)
    for _, _, read in source.lazy_batches(find, BATCH, sets=False):
        batch = read()
        scores = np.concatenate([best, queries @ batch.embeddings.vectors.T], axis=1)
        rows = np.argpartition(-scores, HITS, axis=1)[:, : HITS + 1]
        fresh = np.array([item.id for item in batch.items], object)
        old = np.take_along_axis(ids, np.minimum(rows, HITS), axis=1)
        ids = np.where(rows <= HITS, old, fresh[np.maximum(rows - HITS - 1, 0)])
        best = np.take_along_axis(scores, rows, axis=1)
    order = np.argsort(-best, axis=1, kind="stable")
    ranked = np.take_along_axis(ids, order, axis=1).tolist()
    return [
        [key for key in row if key != mine][:HITS] for row, mine in zip(ranked, own, strict=True)
    ]


class _Tuner:
    """Chooses how many terms a query has, and how many candidates. Sets the budgets of the codec of
    ``searcher``."""

    def __init__(self, searcher: Searcher, find: Modality, sample: _Sample) -> None:
        index = searcher.index
        n_terms = searcher.codec.n_terms
        self.searcher = searcher
        self.find = find
        self.sample = sample
        self.budgets = [each for each in BUDGETS if each < n_terms] or [1]
        self.depth = min(DEEPEST, index.manifest.items[find])
        self.most = self.budgets[-1], self.depth
        self.ranks = lru_cache(None)(self.rank_truth)
        # Costs in postings. A vector is a random access, postings are sequential. Compact codes are
        # read before vectors, and each term adds some.
        self.term_cost = index.manifest.postings / n_terms + 3 * index.costs.compact
        self.vector_cost = 10 - 9 * index.costs.compact

    def choose(self, target: float) -> tuple[int, float, dict[str, float]]:
        """Return terms, candidates per hit, and recall: the cheapest whose interval is above
        ``target``, or near to it."""
        if math.isinf(self.searcher.index.costs.unscored):
            return self.choose_terms(target)
        aim = target
        rounds = 6
        if self.cheapest(target) == self.most:
            aim = float((self.ranks(self.budgets[-1]) < self.depth).mean()) - SHORT
            rounds = 1
        tried = []
        # Compact codes lose some of the candidates, so that each round may miss fewer.
        for _ in range(rounds):
            query_z, candidates = self.cheapest(min(aim, 0.9995))
            rm = math.ceil(candidates / HITS)
            figures = self.measure(query_z, rm)
            tried.append((query_z, float(rm), figures))
            if figures["low"] >= target:
                break
            if (query_z, candidates) == self.most:
                enough = figures["measured"] - SHORT
                return next(each for each in tried if each[2]["measured"] >= enough)
            aim = 1 - (1 - aim) * (1 - target) / (1 - figures["low"])
        return tried[-1]

    def choose_terms(self, target: float) -> tuple[int, float, dict[str, float]]:
        """Return the fewest terms whose searches hold ``target``, or come near to what the most
        hold, where all items that share a term are compared; else as ``choose``."""
        # Moved pictures miss more items than sentences do.
        bound = "measured" if self.sample.kind == "moved pictures" else "low"
        measure = lru_cache(None)(lambda query_z: self.measure(query_z, EVERY))
        most = measure(self.budgets[-1])
        wanted = min(target, most[bound])
        if wanted < target:
            wanted = most["measured"] - SHORT
            bound = "measured"
        least = bisect_left(self.budgets, wanted, key=lambda query_z: measure(query_z)[bound])
        query_z = self.budgets[min(least, len(self.budgets) - 1)]
        return query_z, DEEPEST / HITS, measure(query_z)

    def cheapest(self, aim: float) -> tuple[int, int]:
        """Return the terms and candidates of least cost that have a share ``aim`` of the true
        items; the most of both if none have it."""
        best = self.most
        least = math.inf
        for query_z in self.budgets:
            cost = query_z * self.term_cost
            if cost + self.vector_cost * HITS >= least:
                break
            rank = int(np.quantile(self.ranks(query_z), aim, method="inverted_cdf"))
            candidates = max(HITS, 1 + rank)
            cost += self.vector_cost * candidates
            if candidates <= self.depth and cost < least:
                best = query_z, candidates
                least = cost
        return best

    def rank_truth(self, query_z: int) -> NDArray[np.int64]:
        """Return the ranks of the true items by so many terms."""
        terms = self.set_terms(query_z).encode_queries(self.sample.queries)
        order, _ = self.searcher.index.rank(SearchRequest(terms, self.depth, self.find))
        return self.sample.ranks(order)

    def set_terms(self, query_z: int) -> SurrogateCodec:
        codec = self.searcher.codec
        return codec.set_budgets(codec.steps[-1].get_params()["z"], query_z)

    def measure(self, query_z: int, rm: int) -> dict[str, float]:
        """Return the recall of searches with these budgets: its mean over queries, with a 95 %
        confidence interval (normal approximation)."""
        self.set_terms(query_z)
        queries = self.sample.queries
        k = HITS + (queries.modality == self.find)  # a query that is an item finds itself, too
        rm_of_k = max(1.0, rm * HITS / k)
        hits, _ = self.searcher.rank_vectors(queries, k=k, rm=rm_of_k, find=self.find)
        recalls = (self.sample.ranks(hits) < HITS).mean(axis=1)
        mean = float(recalls.mean())
        half = 1.0
        if len(recalls) > 1:
            half = 1.96 * float(recalls.std(ddof=1)) / math.sqrt(len(recalls))
        bounds = {"measured": mean, "low": max(0.0, mean - half), "high": min(1.0, mean + half)}
        return {name: round(value, 4) for name, value in bounds.items()}
