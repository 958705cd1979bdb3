"""Alignment scores of concept sets: each word with its best region, or each region with its best
word."""

from itertools import pairwise

import numpy as np

from boc.rerank import check_metric
from boc.rerank.dot import products
from boc.types import Modality, Ragged, Rescore, StoredConcepts
from boc.vectors import Floats, Ints, unit_rows

CELLS = 1 << 22  # cosines pooled at a time, so that they stay in the cache


def align(
    query: Floats,
    candidates: StoredConcepts,
    metric: str,
    *,
    asks_by_words: bool,
) -> Floats:
    """Alignment scores (n,) of a concept set float32 (m, d) with n stored ones.

    ``asks_by_words`` means that the query has the words and the candidates the regions; otherwise
    the other way round.
    """
    check_metric(metric)
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
) -> Floats:
    """Alignment scores (n,) of query number ``i`` with n candidates of one ``modality``.

    Between two pictures, or two sentences, the concepts of the query take the role of words.
    """
    total = np.zeros(len(candidates), np.float32)
    parts = [(part, 0, weight) for part, weight in rescore.parts]
    for query, row, weight in parts or [(rescore.queries, i, 1.0)]:
        assert query.concepts is not None
        by_words = (query.modality, modality) != ("image", "text")
        concepts = query.concepts[row]
        scores = align(concepts, candidates, rescore.metric, asks_by_words=by_words)
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
