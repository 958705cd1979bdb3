"""Differences between two systems on the same queries: interval, p, and the correction for several
questions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

ROUNDS = 10_000
TOGETHER = 250  # rounds drawn at a time


class Difference(NamedTuple):
    """A mean difference, its interval of 95 %, and p; ``holm`` is p for all measures that were
    compared at once."""

    difference: float
    low: float
    high: float
    p: float
    holm: float


def compare(
    one: NDArray[np.floating[Any]],
    other: NDArray[np.floating[Any]],
    clusters: NDArray[np.integer[Any]],
    *,
    rounds: int = ROUNDS,
    seed: int = 0,
) -> list[Difference]:
    """Compare values (queries, measures) of two systems; return the difference of each measure.

    Queries with the same number in ``clusters`` (queries,) are not independent, as the captions of
    a picture, and are drawn together. p is that of the paired randomisation test, two-sided: the
    systems change places at random in each cluster, ``rounds`` times (Smucker, Allan and
    Carterette, CIKM 2007). The interval is that of the bootstrap over clusters. Under the same
    ``seed`` both are the same again.

    Examples
    --------
    >>> import numpy as np
    >>> better = compare(np.ones((20, 1)), np.zeros((20, 1)), np.arange(20))[0]
    >>> better.difference, better.low, better.p < 0.001
    (1.0, 1.0, True)
    """
    _, groups = np.unique(clusters, return_inverse=True)
    n = groups.max() + 1
    rng = np.random.default_rng(seed)
    sums = np.zeros((n, one.shape[1]))
    np.add.at(sums, groups, np.asarray(one, np.float64) - other)
    counts = np.bincount(groups)
    mean = sums.sum(axis=0) / len(groups)
    as_large = np.zeros(len(mean))
    drawn = []
    for start in range(0, rounds, TOGETHER):
        size = min(TOGETHER, rounds - start)
        signs = 1 - 2.0 * rng.integers(0, 2, (size, n))
        changed = signs @ sums / len(groups)
        as_large += (np.abs(changed) >= np.abs(mean) - 1e-12).sum(axis=0)
        weights = rng.multinomial(n, np.full(n, 1 / n), size)
        drawn.append(weights @ sums / (weights @ counts)[:, None])
    p = (1 + as_large) / (1 + rounds)
    low, high = np.quantile(np.concatenate(drawn), (0.025, 0.975), axis=0)
    rows = np.array([mean, low, high, p, holm(p.tolist())]).T
    return [Difference(*row) for row in rows.tolist()]


def holm(values: Sequence[float]) -> list[float]:
    """Return p values corrected for their number, in the same order: the chance that any of those
    that are below a level is so by accident stays below it (Holm, 1979).

    Examples
    --------
    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    corrected = [0.0] * len(values)
    least = 0.0
    for rank, place in enumerate(np.argsort(values, kind="stable").tolist()):
        least = max(least, min(1.0, (len(values) - rank) * values[place]))
        corrected[place] = least
    return corrected
