"""Select the top k scores, with the same rule for ties everywhere.

Equal scores are ordered by position, as in a stable sort. Rows of an index are ordered by id, so
this rule orders them by (-score, id). C kernels that select rows while scoring them follow the same
rule.
"""

from collections.abc import Iterable

import numpy as np

from boc.vectors import Array, Ints


def topk(scores: Array, k: int) -> Ints:
    """Return the indices (min(k, m),) of the k largest ``scores`` (m,), largest first. Ties go to
    the lower index.

    For ``scores`` (n, m), return the indices for each row, (n, min(k, m)). Scores must not be NaN.
    """
    if scores.ndim == 2:
        places = [topk(row, k) for row in scores]
        return np.array(places, dtype=np.int64).reshape(len(scores), min(k, scores.shape[1]))
    rows = np.arange(len(scores))
    if 0 < k < len(scores):
        rows = np.flatnonzero(scores >= np.partition(scores, -k)[-k])
    best: Ints = rows[np.argsort(-scores[rows], kind="stable")[:k]]
    return best


def topk_of_blocks(
    blocks: Iterable[Array],
    k: int,
) -> tuple[Ints, Array]:
    """Return the ``topk`` indices and scores, both (n, k), for scores that arrive in blocks of
    columns (n, b)."""
    first = 0
    top = None
    for block in blocks:
        places = np.broadcast_to(np.arange(first, first + block.shape[1]), block.shape)
        first += block.shape[1]
        if top is not None:  # earlier blocks come first, because their indices are lower
            places = np.concatenate([top[0], places], axis=1)
            block = np.concatenate([top[1], block], axis=1)
        best = topk(block, k)
        top = np.take_along_axis(places, best, axis=1), np.take_along_axis(block, best, axis=1)
    if top is None:
        raise ValueError("there are no blocks of scores; pass at least one")
    return top
