"""Field types that store term frequencies on a server so that scores are integer dot products."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from itertools import pairwise
from typing import Any

from numpy.typing import NDArray

from boc.types import TermMatrix

from .transport import Json

EXACT = 1 << 24
"""Servers add scores as float32, where integers below this are exact."""


UNUSED = -1
"""The weight of no term."""
DIGITS = "abcdefghijklmnopqrstuvwxyzABCD"  # suffixes of the second and later digits: enough for an int32 in base 2


class Strategy(ABC):
    """A way to store term frequencies in one field so that a query's score is the sum of weight times frequency.

    Frequencies that the field cannot hold, or only at high cost, are written as digits to the base ``base``: digit i of
    term j is the feature "t<j>" (i = 0) or "t<j>a", "t<j>b", ..., whose query weight is base**i times that of the term.
    """

    name: str
    base: int
    path = "terms"
    """The name of the field in a document."""

    def at(self, path: str) -> Strategy:
        """The same strategy for a field of another name."""
        found = copy(self)
        found.path = path
        return found

    @property
    @abstractmethod
    def mapping(self) -> Json:
        """The mapping of the field."""

    @property
    def settings(self) -> Json:
        """The index settings that the field needs."""
        return {}

    @abstractmethod
    def field(self, features: Mapping[str, int]) -> Any:
        """The value of the field ``terms`` of a document."""

    @abstractmethod
    def clause(self, feature: str, weight: int) -> Json:
        """The query whose score is weight times the feature."""

    def query(self, features: Mapping[str, int]) -> Json:
        """The query whose score is the sum over features."""
        return {"bool": {"should": [self.clause(feature, weight) for feature, weight in features.items()]}}

    def matching(self, features: Mapping[str, int]) -> Json:
        """The query that finds what ``query`` finds, at less cost if it may have other scores."""
        return self.query(features)

    def template(self) -> str:
        """The same query as mustache, for a list ``terms`` of objects with ``term`` and ``weight``."""
        clause = json.dumps(self.clause("{{term}}", UNUSED)).replace(str(UNUSED), "{{weight}}")
        return f'{{"bool": {{"should": [{{{{#terms}}}}{clause}, {{{{/terms}}}}{{"match_none": {{}}}}]}}}}'

    def documents(self, terms: TermMatrix) -> list[dict[str, int]]:
        """The features of each row with their values; digits that are 0 are left out."""
        values, bounds = terms.data, terms.indptr.tolist()
        found = [dict(row) for row in _rows(terms.indices, values % self.base, bounds)]
        if values.max(initial=0) < self.base:
            return found
        found = [{feature: digit for feature, digit in row.items() if digit} for row in found]
        for suffix in DIGITS:
            values = values // self.base
            if not values.any():
                break
            for row, more in zip(found, _rows(terms.indices, values % self.base, bounds), strict=True):
                row.update({feature + suffix: digit for feature, digit in more if digit})
        return found

    def digits(self, largest: int) -> int:
        """Number of digits of the frequency ``largest``."""
        return 1 if largest < self.base else 1 + self.digits(largest // self.base)

    def features(self, columns: Sequence[int], weights: Sequence[int], digits: int) -> dict[str, int]:
        """The features of a query and their weights, where frequencies have up to ``digits`` digits."""
        powers = [(suffix, self.base**i) for i, suffix in enumerate(["", *DIGITS][:digits])]
        pairs = zip(columns, weights, strict=True)
        return {f"t{column}{suffix}": weight * power for column, weight in pairs for suffix, power in powers}


def _rows(columns: NDArray[Any], values: NDArray[Any], bounds: Sequence[int]) -> Iterator[Iterator[tuple[str, int]]]:
    """The (feature, value) pairs of each row."""
    flat = values.tolist()
    features = [f"t{column}" for column in columns.tolist()]
    return (zip(features[a:b], flat[a:b], strict=True) for a, b in pairwise(bounds))


class SparseVector(Strategy):
    """Elasticsearch's ``sparse_vector``. Every query disables pruning, which drops frequent terms of low weight."""

    name = "sparse_vector"
    base = 512  # features keep 9 significant bits

    @property
    def mapping(self) -> Json:
        return {"type": "sparse_vector"}

    def field(self, features: Mapping[str, int]) -> dict[str, int]:
        return dict(features)

    def clause(self, feature: str, weight: int) -> Json:
        return self.query({feature: weight})

    def query(self, features: Mapping[str, int]) -> Json:
        return {"sparse_vector": {"field": self.path, "query_vector": dict(features), "prune": False}}

    def template(self) -> str:
        terms = '{ {{#terms}}"{{term}}": {{weight}}, {{/terms}}"-": 1}'  # no item has the last one
        return json.dumps(self.query({"@": 1})).replace('{"@": 1}', terms)


