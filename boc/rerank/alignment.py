"""Compute alignment scores of concept sets, which match each word with its nearest region or each
region with its nearest word."""

import numpy as np

from boc.prefetch import ahead
from boc.rerank import check_metric
from boc.rerank.dot import products
from boc.types import Modality, Ragged, Rescore, StoredConcepts
from boc.vectors import Floats, Ints, unit_rows

try:
    from boc.rerank import _rescore
except ImportError:  # NumPy replaces the module if it is not compiled
    _rescore = None  # type: ignore[assignment]


def align(
    query: Floats,
    candidates: StoredConcepts,
    metric: str,
    *,
    asks_by_words: bool,
    chosen: Ints | None = None,
) -> Floats:
    """Return the alignment scores (n,) of a concept set float32 (m, d) with n stored sets: the sets
    ``chosen`` int64 (n,), or all sets if None.

    If ``asks_by_words`` is True, the query consists of words and the candidates consist of regions;
    otherwise, the query consists of regions. Native code reads the sets without copying them, even
    from memory maps.
    """
    check_metric(metric)
    begins = candidates.offsets[:-1]
    ends = candidates.offsets[1:]
    if chosen is not None:
        begins = begins[chosen]
        ends = ends[chosen]
    rows = unit_rows(query)
    sums = np.zeros((2, len(begins)), np.float32)
    values = candidates.values
    scales = candidates.scales
    if _rescore is not None and values.flags.c_contiguous:
        some = [] if scales is None else [scales]
        _rescore.align(
            rows,
            values,
            begins,
            ends,
            sums,
            *some,
        )
    else:
        for i, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
            cosines = products(rows, values[begin:end])
            if scales is not None:
                cosines *= scales[begin:end]
            if cosines.size:
                sums[:, i] = cosines.max(axis=1).sum(), cosines.max(axis=0).sum()
    by_words: Floats = sums[int(not asks_by_words)]
    by_regions: Floats = sums[int(asks_by_words)]
    if metric == "mwsr":
        return by_regions
    if metric == "symm":
        by_words += by_regions
    if metric == "mravgw":
        words = ends - begins
        if asks_by_words:
            words = np.full(len(words), len(query))
        by_words /= np.maximum(words, 1)
    return by_words


def alignment_scores(
    rescore: Rescore,
    i: int,
    candidates: StoredConcepts,
    modality: Modality,
    chosen: Ints | None = None,
) -> Floats:
    """Return the alignment scores (n,) of query ``i`` with n candidates of one ``modality``: the
    candidates ``chosen``, or all candidates if None.

    Between two pictures or two sentences, the concepts of the query are treated as words.
    """
    total = np.zeros(len(candidates) if chosen is None else len(chosen), np.float32)
    parts = [(part, 0, weight) for part, weight in rescore.parts]
    for query, row, weight in parts or [(rescore.queries, i, 1.0)]:
        assert query.concepts is not None
        by_words = (query.modality, modality) != ("image", "text")
        scores = align(
            query.concepts[row],
            candidates,
            rescore.metric,
            asks_by_words=by_words,
            chosen=chosen,
        )
        total += np.float32(weight) * scores
    return total


def alignments(words: Ragged, regions: Ragged, metric: str) -> Floats:
    """Return the alignment scores (n_texts, n_images) of all sets of words with all sets of
    regions, whose rows are float32 (N, d)."""
    stored = StoredConcepts(unit_rows(regions.values), regions.offsets)

    def score(i: int) -> Floats:
        return align(
            words[i],
            stored,
            metric,
            asks_by_words=True,
        )

    scores = np.array([*ahead(score, range(len(words)))], np.float32)
    return scores.reshape(len(words), len(regions))
