"""Exact scores of candidates: the dense dot product."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from boc.types import Hit


def rerank(query: NDArray[np.float32], hits: Sequence[Hit], vectors: NDArray[np.float32], k: int) -> list[Hit]:
    """The k hits of largest dot product with ``query`` (d,), which becomes their score, ties by id.

    ``vectors`` (len(hits), d) belong to ``hits`` in order.
    """
    scores = vectors @ query
    scored = [replace(hit, score=float(score)) for hit, score in zip(hits, scores, strict=True)]
    return sorted(scored, key=lambda hit: (-hit.score, hit.item.id))[:k]
