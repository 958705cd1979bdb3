"""How terms are stored on a server: fields whose scores are integer dot products, and how a query asks for them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from numpy.typing import NDArray

from boc.types import TermMatrix

from .transport import Json

EXACT = 1 << 24
"""Servers add scores as float32: whole numbers below are exact."""


DIGITS = "abcdefgh"  # behind the first


class Strategy(ABC):
    """A way to store term frequencies in one field so that a query's score is the sum of weight times frequency.

    Frequencies that the field cannot hold, or only dearly, are written as digits to the base ``base``: digit i of term
    j is the feature "t<j>" (i = 0) or "t<j>a", "t<j>b", ..., and a query asks for it with base**i times its weight.
    """

    name: str
    base: int

    @property
    @abstractmethod
    def mapping(self) -> Json:
        """Of the field ``terms``."""

    @property
    def settings(self) -> Json:
        """Of the index."""
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

    def documents(self, terms: TermMatrix) -> list[dict[str, int]]:
        """The features of each row with their values; digits of 0 are not there."""
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
        """How many digits a frequency of ``largest`` has."""
        return 1 if largest < self.base else 1 + self.digits(largest // self.base)

    def features(self, columns: Sequence[int], weights: Sequence[int], digits: int) -> dict[str, int]:
        """What a query asks for where frequencies have up to so many digits."""
        powers = [(suffix, self.base**i) for i, suffix in enumerate(["", *DIGITS][:digits])]
        pairs = zip(columns, weights, strict=True)
        return {f"t{column}{suffix}": weight * power for column, weight in pairs for suffix, power in powers}


def _rows(columns: NDArray[Any], values: NDArray[Any], bounds: Sequence[int]) -> Iterator[Iterator[tuple[str, int]]]:
    """(feature, value) pairs of each row."""
    flat = values.tolist()
    features = [f"t{column}" for column in columns.tolist()]
    return (zip(features[a:b], flat[a:b], strict=True) for a, b in pairwise(bounds))


class SparseVector(Strategy):
    """Elasticsearch's ``sparse_vector``. Pruning would drop frequent terms of low weight, so every query says no."""

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
        return {"sparse_vector": {"field": "terms", "query_vector": dict(features), "prune": False}}


class RankFeatures(Strategy):
    """``rank_features``, asked by ``linear``: the default, saturation, depends on the other documents."""

    name = "rank_features"
    base = 512  # as above

    @property
    def mapping(self) -> Json:
        return {"type": "rank_features"}

    def field(self, features: Mapping[str, int]) -> dict[str, int]:
        return dict(features)

    def clause(self, feature: str, weight: int) -> Json:
        return {"rank_feature": {"field": f"terms.{feature}", "linear": {}, "boost": weight}}


class Text(Strategy):
    """Surrogate text under a similarity that is the dot product: query boost times term frequency.

    The server counts words one by one, so digits keep them few.
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
        return {"term": {"terms": {"value": feature, "boost": weight}}}


class CountedText(Text):
    """The same where the server reads the frequency behind a word: "t5|37"."""

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


STRATEGIES: dict[str, Strategy] = {s.name: s for s in (SparseVector(), RankFeatures(), CountedText(), Text())}


def preferred(names: Sequence[str], largest: int) -> list[str]:
    """Ways to store frequencies up to about ``largest``: those that need fewest digits first, then as they come."""
    return sorted(names, key=lambda name: STRATEGIES[name].digits(largest))
