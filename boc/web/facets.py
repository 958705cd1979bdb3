"""Count the hits for each value of a metadata field, and build filters that restrict a search to a
value."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from boc.inputs.metadata import OPERATORS, values_of
from boc.types import FieldType, Item
from boc.web.live_index import LibrarySnapshot

DEPTH = 100  # maximum number of hits that are counted
MANY = 30  # maximum number of distinct values; numbers with more values are measurements


def facet_fields(snapshot: LibrarySnapshot) -> dict[str, list[str]]:
    """Return the fields that have facets, with their most frequent values. A field has a facet if
    the first items of the index differ in its values."""
    return {
        name: [str(value) for value, _ in counts.most_common(12)]
        for name, _, counts in count_values(snapshot, snapshot.begin)
        if len(counts) > 1
    }


def count_values(
    snapshot: LibrarySnapshot,
    items: Sequence[Item],
) -> Iterator[tuple[str, FieldType, Counter[Any]]]:
    """Yield the name, the type, and the number of items per value (for dates, per year) of each
    field that may have a facet. Measurements are skipped, as are file properties by which people do
    not search."""
    for name, kind in snapshot.fields.items():
        if name in ("width", "height", "orientation", "size"):
            continue
        if kind in ("keyword", "boolean", "integer", "date"):
            counts = Counter[Any]()
            for item in items:
                values: Iterable[Any] = values_of(item.fields, name)
                if kind == "date":
                    values = (int(value[:4]) for value in values)
                elif kind == "boolean":
                    values = (str(value).lower() for value in values)
                counts.update(dict.fromkeys(values, 1))
            if kind != "integer" or len(counts) <= MANY:
                yield name, kind, counts


def facets(snapshot: LibrarySnapshot, items: Sequence[Item]) -> dict[str, Any]:
    """Count the ``items`` for each value of each field."""
    answer = []
    for name, kind, counts in count_values(snapshot, items):
        best = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:MANY]
        if kind in ("date", "integer"):
            best.sort(reverse=True)
        values = []
        for value, count in best:
            # The "=" is doubled if the value itself begins with an operator, and a bar in a value
            # is escaped with a backslash.
            typed = str(value).replace("|", r"\|")
            sign = "==" if typed[0] in OPERATORS else "="
            filters = [f"{name}{sign}{typed}"]
            if kind == "date":
                filters = [f"{name}>={value:04d}-01-01"]
                if value < 9999:
                    filters.append(f"{name}<{value + 1:04d}-01-01")
            values.append({"value": str(value), "filters": filters, "count": count})
        if values:
            answer.append({"field": name, "values": values})
    return {"hits": len(items), "facets": answer}
