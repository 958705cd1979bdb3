"""Define field types that store term frequencies on a server so that scores are integer dot
products, and enforce the clause limit."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from numpy.typing import NDArray

from boc.errors import note
from boc.types import TermMatrix

from .transport import Json

EXACT = 1 << 24
"""Servers add scores as float32, in which integers below this limit are exact."""
SAFE = 1000
"""Number of clauses that every server accepts; the lowest limit is 1,024, including filters."""
DIGITS = "abcde"
"""Suffixes of the second and later digits: enough for an int32 in base 64."""


class Strategy(ABC):
    """Storage of term frequencies in one field, such that a query's score is the sum of weight
    times frequency.

    Frequencies that the field cannot store, or only at a high cost, are written as digits to the
    base ``base``: digit i of term j is the feature "t<j>" (i = 0) or "t<j>a", "t<j>b", ..., whose
    query weight is base**i times the weight of the term.
    """

    name: str
    base = 512
    """The default suits fields of weighted features, which keep 9 significant bits."""
    path = "terms"
    """The name of the field in a document."""

    def at(self, path: str) -> Strategy:
        """Return the same strategy for a field with another name."""
        other = copy(self)
        other.path = path
        return other

    @property
    def mapping(self) -> Json:
        """Return the field's mapping."""
        return {"type": self.name}

    @property
    def settings(self) -> Json:
        """Return the index settings that the field needs."""
        return {}

    def field(self, features: Mapping[str, int]) -> Any:
        """Return the value of the field ``terms`` of a document."""
        return features

    @abstractmethod
    def clause(self, feature: str, weight: int) -> Json:
        """Return the query whose score is weight times the feature."""

    def query(self, features: Mapping[str, int]) -> Json:
        """Return the query whose score is the sum over features."""
        clauses = [self.clause(feature, weight) for feature, weight in features.items()]
        return {"bool": {"should": clauses}}

    def matching(self, features: Mapping[str, int]) -> Json:
        """Return a query with the same matches as ``query``, at a lower cost if scores may
        differ."""
        return self.query(features)

    def documents(self, terms: TermMatrix) -> list[dict[str, int]]:
        """Return each row's features with their values; digits that are 0 are left out."""
        bounds = terms.indptr.tolist()
        suffixes = ["", *DIGITS][: self.digits(int(terms.data.max(initial=0)))]
        if len(suffixes) == 1:
            return [dict(row) for row in _rows(terms.indices, terms.data, bounds)]
        rows: list[dict[str, int]] = [{} for _ in bounds[1:]]
        for i, suffix in enumerate(suffixes):
            digits = _rows(terms.indices, terms.data // self.base**i % self.base, bounds)
            for row, pairs in zip(rows, digits, strict=True):
                row.update({feature + suffix: digit for feature, digit in pairs if digit})
        return rows

    def digits(self, largest: int) -> int:
        """Return the number of digits needed for the frequency ``largest``."""
        return 1 if largest < self.base else 1 + self.digits(largest // self.base)

    def features(
        self,
        columns: Sequence[int],
        weights: Sequence[int],
        digits: int,
    ) -> dict[str, int]:
        """Return a query's features and their weights, if frequencies have up to ``digits``
        digits."""
        powers = {suffix: self.base**i for i, suffix in enumerate(["", *DIGITS][:digits])}
        return {
            f"t{column}{suffix}": weight * power
            for column, weight in zip(columns, weights, strict=True)
            for suffix, power in powers.items()
        }


def _rows(
    columns: NDArray[Any],
    values: NDArray[Any],
    bounds: Sequence[int],
) -> Iterator[Iterator[tuple[str, int]]]:
    """Return the (feature, value) pairs of each row."""
    flat = values.tolist()
    features = [f"t{column}" for column in columns.tolist()]
    return (zip(features[a:b], flat[a:b], strict=True) for a, b in pairwise(bounds))


class SparseVector(Strategy):
    """Elasticsearch's ``sparse_vector``. Every query disables pruning, which would drop frequent
    terms of low weight."""

    name = "sparse_vector"

    def clause(self, feature: str, weight: int) -> Json:
        return self.query({feature: weight})

    def query(self, features: Mapping[str, int]) -> Json:
        body = {"field": self.path, "query_vector": dict(features), "prune": False}
        return {"sparse_vector": body}


class RankFeatures(Strategy):
    """Field type ``rank_features``, queried with ``linear``. The default function, ``saturation``,
    gives scores that depend on other documents."""

    name = "rank_features"

    def clause(self, feature: str, weight: int) -> Json:
        return {"rank_feature": {"field": f"{self.path}.{feature}", "linear": {}, "boost": weight}}


class Text(Strategy):
    """Surrogate text under a similarity equal to the dot product: query boost times term frequency.

    A frequency is stored as the number of times a word is repeated, so a small base keeps the text
    short.
    """

    name = "text"
    base = 64

    @property
    def mapping(self) -> Json:
        return {
            "type": "text",
            "analyzer": "boc_words",
            "search_analyzer": "boc_words",
            "index_options": "freqs",
            "norms": False,
            "similarity": "boc_dot",
        }

    @property
    def settings(self) -> Json:
        words = {"type": "custom", "tokenizer": "whitespace"}
        script = {"source": "return query.boost * doc.freq;"}
        return {
            "analysis": {"analyzer": {"boc_words": words}},
            "similarity": {"boc_dot": {"type": "scripted", "script": script}},
        }

    def field(self, features: Mapping[str, int]) -> str:
        return " ".join(" ".join([feature] * value) for feature, value in features.items())

    def clause(self, feature: str, weight: int) -> Json:
        return {"term": {self.path: {"value": feature, "boost": weight}}}

    def matching(self, features: Mapping[str, int]) -> Json:
        return {"terms": {self.path: list(features)}}


class CountedText(Text):
    """Surrogate text in which the server reads the frequency after a word: "t5|37"."""

    name = "counted_text"
    base = EXACT

    @property
    def mapping(self) -> Json:
        return {**super().mapping, "analyzer": "boc_counts"}

    @property
    def settings(self) -> Json:
        settings = super().settings
        analysis = settings["analysis"]
        analysis["filter"] = {"boc_count": {"type": "delimited_term_freq", "delimiter": "|"}}
        words = analysis["analyzer"]["boc_words"]
        analysis["analyzer"]["boc_counts"] = {**words, "filter": ["boc_count"]}
        return settings

    def field(self, features: Mapping[str, int]) -> str:
        return " ".join(f"{feature}|{value}" for feature, value in features.items())


STRATEGIES: dict[str, Strategy] = {
    s.name: s for s in (SparseVector(), RankFeatures(), CountedText(), Text())
}


@dataclass
class ClauseBudget:
    """Find and enforce the clause limit of a server. No server reports its limit, so it is tested
    when a query exceeds ``SAFE``.

    ``takes`` tests whether the server accepts a query with a number of clauses; ``label`` is the
    server's address for messages.
    """

    takes: Callable[[int], bool]
    label: str
    most: int = SAFE
    too_many: int = sys.maxsize

    def fit(self, features: Mapping[str, int], others: int) -> dict[str, int]:
        """Return the features that fit into a query next to ``others`` clauses: all features, or
        the largest with a warning."""
        clauses = len(features) + others
        if self.most < clauses < self.too_many:
            if self.takes(clauses):
                self.most = clauses
            else:
                self.too_many = clauses
        if clauses <= self.most:
            return dict(features)
        limit = self.most - others
        note(
            f"a query of {len(features)} clauses was cut to the {limit} with the largest weights, "
            f"the limit of {self.label}",
            "rebuild the index with fewer terms per query (<--code NAME:Z/QUERY_Z>), or raise "
            "indices.query.bool.max_clause_count where the server has it",
            level=4,
        )
        return strongest(features, limit)


def strongest(features: Mapping[str, int], limit: int) -> dict[str, int]:
    """Return the ``limit`` features with the largest weights; of equal weights, the earlier feature
    is kept."""
    ranked = sorted(features, key=features.__getitem__, reverse=True)
    return {each: features[each] for each in ranked[:limit]}
