"""The cheapest setting of an index that reaches a recall: code, budgets, and how many candidates are re-scored.

A setting is judged by the share of the exact dense top k that its first stage brings among the R candidates that are
then re-scored by the dense vectors. That share follows for all R at once from the first stage's ranks of the true
neighbours, so a code is tried once for each budget, whatever R turns out to be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from boc.codecs import global_code
from boc.codecs.posting_stats import document_frequencies, postings_read
from boc.errors import BocError
from boc.evaluate.metrics import exact_top_k
from boc.plugins import Index
from boc.types import MODALITIES, Embeddings, Modality, TermMatrix

BLOCK = 64  # queries scored at a time against all items
DEEPEST = 50  # the largest Rm tried: candidates for each hit asked
FETCH = 10  # postings that reading a candidate's vector counts for: it lies anywhere, postings lie in a row
SPAN = 1.96  # standard errors of a 95 % confidence interval
Cost = Literal["postings", "bytes"]


@dataclass(frozen=True)
class Sample:
    """What settings are tried on: the items of one modality, queries to choose by, and queries to judge the choice.

    ``fit`` holds what codes are learned from; no query is among it, nor among the items.
    """

    items: Embeddings
    choose: Embeddings
    judge: Embeddings
    fit: tuple[Embeddings, ...]


@dataclass(frozen=True)
class Interval:
    """A mean over queries with its 95 % confidence interval (normal approximation)."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> Interval:
        mean = float(values.mean())
        half = SPAN * float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else 1.0
        return cls(mean, max(0.0, mean - half), min(1.0, mean + half))


@dataclass(frozen=True)
class Trial:
    """One setting and what came of it.

    ``options`` are those of ``boc.codecs.global_code``, ``rm`` the candidates for each hit asked, ``postings`` a query
    reads and ``terms`` an item has on average; ``recall`` is that of the choosing queries, ``judged`` that of the
    others, which had no part in the choice.
    """

    options: dict[str, Any]
    rm: float
    postings: float
    terms: float
    recall: float
    judged: Interval


@dataclass(frozen=True)
class Candidate:
    """A code to try, by its options, with the budgets of documents and of queries to try it under."""

    options: dict[str, Any]
    z: Sequence[int]
    query_z: Sequence[int]


def grid(dim: int) -> list[Candidate]:
    """What is tried unless asked otherwise, for vectors of ``dim`` components."""
    dictionary = Candidate({"code": "dictionary"}, (1, 2, 4), (2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256))
    fits = [budget for budget in (16, 32, 64, 128, 256) if budget <= 2 * dim]
    return [dictionary, Candidate({"code": "scalar"}, fits[:4], fits)]


def tune(
    sample: Sample,
    targets: Sequence[float],
    *,
    k: int = 10,
    by: Cost = "postings",
    candidates: Sequence[Candidate] | None = None,
    tick: Callable[[int], None] = lambda done: None,
) -> dict[float, Trial]:
    """The cheapest trial for each target recall, between 0 and 1; targets that no setting reaches are left out.

    ``tick`` is told of each budget that has been tried. BocError for a target or a k out of range.
    """
    for target in targets:
        if not 0 < target < 1:
            raise BocError(f"the target recall must lie between 0 and 1, got {target:g}; 0.95 is a common one")
    if not 1 <= k <= len(sample.items):
        raise BocError(f"k must be between 1 and the {len(sample.items)} items of the sample, got {k}")
    best: dict[float, Chosen] = {}
    for setting in settings(sample, candidates or grid(sample.items.vectors.shape[1]), k):
        least = Chosen(setting, k, 1.0).cost(by)
        if any(target not in best or least < best[target].cost(by) for target in targets):
            ranks = setting.ranks(0)
            for target in targets:
                chosen = cheapest(setting, ranks, target)
                if chosen is not None and (target not in best or chosen.cost(by) < best[target].cost(by)):
                    best[target] = chosen
        tick(1)
    return {target: chosen.judged() for target, chosen in best.items()}


@dataclass(frozen=True)
class Setting:
    """A code under one pair of budgets: what it makes of the items, and of the queries of both halves.

    ``truths`` are the rows of each query's exact nearest items, (queries, k).
    """

    options: dict[str, Any]
    documents: TermMatrix
    queries: tuple[TermMatrix, TermMatrix]
    truths: tuple[NDArray[np.int64], NDArray[np.int64]]
    postings: float

    def ranks(self, half: int) -> NDArray[np.int64]:
        """The first stage's ranks (from 0) of each query's true neighbours, (queries, k). This is what costs time."""
        return ranks_of(self.documents, self.queries[half], self.truths[half])

    @property
    def terms(self) -> float:
        """Mean number of terms of an item."""
        return float(self.documents.nnz / self.documents.shape[0])


