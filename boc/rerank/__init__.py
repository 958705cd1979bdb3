"""Score candidates by global vectors or by concept sets.

An alignment aggregates the cosines A of the regions i of a picture and the words j of a sentence
(TERAN: Messina et al., Fine-grained Visual Textual Alignment, TOMM 2021):

    mrsw    sum over words of the maximum over regions (eq. 3)
    mwsr    sum over regions of the maximum over words (eq. 3)
    symm    mrsw + mwsr (eq. 4)
    mravgw  mrsw / number of words (eq. 8)

These are the equations in the paper. In the code of the authors, maxima also include the zeros of
padding, so the maximum for a region in mwsr, and in the corresponding part of symm, is never below
0. Scores differ only if a region has negative cosines with all words. This module does not use
padding. An alignment with an empty set is 0.
"""

from boc.errors import BocError
from boc.names import METRICS, Metric


def check_metric(metric: str) -> Metric:
    """Return ``metric``, or raise BocError if the metric is unknown."""
    if metric not in METRICS:
        raise BocError(f"unknown metric {metric!r} for re-ranking; known: {', '.join(METRICS)}")
    return metric
