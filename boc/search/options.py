"""The options of a search."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypedDict

from boc.errors import BocError
from boc.names import HYBRIDS, Hybrid, Metric, Modality
from boc.rerank import check_metric
from boc.types import Filter

if TYPE_CHECKING:
    from typing_extensions import Unpack


class SearchKeywords(TypedDict, total=False):
    """The fields of ``SearchOptions`` as keyword arguments."""

    k: int
    rm: float | None
    find: Modality | None
    rerank: Metric | None
    filters: Sequence[Filter]
    hybrid: Hybrid | None
    words_weight: float | None
    query_z: int | None
    sort: str | None
    min_confidence: float | None
    mmr: float | None
    collapse: bool


@dataclass(frozen=True)
class SearchOptions:
    """The options of a search. BocError for a value out of its range, and for values that exclude each other.

    Parameters
    ----------
    k : int, default=10
        Number of hits per query, at least 1.
    rm : float, optional
        Candidates per hit: ``rm`` * k candidates of the inverted index are re-ranked. At least 1; default: that of the
        index.
    find : "image" or "text", optional
        Modality of the hits; default: "image" if the index has pictures.
    rerank : str, optional
        How candidates are re-ranked, one of ``boc.names.METRICS``; default: that of the index.
    filters : sequence of Filter
        Conditions on metadata fields; all must hold.
    hybrid : "rrf" or "sum", optional
        Combine with BM25 over the words of a sentence. "rrf" fuses the re-ranked hits with those of BM25 by reciprocal
        rank; "sum" ranks, without re-ranking, by the score of the terms plus ``words_weight`` times BM25.
    words_weight : float, optional
        Greater than 0; required by "sum", and for "sum" only. BM25 scores are around 10, term scores often above
        10,000.
    query_z : int, optional
        Number of terms of largest weight kept of a query, at least 1; default: all.
    sort : str, optional
        Order the hits by this metadata field, ascending, or descending after a minus: "-taken". The hits themselves are
        the same, the ``k`` of the best scores; those without a value come last. Default: by score.
    min_confidence : float, optional
        Give each hit a confidence, in 0 to 1, and leave out those below this one: 0 keeps all, 0.5 is where a hit is
        as likely right as not. Not for hybrid searches.
    mmr : float, optional
        Choose hits by maximal marginal relevance: 1 keeps the ranking, 0 ranks by difference only.
    collapse : bool, default=False
        Group near-duplicates under the best of them.
    """

    k: int = 10
    rm: float | None = None
    find: Modality | None = None
    rerank: Metric | None = None
    filters: Sequence[Filter] = ()
    hybrid: Hybrid | None = None
    words_weight: float | None = None
    query_z: int | None = None
    sort: str | None = None
    min_confidence: float | None = None
    mmr: float | None = None
    collapse: bool = False

    def __post_init__(self) -> None:
        if self.k < 1:
            raise BocError(f"k must be at least 1, got {self.k}; ask for one hit or more")
        if self.rm is not None and not 1 <= self.rm < math.inf:
            raise BocError(f"rm must be at least 1 (candidates per hit), got {self.rm:g}; leave it out for the index's")
        if self.query_z is not None and self.query_z < 1:
            raise BocError(f"query_z must be at least 1 (terms kept of a query), got {self.query_z}; leave it out")
        if self.rerank is not None:
            check_metric(self.rerank)
        for name, share in (("min_confidence", self.min_confidence), ("mmr", self.mmr)):
            if share is not None and not 0 <= share <= 1:
                raise BocError(f"{name} must be from 0 to 1, got {share:g}; 0.5 is a common one")
        if self.hybrid is not None and self.min_confidence is not None:
            raise BocError("a hybrid search counts words, whose scores tell no confidence; leave one of the two out")
        if self.hybrid is not None or self.words_weight is not None:
            self._check_hybrid()

    @classmethod
    def of(cls, options: SearchOptions | None, **keywords: Unpack[SearchKeywords]) -> SearchOptions:
        """``options`` with the keyword arguments replaced."""
        if options is None:
            return cls(**keywords)
        return replace(options, **keywords) if keywords else options

    @property
    def of_vectors(self) -> list[str]:
        """Names of the options given that need the vector of a query."""
        return self._given("rm", "rerank", "hybrid", "words_weight", "query_z", "min_confidence", "mmr", "collapse")

    @property
    def on_hits(self) -> list[str]:
        """Names of the options given that work on hits, and not on ids and scores."""
        return self._given("hybrid", "sort", "min_confidence", "mmr", "collapse")

    def _given(self, *names: str) -> list[str]:
        return [name for name in names if getattr(self, name) not in (None, False)]

    def _check_hybrid(self) -> None:
        weight = self.words_weight
        if self.hybrid is None:
            raise BocError("words_weight is for the hybrid search sum; add hybrid sum, or leave it out")
        if self.hybrid not in HYBRIDS:
            raise BocError(f"no hybrid search {self.hybrid!r}; known: {', '.join(HYBRIDS)}")
        if self.hybrid == "rrf":
            if weight is not None:
                raise BocError("rrf fuses ranks, which have no weight; leave words_weight out, or take hybrid sum")
            return
        if self.rerank is not None:
            raise BocError("the hybrid search sum does not re-rank; leave rerank out, or take hybrid rrf")
        if weight is None or not 0 < weight < math.inf:
            raise BocError(
                f"hybrid sum needs words_weight above 0, got {weight}: BM25 scores are around 10, term scores often "
                "above 10,000; choose a weight that balances them"
            )
