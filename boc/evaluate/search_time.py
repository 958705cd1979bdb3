"""The time of a search in a planned index, from searches in an index of a sample of its items.

A query of a code reads ``terms`` posting lists, so the postings that it reads grow with the items. Everything else of a
search, encoding and the candidates that are re-ranked, is as in the sample.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from boc.inputs.features import FeatureFiles
from boc.search.searcher import Searcher
from boc.types import MODALITIES

K = 10  # hits
QUERIES = 200
ROUNDS = 5  # over all queries; the median round counts
SPARSE = 0.001  # share of the items in a list, below which hardly a posting is beside the one before
SCATTERED = 2e-8  # seconds of a posting of such a list: each waits for memory (docs/sizing.md)


@dataclass(frozen=True)
class Searching:
    """Searches of one query after the other, on one thread, in an index of ``items`` in memory.

    ``seconds`` is their median, ``terms`` the mean number of terms of a query, ``density`` the mean share of the items
    in a posting list.
    """

    items: int
    seconds: float
    terms: float
    density: float

    @property
    def postings(self) -> float:
        """Postings per query."""
        return self.terms * self.density * self.items


def time_searches(searcher: Searcher, file: FeatureFiles) -> Searching:
    """Search for items of ``file``, of which the index of ``searcher`` is made."""
    modality = max(MODALITIES, key=file.count)
    sets = searcher.codec.reads_concepts or searcher.index.manifest.concept_dtype is not None
    asked = next(iter(file.batches(modality, QUERIES, sets=sets))).embeddings
    queries = [asked.take([i]) for i in range(len(asked))]
    medians = []
    for _ in range(ROUNDS):
        seconds = []
        for query in queries:
            begun = time.perf_counter()
            searcher.search_arrays(query, k=K, find=modality)
            seconds.append(time.perf_counter() - begun)
        medians.append(float(np.median(seconds)))
    manifest, codec = searcher.index.manifest, searcher.codec
    items = sum(manifest.items.values())
    terms = codec.encode_queries(asked).nnz / len(asked)
    return Searching(items, float(np.median(medians)), terms, manifest.postings / items / codec.n_terms)


def search_seconds(part: Searching, whole: Searching, items: int, terms: float = 1.0) -> float | None:
    """Median seconds of a search among ``items``, with ``terms`` times as many terms of the code as ``whole`` has.

    A posting of a long list takes what the two measurements differ by; of a short one ``SCATTERED``, since a few of
    them in the cache are too fast to tell. None if the larger index was not the slower one.
    """
    each = SCATTERED
    if whole.density >= SPARSE and whole.postings > part.postings:
        each = min(each, (whole.seconds - part.seconds) / (whole.postings - part.postings))
    more = max(0.0, whole.terms * whole.density / terms * items - whole.postings)
    return whole.seconds + more * each if each > 0 else None
