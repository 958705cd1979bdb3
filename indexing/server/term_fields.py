"""Define field types that store term frequencies on a server so that scores are integer dot
products, and keep queries within the server's clause limit."""

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
"""Servers add scores as float32 numbers, which represent integers below this limit exactly."""
SAFE = 1000
"""Number of clauses that all servers accept. The lowest limit is 1,024, including filters."""
DIGITS = "abcde"
"""Suffixes for the second and later digits, which are sufficient for an int32 in base 64."""


class Strategy(ABC):
    """Storage of term frequencies in a field, such that the score of a query is the sum of the
    weights times the frequencies.

    Frequencies that the field cannot store, or can store only at a high cost, are split into digits
    in base ``base``. Digit i of term j is the feature "t<j>" (i = 0) or "t<j>a", "t<j>b", ..., with
    a query weight of base**i times the weight of the term.
    """

    name: str
    base = 512
    """The default is suitable for fields of weighted features, which store 9 significant bits."""
    path = "terms"
    """Name of the field in a document."""

    def at(self, path: str) -> Strategy:
        """Return the same strategy for a field with another name."""
        other = copy(self)
        other.path = path
        return other

    @property
    def mapping(self) -> Json:
        """Return the mapping of the field."""
        return {"type": self.name}

    @property
    def settings(self) -> Json:
        """Return the index settings that the field requires."""
        return {}

    def field(self, features: Mapping[str, int]) -> Any:
        """Return the value of the field ``terms`` for a document."""
        return features

    @abstractmethod
    def clause(self, feature: str, weight: int) -> Json:
        """Return a query with a score of ``weight`` times the value of the feature."""

    def query(self, features: Mapping[str, int]) -> Json:
        """Return a query that sums the scores of all features."""
        clauses = [self.clause(feature, weight) for feature, weight in features.items()]
        return {"bool": {"should": clauses}}

    def matching(self, features: Mapping[str, int]) -> Json:
        """Return a query with the same matches as ``query``, but possibly different scores if that
        makes it faster."""
        return self.query(features)

    def documents(self, terms: TermMatrix) -> list[dict[str, int]]:
        """Return the features and values for each row. Digits that are 0 are omitted."""
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
        """Return the number of digits required for the frequency ``largest``."""
        return 1 if largest < self.base else 1 + self.digits(largest // self.base)

    def features(
        self,
        columns: Sequence[int],
        weights: Sequence[int],
        digits: int,
    ) -> dict[str, int]:
        """Return the features of a query and their weights, for frequencies of up to ``digits``
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
    """Return the (feature, value) pairs for each row."""
    flat = values.tolist()
    features = [f"t{column}" for column in columns.tolist()]
    return (zip(features[a:b], flat[a:b], strict=True) for a, b in pairwise(bounds))


class SparseVector(Strategy):
    """Field type ``sparse_vector`` of Elasticsearch. All queries disable pruning, which would drop
    frequent terms with low weights."""

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
    """Surrogate text with a similarity that computes the dot product, as query boost times term
    frequency.

    A frequency is stored by repeating a word this number of times, so a small base keeps the text
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
    """Surrogate text in which each word is followed by its frequency, as in "t5|37"."""

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
    """Clause limit of a server. Servers do not report their limit, so it is determined by tests
    when a query first exceeds ``SAFE``.

    ``takes`` tests whether the server accepts a query with a given number of clauses. ``label`` is
    the server's address in messages.
    """

    takes: Callable[[int], bool]
    label: str
    most: int = SAFE
    too_many: int = sys.maxsize

    def fit(self, features: Mapping[str, int], others: int) -> dict[str, int]:
        """Return the features that fit in a query with ``others`` other clauses. If some do not
        fit, keep the features with the largest weights and issue a warning."""
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
    """Return the ``limit`` features with the largest weights. If weights are equal, the earlier
    feature is kept."""
    ranked = sorted(features, key=features.__getitem__, reverse=True)
    return {each: features[each] for each in ranked[:limit]}
