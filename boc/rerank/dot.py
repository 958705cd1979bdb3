"""Re-rank hits by the dot products of the query and their stored vectors."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from boc.rerank.storage import restore_rows
from boc.types import Hit
from boc.vectors import Doubles, Floats, Ints

try:
    from boc.rerank import _rescore
except ImportError:  # ``products`` replaces the module if it is not compiled
    _rescore = None  # type: ignore[assignment]


def reorder(
    hits: Sequence[Hit],
    scores: Sequence[float],
    k: int,
) -> list[Hit]:
    """Return the k hits with the largest ``scores``, which replace the scores of the hits. Ties are
    resolved in favour of smaller ids."""
    pairs = zip(hits, scores, strict=True)
    scored = [replace(hit, score=score) for hit, score in pairs]
    return sorted(scored, key=lambda hit: (-hit.score, hit.item.id))[:k]


def ids_and_scores(
    answers: Sequence[Sequence[Hit]],
    width: int,
) -> tuple[NDArray[np.object_], Doubles]:
    """Return the ids and scores of the hits for each query, both (n, width), padded with None and
    -inf."""
    ids = np.full((len(answers), width), None, object)
    scores = np.full(ids.shape, -np.inf)
    for i, hits in enumerate(answers):
        ids[i, : len(hits)] = [hit.item.id for hit in hits]
        scores[i, : len(hits)] = [hit.score for hit in hits]
    return ids, scores


def dot(
    query: Floats,
    vectors: NDArray[np.generic],
    chosen: Ints | None = None,
) -> Floats:
    """Return the dot products (m,) of ``query`` float32 (d,) and the rows ``chosen`` int64 (m,) of
    ``vectors`` (n, d).

    If ``chosen`` is None, all rows are used. ``vectors`` is float16, float32, or uint8 as returned
    by ``storage.store_rows`` for int8. It can be a memory map, because rows are not copied. The
    score of a row does not depend on other rows. Sums are float32, with an error of at most (d / 4
    + 5) * 2**-24 * sum |q_i v_i|. Raises IndexError if a row is out of range, and ValueError if the
    dimensions differ.
    """
    if _rescore is None or not vectors.flags.c_contiguous:
        if chosen is not None:
            if (chosen < 0).any():
                raise IndexError(f"row {chosen.min()} is out of range for {len(vectors)} rows")
            vectors = vectors[chosen]
        copied: Floats = products(query[None], restore_rows(vectors))[0]
        return copied
    n = len(vectors)
    some = []
    if chosen is not None:
        n = len(chosen)
        some = [np.ascontiguousarray(chosen)]
    scores = np.empty(n, np.float32)
    _rescore.dot(
        np.ascontiguousarray(query),
        vectors,
        scores,
        *some,
    )
    return scores


def products(queries: Floats, rows: NDArray[np.generic]) -> Floats:
    """Return the dot products (m, n) of ``queries`` float32 (m, d) and ``rows`` float16, float32 or
    int8 (n, d)."""
    if queries.shape[1] != rows.shape[1]:
        raise ValueError(
            f"queries have width {queries.shape[1]}, but rows have width {rows.shape[1]}",
        )
    numbers = rows.astype(np.float32, copy=False)
    whole: Floats = queries @ numbers.T
    return whole
