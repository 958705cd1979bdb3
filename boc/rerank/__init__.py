"""Score candidates by dense vectors or concept sets.

An alignment pools the cosines A between a picture's regions i and a sentence's words j (TERAN:
Messina et al., Fine-grained Visual Textual Alignment, TOMM 2021):

    mrsw    sum over words of the maximum over regions (eq. 3)
    mwsr    sum over regions of the maximum over words (eq. 3)
    symm    mrsw + mwsr (eq. 4)
    mravgw  mrsw / number of words (eq. 8)

These are the paper's equations. In the authors' code, the zeros of padded positions also compete in
a maximum, so no region's maximum in mwsr, or in the same part of symm, is below 0. Scores differ
only if a region has a negative cosine with every word. This module does not pad. An alignment with
an empty set is 0.
"""

from boc.errors import BocError
from boc.names import METRICS, Metric


def check_metric(metric: str) -> Metric:
    """Return ``metric``. For an unknown metric, raises BocError, which lists the known metrics."""
    if metric not in METRICS:
        raise BocError(f"no re-rank metric {metric!r}; known: {', '.join(METRICS)}")
    return metric
