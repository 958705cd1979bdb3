"""Tuning: finds the cheapest setting (code, budgets, number of candidates) that reaches a recall.

A setting is judged by the share of the exact dense top k that its first stage brings among the R candidates, which are
then re-ranked by the dense vectors. This share follows for all R at once from the ranks of the true neighbours in the
first stage, so a code is tried once per budget, for any R.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from boc.codecs import Code
from boc.codecs.frequencies import document_frequencies, postings_read
from boc.errors import BocError
from boc.evaluate.metrics import exact_top_k
from boc.indexes.budgets import FETCH, Interval, fewest
from boc.plugins import Index
from boc.types import MODALITIES, Embeddings, Modality, TermMatrix

BLOCK = 64  # queries scored at a time against all items
DEEPEST = 50  # the largest Rm tried: candidates per hit


@dataclass(frozen=True)
class Sample:
    """The data of a tuning run: items of one modality, queries that choose, and queries that judge the choice.

    Codes are learned from ``fit``. No query is in it, nor among the items.
    """

    items: Embeddings
    choose: Embeddings
    judge: Embeddings
    fit: tuple[Embeddings, ...]


@dataclass(frozen=True)
class Trial:
    """One setting and its results.

    ``code`` has its budgets, and the size of its dictionary; ``rm`` is the number of candidates per hit, ``postings``
    the number read per query and ``terms`` that per item on average; ``recall`` is that of the choosing queries,
    ``judged`` that of the others, which had no part in the choice.
    """

    code: Code
    rm: float
    postings: float
    terms: float
    recall: float
    judged: Interval


@dataclass(frozen=True)
class Candidate:
    """A code to try, with the budgets of documents and of queries to try it with."""

    code: Code
    z: Sequence[int]
    query_z: Sequence[int]


def grid(dim: int) -> list[Candidate]:
    """Return the codes to try by default, for vectors of ``dim`` components."""
    dictionary = Candidate(Code("dictionary"), (1, 2, 4), (2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256))
    fits = [budget for budget in (16, 32, 64, 128, 256) if budget <= 2 * dim]
    return [dictionary, Candidate(Code("scalar"), fits[:4], fits)]


def tune(
    sample: Sample,
    targets: Sequence[float],
    *,
    k: int = 10,
    candidates: Sequence[Candidate] | None = None,
    tick: Callable[[int], None] = lambda done: None,
) -> dict[float, Trial]:
    """Find the cheapest trial for each target recall, between 0 and 1; targets that no setting reaches are left out.

    ``tick`` is called after each budget. BocError for a target or a k out of range.
    """
    for target in targets:
        if not 0 < target < 1:
            raise BocError(f"the target recall must lie between 0 and 1, got {target:g}; 0.95 is a common one")
    if not 1 <= k <= len(sample.items):
        raise BocError(f"k must be between 1 and the {len(sample.items)} items of the sample, got {k}")
    best: dict[float, Choice] = {}
    for setting in settings(sample, candidates or grid(sample.items.vectors.shape[1]), k):
        least = Choice(setting, k, 1.0).cost
        if any(target not in best or least < best[target].cost for target in targets):
            ranks = setting.ranks(0)
            for target in targets:
                choice = cheapest(setting, ranks, target)
                if choice is not None and (target not in best or choice.cost < best[target].cost):
                    best[target] = choice
        tick(1)
    return {target: choice.trial() for target, choice in best.items()}


@dataclass(frozen=True)
class Setting:
    """A code with one pair of budgets: its term matrices of the items and of the queries of both halves.

    ``truths`` are the rows of the exact nearest items of each query, (queries, k).
    """

    code: Code
    documents: TermMatrix
    queries: tuple[TermMatrix, TermMatrix]
    truths: tuple[NDArray[np.int64], NDArray[np.int64]]
    postings: float

    def ranks(self, half: int) -> NDArray[np.int64]:
        """Return ranks (from 0) of the true neighbours of each query in the first stage, (queries, k). This takes most
        time."""
        return ranks_of(self.documents, self.queries[half], self.truths[half])

    @property
    def terms(self) -> float:
        """Mean number of terms of an item."""
        return float(self.documents.nnz / self.documents.shape[0])


@dataclass(frozen=True)
class Choice:
    """A setting with its number of candidates, and its recall on the choosing queries."""

    setting: Setting
    candidates: int
    recall: float

    @property
    def cost(self) -> tuple[float, float]:
        """The cost to minimise, postings and candidates per query, then the one that breaks ties, terms per item."""
        return self.setting.postings + FETCH * self.candidates, self.setting.terms

    def trial(self) -> Trial:
        """Return the trial with its recall on the judging queries."""
        ranks = self.setting.ranks(1)
        share = Interval.of((ranks < self.candidates).mean(axis=1))
        rm = self.candidates / ranks.shape[1]
        return Trial(self.setting.code, rm, self.setting.postings, self.setting.terms, self.recall, share)


def cheapest(setting: Setting, ranks: NDArray[np.int64], target: float) -> Choice | None:
    """Return the fewest candidates that reach ``target``; None if 50 k do not.

    ``ranks`` (queries, k) are those of the true neighbours.
    """
    k = ranks.shape[1]
    candidates = max(k, fewest(ranks, target))
    return Choice(setting, candidates, float((ranks < candidates).mean())) if candidates <= DEEPEST * k else None


def settings(sample: Sample, candidates: Sequence[Candidate], k: int) -> Iterator[Setting]:
    """Yield each candidate with each pair of its budgets."""
    halves = (sample.choose, sample.judge)
    first, second = (exact_top_k(queries.vectors, sample.items.vectors, k)[0] for queries in halves)
    for candidate in candidates:
        codec = candidate.code.codec(sample.items.vectors.shape[1]).fit(*sample.fit)
        dictionary = candidate.code.name == "dictionary"
        code = replace(candidate.code, terms=codec.n_terms) if dictionary else candidate.code
        for z in candidate.z:
            documents = codec.set_budgets(z, z).encode_documents(sample.items)
            lengths = document_frequencies(documents)
            for query_z in candidate.query_z:
                codec.set_budgets(z, query_z)
                queries = codec.encode_queries(sample.choose), codec.encode_queries(sample.judge)
                budgeted = replace(code, z=z, query_z=query_z)
                yield Setting(budgeted, documents, queries, (first, second), postings_read(lengths, queries[0]))


def ranks_of(documents: TermMatrix, queries: TermMatrix, truth: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return ranks (from 0) of the items ``truth`` (queries, k) when documents are ordered by (-score, row).

    An item without a common term, which an engine does not find, gets the number of documents.
    """
    ranks = np.full(truth.shape, documents.shape[0], dtype=np.int64)
    terms = documents.T.tocsr().astype(np.int64)
    for start in range(0, len(truth), BLOCK):
        scores = (queries[start : start + BLOCK].astype(np.int64) @ terms).tocsr()
        for row, (low, high) in enumerate(pairwise(scores.indptr), start):
            columns, score = scores.indices[low:high], scores.data[low:high]
            for i, item in enumerate(truth[row]):
                own = score[columns == item]
                if len(own):
                    ahead = (score > own) | ((score == own) & (columns < item))
                    ranks[row, i] = np.count_nonzero(ahead)
    return ranks


