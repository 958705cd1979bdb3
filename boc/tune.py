"""The cheapest setting of an index that reaches a recall: code, budgets, and how many candidates are re-scored.

A setting is judged by the share of the exact dense top k that its first stage brings among the R candidates that are
then re-scored by the dense vectors. That share follows for all R at once from the first stage's ranks of the true
neighbours, so a code is tried once for each budget, whatever R turns out to be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from boc.codecs import global_code
from boc.costs import document_frequencies, postings_read
from boc.errors import BocError
from boc.evaluation import exact_top_k
from boc.types import MODALITIES, Embeddings, Index, Modality, TermMatrix

BLOCK = 64  # queries scored at a time against all items
DEEPEST = 50  # the largest Rm tried: candidates for each hit asked
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

    def cost(self, by: Cost, k: int) -> float:
        """Postings and candidates read by a query, or bytes of an item's postings; less is better.

        A candidate counts like ten postings: its vector lies somewhere else, a posting right behind the last.
        """
        return self.postings + 10 * self.rm * k if by == "postings" else self.terms


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
    best: dict[float, Trial] = {}
    for curve in curves(sample, candidates or grid(sample.items.vectors.shape[1]), k):
        for target in targets:
            trial = curve.cheapest(target, k)
            if trial is not None and (target not in best or trial.cost(by, k) < best[target].cost(by, k)):
                best[target] = trial
        tick(1)
    return best


@dataclass(frozen=True)
class Curve:
    """Recall against the number of candidates, of one code under one pair of budgets.

    ``choose`` and ``judge`` are the first stage's ranks (from 0) of each query's true neighbours, (queries, k); the
    number of items stands for one that it does not find.
    """

    options: dict[str, Any]
    choose: NDArray[np.int64]
    judge: NDArray[np.int64]
    postings: float
    terms: float

    def cheapest(self, target: float, k: int) -> Trial | None:
        """The trial of fewest candidates that reaches ``target`` on the choosing queries; None if 50 k do not."""
        ranks = np.sort(self.choose.ravel())
        candidates = max(k, int(ranks[math.ceil(target * len(ranks)) - 1]) + 1)
        if candidates > DEEPEST * k:
            return None
        return Trial(
            self.options,
            candidates / k,
            self.postings,
            self.terms,
            float((self.choose < candidates).mean()),
            Interval.of((self.judge < candidates).mean(axis=1)),
        )


def curves(sample: Sample, candidates: Sequence[Candidate], k: int) -> Iterator[Curve]:
    """The curve of each candidate under each pair of its budgets."""
    truths = [exact_top_k(queries.vectors, sample.items.vectors, k)[0] for queries in (sample.choose, sample.judge)]
    for candidate in candidates:
        codec = global_code(**candidate.options).fit(*sample.fit)
        for z in candidate.z:
            documents = codec.budgeted(z, z).encode_documents(sample.items)
            lengths = document_frequencies(documents)
            for query_z in candidate.query_z:
                codec.budgeted(z, query_z)
                queries = [codec.encode_queries(asked) for asked in (sample.choose, sample.judge)]
                ranks = [ranks_of(documents, asked, truth) for asked, truth in zip(queries, truths, strict=True)]
                postings = postings_read(lengths, queries[0])
                options = {**candidate.options, "z": z, "query_z": query_z}
                yield Curve(options, ranks[0], ranks[1], postings, documents.nnz / len(sample.items))


def ranks_of(documents: TermMatrix, queries: TermMatrix, truth: NDArray[np.int64]) -> NDArray[np.int64]:
    """Ranks (from 0) of the items ``truth`` (queries, k) when documents are ordered by (-score, row).

    The number of documents stands for one without a common term, which an engine does not find.
    """
    n = documents.shape[0]
    ranks = np.empty(truth.shape, dtype=np.int64)
    terms = documents.T.tocsr()
    for start in range(0, len(truth), BLOCK):
        scores = (queries[start : start + BLOCK].astype(np.int64) @ terms).toarray()
        for row, true, out in zip(scores, truth[start : start + BLOCK], ranks[start : start + BLOCK], strict=True):
            for i, item in enumerate(true):
                ahead = np.count_nonzero(row > row[item]) + np.count_nonzero(row[:item] == row[item])
                out[i] = ahead if row[item] > 0 else n
    return ranks


def draw(index: Index, find: Modality, queries: Embeddings | None, *, size: int, asked: int, seed: int) -> Sample:
    """A sample of an index: up to ``size`` items of modality ``find``, and up to ``asked`` queries, half to choose by.

    Without ``queries`` they are items of the index: of the other modality if it has any, else of ``find``; then they
    are taken out of what is to be found and of what codes are learned from.
    """
    rng = np.random.default_rng(seed)
    ids: dict[Modality, list[str]] = {m: [] for m in MODALITIES}
    for item in index.items():
        ids[item.modality].append(item.id)
    pools = {m: [ids[m][i] for i in rng.permutation(len(ids[m]))] for m in MODALITIES}
    if queries is None:
        other = MODALITIES[1 - MODALITIES.index(find)]
        asking = other if pools[other] else find
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
    order = rng.permutation(len(queries))
    halves = [Embeddings(queries.modality, queries.vectors[half]) for half in np.array_split(order, 2)]
    return Sample(known[find], halves[0], halves[1], tuple(known.values()))