@dataclass(frozen=True)
class Chosen:
    """A setting with the number of candidates that are re-scored, and its recall on the choosing queries."""

    setting: Setting
    candidates: int
    recall: float

    def cost(self, by: Cost) -> tuple[float, float]:
        """What is to be little, then what decides among equals: postings and candidates that a query reads, and terms
        of an item; or the other way round."""
        read = self.setting.postings + FETCH * self.candidates
        return (read, self.setting.terms) if by == "postings" else (self.setting.terms, read)

    def judged(self) -> Trial:
        """With what it gives on the other queries."""
        ranks = self.setting.ranks(1)
        share = Interval.of((ranks < self.candidates).mean(axis=1))
        rm = self.candidates / ranks.shape[1]
        return Trial(self.setting.options, rm, self.setting.postings, self.setting.terms, self.recall, share)


def cheapest(setting: Setting, ranks: NDArray[np.int64], target: float) -> Chosen | None:
    """The fewest candidates that reach ``target``, given the ranks (queries, k) of the true neighbours; None if 50 k do
    not."""
    k = ranks.shape[1]
    candidates = max(k, int(np.sort(ranks.ravel())[math.ceil(target * ranks.size) - 1]) + 1)
    return Chosen(setting, candidates, float((ranks < candidates).mean())) if candidates <= DEEPEST * k else None


def settings(sample: Sample, candidates: Sequence[Candidate], k: int) -> Iterator[Setting]:
    """Each candidate under each pair of its budgets."""
    first, second = (exact_top_k(asked.vectors, sample.items.vectors, k)[0] for asked in (sample.choose, sample.judge))
    for candidate in candidates:
        codec = global_code(**candidate.options).fit(*sample.fit)
        size = {"terms": codec.n_terms} if candidate.options["code"] == "dictionary" else {}
        for z in candidate.z:
            documents = codec.budgeted(z, z).encode_documents(sample.items)
            lengths = document_frequencies(documents)
            for query_z in candidate.query_z:
                codec.budgeted(z, query_z)
                queries = codec.encode_queries(sample.choose), codec.encode_queries(sample.judge)
                options = {**candidate.options, **size, "z": z, "query_z": query_z}
                yield Setting(options, documents, queries, (first, second), postings_read(lengths, queries[0]))


def ranks_of(documents: TermMatrix, queries: TermMatrix, truth: NDArray[np.int64]) -> NDArray[np.int64]:
    """Ranks (from 0) of the items ``truth`` (queries, k) when documents are ordered by (-score, row).

    The number of documents stands for one without a common term, which an engine does not find.
    """
    ranks = np.full(truth.shape, documents.shape[0], dtype=np.int64)
    terms = documents.T.tocsr().astype(np.int64)
    for start in range(0, len(truth), BLOCK):
        scores = (queries[start : start + BLOCK].astype(np.int64) @ terms).tocsr()
        for row, (low, high) in enumerate(pairwise(scores.indptr), start):
            found, score = scores.indices[low:high], scores.data[low:high]
            for i, item in enumerate(truth[row]):
                own = score[found == item]
                if len(own):
                    ahead = (score > own) | ((score == own) & (found < item))
                    ranks[row, i] = np.count_nonzero(ahead)
    return ranks


def draw(index: Index, find: Modality, queries: Embeddings | None, *, size: int, asked: int, seed: int) -> Sample:
    """A sample of an index: up to ``size`` items of modality ``find``, and up to ``asked`` queries, half to choose by.

    Without ``queries`` they are items of the index: of the other modality if it has any, else of ``find``; then they
    are taken out of what is to be found and of what codes are learned from, of which a fifth stays at least.
    """
    rng = np.random.default_rng(seed)
    ids: dict[Modality, list[str]] = {m: [] for m in MODALITIES}
    for item in index.items():
        ids[item.modality].append(item.id)
    pools = {m: [ids[m][i] for i in rng.permutation(len(ids[m]))] for m in MODALITIES}
    if queries is None:
        other = MODALITIES[1 - MODALITIES.index(find)]
        asking = other if pools[other] else find
        asked = min(asked, len(pools[asking]) * 4 // 5)  # a fifth at least stays to learn from
        taken, pools[asking] = pools[asking][:asked], pools[asking][asked:]
        queries = Embeddings(asking, index.vectors(taken).astype(np.float32))
    else:
        chosen = np.sort(rng.permutation(len(queries))[:asked])
        queries = Embeddings(queries.modality, queries.vectors[chosen])
    if len(queries) < 2 or not pools[find]:
        raise BocError(
            f"{len(queries)} queries and {len(pools[find])} items are too few to try anything on; "
            "index more, or give --queries FEATURES"
        )
    known = {m: Embeddings(m, index.vectors(pools[m][:size]).astype(np.float32)) for m in MODALITIES if pools[m]}
    # Pairs of queries whose nearest items are about as near, one to choose by and one to judge: halves alike.
    nearest = exact_top_k(queries.vectors, known[find].vectors, 1)[1][:, 0]
    order = np.argsort(nearest, kind="stable")[: len(queries) // 2 * 2].reshape(-1, 2)
    order = rng.permuted(order, axis=1)
    halves = [Embeddings(queries.modality, queries.vectors[half]) for half in order.T]
    return Sample(known[find], halves[0], halves[1], tuple(known.values()))