def draw(
    index: Index,
    find: Modality,
    queries: Embeddings | None = None,
    *,
    size: int = 100_000,
    n_queries: int = 4000,
    seed: int = 0,
) -> Sample:
    """Draw a sample of an index: up to ``size`` items of modality ``find``, and up to ``n_queries`` queries.

    Half of the queries are to choose by. Without ``queries`` they are items of the index: of the other modality if it
    has any, else of ``find``. Then they are removed from the items and from the data that codes are learned from, of
    which at least a fifth remains.
    """
    rng = np.random.default_rng(seed)
    ids: dict[Modality, list[str]] = {m: [] for m in MODALITIES}
    for item in index.items():
        ids[item.modality].append(item.id)
    pools = {m: [ids[m][i] for i in rng.permutation(len(ids[m]))] for m in MODALITIES}
    if queries is None:
        other = MODALITIES[1 - MODALITIES.index(find)]
        modality = other if pools[other] else find
        n_queries = min(n_queries, len(pools[modality]) * 4 // 5)  # at least a fifth remains to learn from
        taken, pools[modality] = pools[modality][:n_queries], pools[modality][n_queries:]
        queries = Embeddings(modality, index.vectors(taken).astype(np.float32))
    else:
        rows = np.sort(rng.permutation(len(queries))[:n_queries])
        queries = Embeddings(queries.modality, queries.vectors[rows])
    if len(queries) < 2 or not pools[find]:
        raise BocError(
            f"{len(queries)} queries and {len(pools[find])} items are too few to try anything on; "
            "index more, or give --queries FEATURES"
        )
    pool = {m: Embeddings(m, index.vectors(pools[m][:size]).astype(np.float32)) for m in MODALITIES if pools[m]}
    # Pairs of queries with equally near neighbours, one to choose and one to judge, so that the halves are alike.
    nearest = exact_top_k(queries.vectors, pool[find].vectors, 1)[1][:, 0]
    order = np.argsort(nearest, kind="stable")[: len(queries) // 2 * 2].reshape(-1, 2)
    order = rng.permuted(order, axis=1)
    halves = [Embeddings(queries.modality, queries.vectors[half]) for half in order.T]
    return Sample(pool[find], halves[0], halves[1], tuple(pool.values()))
