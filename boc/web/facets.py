"""Facets: how many hits have which value of a metadata field, and the filters that narrow a search to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from boc.inputs.metadata import values_of
from boc.search.options import SearchOptions
from boc.search.queries import Query
from boc.types import Embeddings, FieldType, Item
from boc.web.live_index import Snapshot

DEPTH = 500  # hits that are counted at most
LINE = 0.5  # confidence from which a hit is probably right
LEAST = 100  # hits that are counted, however few are probably right
VALUES, MANY = 12, 30  # values shown per field; a number with more values is a measure, without facet
KINDS = ("keyword", "boolean", "integer", "date")


def facet_fields(snapshot: Snapshot) -> list[str]:
    """Return the fields that have facets: those with values, but for numbers of too many values among the first
    items."""
    return [
        name for name, kind in snapshot.fields.items() if kind in KINDS and not _is_measure(name, kind, snapshot.begin)
    ]


def facets(snapshot: Snapshot, query: Query, encoded: Sequence[Embeddings], options: SearchOptions) -> dict[str, Any]:
    """Return a ``FacetsAnswer`` to a question whose parts are ``encoded``."""
    confident = None if options.hybrid else 0.0
    whole = replace(options, k=DEPTH, min_confidence=confident, mmr=None, collapse=False, sort=None)
    hits = snapshot.searcher.search_query(query, whole, encoded=encoded)
    sure = sum((hit.confidence or 0) >= LINE for hit in hits)
    items = [hit.item for hit in hits[: DEPTH if options.hybrid else max(sure, LEAST)]]
    types = snapshot.fields
    sample = snapshot.sample(snapshot.searcher.target(options.find)) if "date" in types.values() else []
    counts = [_facet(name, kind, items, sample) for name, kind in types.items() if kind in KINDS]
    return {"hits": len(items), "facets": [each for each in counts if each is not None]}


def _facet(name: str, kind: FieldType, items: Sequence[Item], sample: Sequence[Item]) -> dict[str, Any] | None:
    """Return the facet of a field; None if no item has it, or numbers too many to choose from."""
    counts = Counter(value for item in items for value in dict.fromkeys(_values(item.fields, name, kind)))
    if not counts or _is_measure(name, kind, items):
        return None
    best = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:VALUES]
    if kind in ("date", "integer"):
        best.sort(key=lambda pair: pair[0], reverse=True)
    dates = [value for item in sample for value in values_of(item.fields, name)] if kind == "date" else []
    values = [{"value": str(value), "filters": _filters(name, kind, value), "count": n} for value, n in best]
    ends = {"least": min(dates, default=None), "most": max(dates, default=None)}
    return {"field": name, "values": values, **ends}


def _is_measure(name: str, kind: FieldType, items: Iterable[Item]) -> bool:
    """Return whether a field of numbers has too many values to choose from, as a measure has."""
    if kind != "integer":
        return False
    seen: set[int] = set()
    for item in items:
        seen.update(values_of(item.fields, name))
        if len(seen) > MANY:
            return True
    return False


def _values(fields: Mapping[str, Any], name: str, kind: FieldType) -> Iterator[Any]:
    """Yield the values of an item, years for a date."""
    for value in values_of(fields, name):
        yield int(value[:4]) if kind == "date" else str(value).lower() if kind == "boolean" else value


def _filters(name: str, kind: FieldType, value: Any) -> list[str]:
    if kind != "date":
        return [f"{name}={'=' if str(value).startswith('=') else ''}{value}"]
    after = [f"{name}<{value + 1:04d}-01-01"] if value < 9999 else []
    return [f"{name}>={value:04d}-01-01", *after]
