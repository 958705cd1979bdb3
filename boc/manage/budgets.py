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
from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files
from typing import Any

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
from boc.plugins import Encoder, Engine
from boc.search.searcher import Searcher
from boc.types import Embeddings, Modality, SearchRequest
from boc.vectors import unit_rows

RECALL = 0.98
HITS = 10  # hits that recall counts
COMPARED = 1 << 20  # components of all vectors, up to which both engines compare all of them
# in a folder, and on a server, which answers more slowly
QUERIES = 250
FAR_QUERIES = 80
FEWEST = 20  # captions to choose by
# captions of an index miss fewer pictures than other sentences, which their encoder never saw
EASIER = 1.5
# times the difference of two pictures by which a third is moved, to be as far from all as a
# sentence is
MOVED = 0.8
DEEPEST = 3000  # candidates of a query at most
BUDGETS = (8, 12, 16, 24, 32, 40, 48, 64, 80, 96, 112, 128, 160, 192, 256, 384, 512)
ROUNDS = 6  # the shortlist loses some; each round allows a smaller share to be missed
# recall given away where not even the most reach the promise: the last of it takes most of the time
SHORT = 0.02
GROWN = 1.5
LEARNED = ("learned", "near", "far")
"""Entries of the manifest: items when a dictionary was learned, mean distances to centroids of all
and held out."""
# growth of the distance to centroids, and share of later items, from which a drift counts
DRIFTED = 1.2
SOME = 0.1
SAMPLED = 1000  # items whose distances to centroids are measured
FETCH = (
    10  # cost of reading a vector in postings: a vector is a random access, postings are sequential
)
TERM = (
    3  # cost of a term in compact codes, which are read before vectors, beside that of its postings
)
DRIFT = (
    "holds items unlike those that its dictionary was learned from, so searches take longer or "
    "find less; learn it "
    "again, which needs no encoder"
)
SPAN = 1.96  # standard errors of a 95 % confidence interval


def _interval(values: NDArray[np.float64]) -> dict[str, float]:
    """Return a mean over queries with its 95 % confidence interval (normal approximation)."""
    mean = float(values.mean())
    n = len(values)
    half = SPAN * float(values.std(ddof=1)) / math.sqrt(n) if n > 1 else 1.0
    return {
        "measured": round(mean, 4),
        "low": round(max(0.0, mean - half), 4),
        "high": round(min(1.0, mean + half), 4),
    }


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
    target = index.manifest.recall["target"]
    find = _target(index)
    searcher = Searcher(index)
    budgets = {}
    learned = {key: index.manifest.recall[key] for key in LEARNED if key in index.manifest.recall}
    if not learned:
        apart = np.concatenate([rows for _, rows in _rows(source, find, held_out(counts[find]))])
        near, far = (distance(searcher.codec, find, rows) for rows in (_sample(index, find), apart))
        learned = {"learned": counts[find], "near": near, "far": far}
    chosen = {"target": target, "items": sum(counts.values()), **learned}
    if not _is_small(index):
        most = QUERIES if at.startswith("file:") else FAR_QUERIES
        queries, own, kind = _queries(index, source, find, encoder, most)
        truth = _nearest(source, find, queries.vectors, own)
        aim = 1 - (1 - target) / EASIER if kind == "captions" else target
        query_z, rm, figures = _cheapest(searcher, queries, truth, own, find, aim)
        budgets = {"rm": rm, "codec": with_query_z(index.manifest.codec, query_z)}
        chosen |= {**figures, "queries": len(queries), "source": kind}
    with backend.edit(name) as editor:
        editor.commit(index.manifest.source, recall=chosen, **budgets)


