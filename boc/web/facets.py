"""Facets: how many hits have which value of a metadata field, and the filters that narrow a search
to it."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from boc.inputs.metadata import values_of
from boc.search.options import SearchOptions
from boc.search.queries import Query
from boc.types import Embeddings, FieldType, Item
from boc.web.live_index import LibrarySnapshot

DEPTH = 500  # hits that are counted at most
LINE = 0.5  # confidence from which a hit is probably right
LEAST = 100  # hits that are counted, however few are probably right
# usual values of a field, and those counted; a number with more is a measure, without facet
VALUES = 12
MANY = 30
TECHNICAL = {
    "width",
    "height",
    "orientation",
    "size",
}  # facts of files by which nobody looks for a picture
KINDS = ("keyword", "boolean", "integer", "date")


def facet_fields(snapshot: LibrarySnapshot) -> dict[str, list[str]]:
    """Return the fields that have facets, those that divide the first items of the index, and their
    usual values."""
    fields = {}
    for name, kind in _offered(snapshot):
        counts = Counter(
            value for item in snapshot.begin for value in _values(item.fields, name, kind)
        )
        if _divides(kind, counts):
            fields[name] = [str(value) for value, _ in counts.most_common(VALUES)]
    return fields


def _offered(snapshot: LibrarySnapshot) -> list[tuple[str, FieldType]]:
    return [
        (name, kind)
        for name, kind in snapshot.fields.items()
        if kind in KINDS and name not in TECHNICAL
    ]


def facets(
    snapshot: LibrarySnapshot,
    query: Query,
    encoded: Sequence[Embeddings],
    options: SearchOptions,
) -> dict[str, Any]:
    """Return a ``FacetsAnswer`` to a question whose parts are ``encoded``."""
    confident = None if options.hybrid else 0.0
    whole = replace(options, k=DEPTH, min_confidence=confident, collapse=False, sort=None)
    hits = snapshot.searcher.search_query(query, whole, encoded=encoded)
    sure = sum((hit.confidence or 0) >= LINE for hit in hits)
    items = [hit.item for hit in hits[: DEPTH if options.hybrid else max(sure, LEAST)]]
    counts = [_facet(name, kind, items) for name, kind in _offered(snapshot)]
    return {"hits": len(items), "facets": [each for each in counts if each is not None]}


def _facet(name: str, kind: FieldType, items: Sequence[Item]) -> dict[str, Any] | None:
    """Return the facet of a field; None without values, and for a measure."""
    counts = Counter(
        value for item in items for value in dict.fromkeys(_values(item.fields, name, kind))
    )
    if not counts or (kind == "integer" and len(counts) > MANY):
        return None
    best = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:MANY]
    if kind in ("date", "integer"):
        best.sort(key=lambda pair: pair[0], reverse=True)
    values = [
        {"value": str(value), "filters": _filters(name, kind, value), "count": n}
        for value, n in best
    ]
    return {"field": name, "values": values}


def _divides(kind: FieldType, values: Collection[Any]) -> bool:
    """Return whether a field has values to choose from: two at least, and numbers not as many as a
    measure has."""
    return len(values) > 1 and (kind != "integer" or len(values) <= MANY)


def _values(fields: Mapping[str, Any], name: str, kind: FieldType) -> Iterator[Any]:
    """Yield the values of an item, years for a date."""
    for value in values_of(fields, name):
        yield (
            int(value[:4]) if kind == "date" else str(value).lower() if kind == "boolean" else value
        )


def _filters(name: str, kind: FieldType, value: Any) -> list[str]:
    if kind != "date":
        return [f"{name}={'=' if str(value).startswith('=') else ''}{value}"]
    after = [f"{name}<{value + 1:04d}-01-01"] if value < 9999 else []
    return [f"{name}>={value:04d}-01-01", *after]