class RankFeatures(Strategy):
    """``rank_features``, queried with ``linear``: the default, saturation, depends on the other documents."""

    name = "rank_features"
    base = 512  # features keep 9 significant bits

    @property
    def mapping(self) -> Json:
        return {"type": "rank_features"}

    def field(self, features: Mapping[str, int]) -> dict[str, int]:
        return dict(features)

    def clause(self, feature: str, weight: int) -> Json:
        return {"rank_feature": {"field": f"{self.path}.{feature}", "linear": {}, "boost": weight}}


class Text(Strategy):
    """Surrogate text under a similarity that is the dot product: query boost times term frequency.

    A frequency is a number of repeated words, so a small base keeps the text short.
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
        return {
            "analysis": {"analyzer": {"boc_words": {"type": "custom", "tokenizer": "whitespace"}}},
            "similarity": {
                "boc_dot": {"type": "scripted", "script": {"source": "return query.boost * doc.freq;"}},
            },
        }

    def field(self, features: Mapping[str, int]) -> str:
        return " ".join(" ".join([feature] * value) for feature, value in features.items())

    def clause(self, feature: str, weight: int) -> Json:
        return {"term": {self.path: {"value": feature, "boost": weight}}}

    def matching(self, features: Mapping[str, int]) -> Json:
        return {"terms": {self.path: list(features)}}


class CountedText(Text):
    """Surrogate text where the server reads the frequency behind a word: "t5|37"."""

    name = "counted_text"
    base = EXACT

    @property
    def mapping(self) -> Json:
        return {**super().mapping, "analyzer": "boc_counts"}

    @property
    def settings(self) -> Json:
        found = super().settings
        found["analysis"]["filter"] = {"boc_count": {"type": "delimited_term_freq", "delimiter": "|"}}
        found["analysis"]["analyzer"]["boc_counts"] = {
            "type": "custom",
            "tokenizer": "whitespace",
            "filter": ["boc_count"],
        }
        return found

    def field(self, features: Mapping[str, int]) -> str:
        return " ".join(f"{feature}|{value}" for feature, value in features.items())


class BinaryText(Text):
    """The binary digits of frequencies as words, under a similarity that is the boost of a word.

    It needs no setting of the index, no script and no module, so it can be added to any index. A query has a clause per
    digit.
    """

    name = "binary_text"
    base = 2

    @property
    def mapping(self) -> Json:
        words = {"type": "text", "analyzer": "whitespace", "search_analyzer": "whitespace"}
        return {**words, "index_options": "docs", "norms": False, "similarity": "boolean"}

    @property
    def settings(self) -> Json:
        return {}

    def field(self, features: Mapping[str, int]) -> str:
        return " ".join(features)


STRATEGIES: dict[str, Strategy] = {
    s.name: s for s in (SparseVector(), RankFeatures(), CountedText(), Text(), BinaryText())
}


def preferred(names: Sequence[str], largest: int) -> list[str]:
    """The names sorted by the number of digits for frequencies up to about ``largest``, fewest first, else
    unchanged."""
    return sorted(names, key=lambda name: STRATEGIES[name].digits(largest))