def renew_budgets(name: str, at: str) -> None:
    """Choose the budgets of an edited index again if it has grown by half or drifted since they
    were chosen.

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
    if has_grown(recall, items) or (drifted and items >= (1 + SOME) * recall.get("items", 0)):
        choose_budgets(name, at, stored)


def has_grown(recall: dict[str, Any], items: int) -> bool:
    """Return whether budgets were promised, and chosen for an index that has grown by half since,
    or not at all."""
    return bool(recall) and items >= GROWN * recall.get("items", 0)


def has_drifted(index: Engine) -> bool:
    """Return whether the items of an index lie farther from the centroids than when its dictionary
    was learned.

    A small index has no need of them."""
    recall = index.manifest.recall
    find = _target(index)
    count = index.manifest.items[find]
    share = 1 - recall.get("learned", count) / max(1, count)  # of items that came later
    if share < SOME or _is_small(index):
        return False
    codec = SurrogateCodec.restore(index.manifest.codec, index.arrays())
    later = (distance(codec, find, _sample(index, find)) - (1 - share) * recall["near"]) / share
    return bool(later > DRIFTED * recall["far"])


def _is_small(index: Engine) -> bool:
    return bool(index.manifest.items[_target(index)] * index.manifest.identity.dim <= COMPARED)


def distance(codec: SurrogateCodec, modality: Modality, rows: NDArray[np.float32]) -> float:
    """Return the mean distance, 1 - cosine, of rows (n, d) to their nearest centroids; 0 without
    rows."""
    code = codec.query_code(modality)
    assert code is not None
    return round(1 - float(nearest_cosines(code, rows).mean()), 4) if len(rows) else 0.0


def _sample(index: Engine, modality: Modality) -> NDArray[np.float32]:
    return index.vectors(index.sample(SAMPLED, modality)).astype(np.float32)


def _target(index: Engine) -> Modality:
    return "image" if index.manifest.items["image"] else "text"


def _queries(
    index: Engine,
    source: VectorSource,
    find: Modality,
    encoder: Callable[[], Encoder] | None,
    most: int,
) -> tuple[Embeddings, list[str], str]:
    """Return queries, the ids of the items that they are, and what they are."""
    counts = index.manifest.items
    captions = (
        held_out(counts["text"])[:: -(-QUERIES // most)]
        if find == "image"
        else np.empty(0, np.int64)
    )
    if len(captions) < FEWEST and find == "image" and encoder is not None:
        lines = files("boc").joinpath("sentences.txt").read_text("utf-8").splitlines()
        return encoder().encode_texts(lines[:most]), [""] * len(lines[:most]), "sentences"
    if len(captions) >= FEWEST:
        return *_take(source, "text", captions), "captions"
    if find == "text":
        return *_take(source, find, _spread(most, counts[find])), "items"
    pictures, _ = _take(source, find, _spread(3 * most, counts[find]))
    first, second, third = pictures.vectors[: len(pictures) // 3 * 3].reshape(
        3,
        -1,
        pictures.vectors.shape[1],
    )
    return (
        Embeddings("text", unit_rows(first + MOVED * (second - third))),
        [""] * len(first),
        "moved pictures",
    )


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
    read = list(_rows(source, modality, chosen))
    return Embeddings(modality, np.concatenate([rows for _, rows in read])), [
        key for keys, _ in read for key in keys
    ]


def _rows(
    source: VectorSource,
    modality: Modality,
    chosen: NDArray[np.int64],
) -> Iterator[tuple[list[str], NDArray[np.float32]]]:
    """Yield the ids and vectors of the items of these numbers, batch by batch."""
    seen = 0
    yield [], np.empty((0, source.header.dim), np.float32)
    for count, _, read in source.lazy_batches(modality, BATCH, sets=False):
        wanted = (chosen[(chosen >= seen) & (chosen < seen + count)] - seen).tolist()
        seen += count
        if wanted:
            batch = read()
            yield [batch.items[i].id for i in wanted], batch.embeddings.vectors[wanted]


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


def _cheapest(
    searcher: Searcher,
    queries: Embeddings,
    truth: list[list[str]],
    own: Sequence[str],
    find: Modality,
    target: float,
) -> tuple[int, float, dict[str, float]]:
    """Return terms, candidates per hit, and recall: the cheapest whose interval is above
    ``target``, or near to it."""
    index = searcher.index
    codec = searcher.codec
    z = codec.steps[-1].get_params()["z"]
    list_length = index.manifest.postings / codec.n_terms
    fetch = FETCH
    if getattr(index, "shortlist", None) is not None:
        list_length = list_length + TERM
        fetch = 1
    budgets = [each for each in BUDGETS if each < codec.n_terms] or [1]
    depth = min(DEEPEST, index.manifest.items[find])
    ranks: dict[int, NDArray[np.int64]] = {}

    def setting(aim: float) -> tuple[int, int]:
        best = (budgets[-1], depth)
        least = math.inf
        for query_z in budgets:
            if query_z * list_length + fetch * HITS >= least:
                break
            if query_z not in ranks:
                terms = codec.set_budgets(z, query_z).encode_queries(queries)
                order, _ = index.rank(SearchRequest(terms, depth, find))
                ranks[query_z] = _ranks(order, truth, own)
            candidates = max(HITS, 1 + int(np.quantile(ranks[query_z], aim, method="inverted_cdf")))
            cost = query_z * list_length + fetch * candidates
            if candidates <= depth and cost < least:
                best = (query_z, candidates)
                least = cost
        return best

    most = (budgets[-1], depth)
    aim = target if setting(target) != most else float((ranks[budgets[-1]] < depth).mean()) - SHORT
    tried = []
    for _ in range(ROUNDS if aim == target else 1):
        query_z, candidates = setting(min(aim, 0.9995))
        codec.set_budgets(z, query_z)
        rm = math.ceil(candidates / HITS)
        k = HITS + (queries.modality == find)  # a query that is an item finds itself, too
        hits, _ = searcher.rank_vectors(queries, k=k, rm=max(1.0, rm * HITS / k), find=find)
        figures = _interval((_ranks(hits, truth, own) < HITS).mean(axis=1))
        tried.append((query_z, float(rm), figures))
        if figures["low"] >= target:
            break
        if (query_z, candidates) == most:
            return next(
                each for each in tried if each[2]["measured"] >= figures["measured"] - SHORT
            )
        aim = 1 - (1 - aim) * (1 - target) / (1 - figures["low"])
    return tried[-1]


def _ranks(
    order: NDArray[np.object_],
    truth: list[list[str]],
    own: Sequence[str],
) -> NDArray[np.int64]:
    """Return ranks of the true items in ``order``, (queries, hits); what is missing is beyond
    all."""
    others = ([key for key in row if key != mine] for row, mine in zip(order, own, strict=True))
    places = [{key: i for i, key in enumerate(row)} for row in others]
    missing = 1 << 40
    return np.array(
        [
            [place.get(key, missing) for key in row]
            for place, row in zip(places, truth, strict=True)
        ],
    )
