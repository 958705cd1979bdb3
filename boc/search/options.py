"""Search options and their validation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, TypeAlias, TypedDict

from boc.errors import BocError
from boc.inputs.metadata import check_filter, parse_filter
from boc.names import HYBRIDS, MODALITIES, Hybrid, Metric, Modality
from boc.paths import nfc
from boc.rerank import check_metric
from boc.types import FieldType, Filter

if TYPE_CHECKING:
    from typing_extensions import Unpack


Filters: TypeAlias = str | Filter | Sequence[str | Filter] | None
"""One or more conditions on metadata fields: strings such as "width>10", or Filter values."""

MOST = 2**31  # upper limit on the number of hits per query

_KINDS: dict[str, tuple[type, str]] = {
    "k": (Integral, "a whole number, such as 10"),
    "rm": (Real, "a number, such as 5"),
    "find": (str, "image or text"),
    "rerank": (str, "the name of a metric, such as dot"),
    "filters": (object, ""),
    "hybrid": (str, "rrf"),
    "query_z": (Integral, "a whole number, such as 32"),
    "sort": (str, "the name of a field, such as -taken"),
    "collapse": (bool, "True or False"),
}
"""The type of each option, and a description of valid values."""


class MoreKeywords(TypedDict, total=False):
    """Keyword arguments for the fields of ``SearchOptions`` except ``k``."""

    rm: float | None
    find: Modality | None
    rerank: Metric | None
    filters: Filters
    hybrid: Hybrid | None
    query_z: int | None
    sort: str | None
    collapse: bool


class SearchKeywords(MoreKeywords, total=False):
    """Keyword arguments for all fields of ``SearchOptions``."""

    k: int


@dataclass(frozen=True)
class SearchOptions:
    """Search options. Raises BocError for values that are out of range or mutually exclusive.

    Parameters
    ----------
    k : int, default=10
        Number of hits per query, at least 1.
    rm : float, optional
        Number of candidates per hit, at least 1: the best ``rm`` * k candidates are re-ranked.
        Default: the value of the index.
    find : "image" or "text", optional
        Modality of the hits; default: "image" if the index contains pictures.
    rerank : str, optional
        Metric for re-ranking, one of ``boc.names.METRICS``; default: the metric of the index.
    filters : str, Filter, or sequence of these
        Conditions on metadata fields, such as "width>10". Hits must meet all conditions, except
        that if no item meets all "=" conditions on the same field, one of them is sufficient.
    hybrid : "rrf", optional
        Combine the re-ranked hits with the hits of a BM25 search for the words of the sentence, by
        reciprocal rank fusion.
    query_z : int, optional
        Number of query terms to keep, at least 1; the terms with the largest weights are kept.
        Default: all terms.
    sort : str, optional
        Metadata field by which the hits are sorted, in ascending order, or in descending order
        after a minus, as in "-taken". The hits are still the ``k`` items with the best scores; hits
        without a value come last. By default, hits are sorted by score.
    collapse : bool, default=False
        Group near-duplicates under the best hit of each group.
    """

    k: int = 10
    rm: float | None = None
    find: Modality | None = None
    rerank: Metric | None = None
    filters: Filters = ()
    hybrid: Hybrid | None = None
    query_z: int | None = None
    sort: str | None = None
    collapse: bool = False

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is None and name != "k":
                continue
            kind, rule = _KINDS[name]
            if not isinstance(value, kind) or (kind in (Integral, Real) and type(value) is bool):
                raise BocError(f"{name} must be {rule}, got {value!r}")
        if self.find is not None and self.find not in MODALITIES:
            raise BocError(f"find must be image or text, got {self.find!r}")
        if not 1 <= self.k < MOST:
            rule = "at least 1" if self.k < 1 else f"less than {MOST:,}"
            raise BocError(f"k must be {rule}, got {self.k}; request at least one hit")
        if self.rm is not None and not 1 <= self.rm < math.inf:
            raise BocError(
                f"rm must be at least 1 (candidates per hit), got {self.rm:g}; leave it out for "
                "the index's",
            )
        if self.query_z is not None and self.query_z < 1:
            raise BocError(
                f"query_z must be at least 1 (query terms to keep), got {self.query_z}; leave it "
                "out",
            )
        if self.rerank is not None:
            check_metric(self.rerank)
        if self.hybrid is not None and self.hybrid not in HYBRIDS:
            raise BocError(f"unknown hybrid search {self.hybrid!r}; known: {', '.join(HYBRIDS)}")

    @classmethod
    def of(
        cls,
        options: SearchOptions | None,
        /,
        **keywords: Unpack[SearchKeywords],
    ) -> SearchOptions:
        """Return ``options`` with fields overridden by keyword arguments."""
        if options is not None and not isinstance(options, cls):
            raise BocError(
                f"options must be SearchOptions, got {type(options).__name__}; or pass keyword "
                "arguments such as k=5",
            )
        if options is None:
            return cls(**keywords)
        return replace(options, **keywords) if keywords else options

    @property
    def of_vectors(self) -> list[str]:
        """Return the names of the active options that need the query vector."""
        return self._active(
            "rm",
            "rerank",
            "hybrid",
            "query_z",
            "collapse",
        )

    @property
    def on_hits(self) -> list[str]:
        """Return the names of the active options that need complete hits rather than only ids and
        scores."""
        return self._active("hybrid", "sort", "collapse")

    def _active(self, *names: str) -> list[str]:
        return [name for name in names if getattr(self, name) not in (None, False)]


def parse_filters(filters: Filters, fields: Mapping[str, FieldType]) -> tuple[Filter, ...]:
    """Parse filters for an index that declares ``fields``. For an invalid filter, raises a BocError
    that explains how to write filters."""
    if filters is None:
        return ()
    each = (filters,) if isinstance(filters, (str, Filter)) else filters
    if not isinstance(each, Sequence):
        raise BocError(
            f"filters must be strings such as 'width>10', or boc.Filter values, got {filters!r}",
        )
    values = []
    for one in each:
        if isinstance(one, str):
            values.append(parse_filter(one, fields))
        elif isinstance(one, Filter):
            values.append(check_filter(one, fields))
        else:
            raise BocError(
                f"a filter must be a string such as 'width>10', or a boc.Filter, got {one!r}",
            )
    return tuple(values)


def check_texts(texts: Sequence[str]) -> list[str]:
    """Return sentences in NFC. Raises BocError unless ``texts`` is a list of sentences."""
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        raise BocError(f"sentences must be a list, got {texts!r}; write [{texts!r}]")
    for text in texts:
        check_sentence(text)
    return list(map(nfc, texts))


def check_sentence(text: object) -> None:
    """Raise BocError unless ``text`` is a sentence that can be encoded as UTF-8."""
    if not isinstance(text, str) or text.encode(errors="ignore").decode() != text:
        raise BocError(f"a sentence must be text, got {text!r}; describe the picture")
    if not text.strip():
        raise BocError("the sentence is empty; describe the picture")
