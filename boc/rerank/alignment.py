"""Alignment scores of concept sets: each word with its best region, or each region with its best
word."""

from itertools import pairwise

import numpy as np

from boc.rerank import check_metric
from boc.rerank.dot import products
from boc.types import Modality, Ragged, Rescore, StoredConcepts
from boc.vectors import Floats, Ints, unit_rows

try:
    from boc.rerank import _rescore
except ImportError:  # not built here: numpy stands in
    _rescore = None  # type: ignore[assignment]

CELLS = 1 << 22  # cosines pooled at a time, so that they stay in the cache


def align(
    query: Floats,
    candidates: StoredConcepts,
    metric: str,
    *,
    asks_by_words: bool,
    chosen: Ints | None = None,
) -> Floats:
    """Alignment scores (n,) of a concept set float32 (m, d) with n stored ones, those ``chosen``
    int64 (n,) or all.

    ``asks_by_words`` means that the query has the words and the candidates the regions; otherwise
    the other way round. Native code reads the sets where they lie, also from a memory map.
    """
    check_metric(metric)
    if _rescore is not None and candidates.values.flags.c_contiguous:
        begins = candidates.offsets[:-1]
        ends = candidates.offsets[1:]
        if chosen is not None:
            begins = begins[chosen]
            ends = ends[chosen]
        sums = np.empty((2, len(begins)), np.float32)
        arrays = (unit_rows(query), candidates.values, begins, ends, sums, candidates.scales)
        _rescore.align(*(array for array in arrays if array is not None))
        by_words, by_regions = sums if asks_by_words else sums[::-1]
        if metric == "mwsr":
            return by_regions
        if metric == "symm":
            return by_words + by_regions
        if metric == "mravgw":
            words = len(query) if asks_by_words else ends - begins
            return by_words / np.maximum(words, 1).astype(np.float32)
        return by_words
    if chosen is not None:
        candidates = candidates.take(chosen)
    cosines = products(unit_rows(query), candidates.values)
    if candidates.scales is not None:
        cosines *= candidates.scales
    whole = np.array([0, len(query)])
    columns = candidates.offsets
    scores: Floats = _pool(cosines, whole, columns, metric, words_in_rows=asks_by_words)[0]
    return scores


def alignment_scores(
    rescore: Rescore,
    i: int,
    candidates: StoredConcepts,
    modality: Modality,
    chosen: Ints | None = None,
) -> Floats:
    """Alignment scores (n,) of query number ``i`` with n candidates of one ``modality``: all, or
    those ``chosen``.

    Between two pictures, or two sentences, the concepts of the query take the role of words.
    """
    total = np.zeros(len(candidates) if chosen is None else len(chosen), np.float32)
    parts = [(part, 0, weight) for part, weight in rescore.parts]
    for query, row, weight in parts or [(rescore.queries, i, 1.0)]:
        assert query.concepts is not None
        by_words = (query.modality, modality) != ("image", "text")
        concepts = query.concepts[row]
        scores = align(
            concepts,
            candidates,
            rescore.metric,
            asks_by_words=by_words,
            chosen=chosen,
        )
        total += np.float32(weight) * scores
    return total


def alignments(words: Ragged, regions: Ragged, metric: str) -> Floats:
    """Alignment scores (n_texts, n_images) of all sets of words with all sets of regions, each
    float32 (N, d).

    Besides the normalised sets, about 16 MB of cosines are in memory at a time.
    """
    check_metric(metric)
    n = len(words)
    m = len(regions)
    scores = np.empty((n, m), dtype=np.float32)
    word_rows = unit_rows(words.values)
    rows = unit_rows(regions.values)
    cells = len(word_rows) * len(rows)
    step = max(1, CELLS * m // max(1, cells))
    for first in range(0, m, step):
        part = regions.offsets[first : first + step + 1]
        cosines = word_rows @ rows[part[0] : part[-1]].T
        columns = part - part[0]
        pooled = _pool(cosines, words.offsets, columns, metric, words_in_rows=True)
        scores[:, first : first + step] = pooled
    return scores


def _pool(
    cosines: Floats,
    rows: Ints,
    columns: Ints,
    metric: str,
    *,
    words_in_rows: bool,
) -> Floats:
    """Pool blocks of ``cosines`` into scores (n, m), between the offsets ``rows`` (n + 1,) and
    ``columns`` (m + 1,)."""
    tall = np.diff(rows) > 0
    wide = np.diff(columns) > 0
    scores = np.zeros((len(tall), len(wide)), dtype=np.float32)
    if not cosines.size:
        return scores
    tops = rows[:-1][tall]
    lefts = columns[:-1][wide]

    def sum_over(words: bool) -> Floats:
        """Sum over words, or over regions, of the maximum over the others."""
        if words == words_in_rows:
            largest = np.maximum.reduceat(cosines, lefts, axis=1)
            return np.add.reduceat(largest, tops, axis=0)
        # reduceat along rows is ten times as slow as this loop.
        bounds = pairwise([*tops.tolist(), len(cosines)])
        largest = np.stack([cosines[a:b].max(axis=0) for a, b in bounds])
        return np.add.reduceat(largest, lefts, axis=1)

    sums = sum_over(words=metric != "mwsr")
    if metric == "symm":
        sums += sum_over(words=False)
    elif metric == "mravgw":
        if words_in_rows:
            sums /= np.diff(tops, append=len(cosines))[:, None]
        else:
            sums /= np.diff(lefts, append=cosines.shape[1])
    scores[np.ix_(tall, wide)] = sums
    return scores
