"""The order of hits by a metadata field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from boc.errors import BocError
from boc.types import FieldType, Hit


def check_sort(sort: str, types: Mapping[str, FieldType]) -> str:
    """Return ``sort`` if it is a field of ``types``, after a minus to begin with the largest value. BocError names the
    known fields, or the rule."""
    name = sort.removeprefix("-")
    if name not in types:
        there = f"it has: {', '.join(sorted(types))}" if types else "it has none; index with --metadata FILE"
        raise BocError(f"hits cannot be sorted by {name!r}, which is no metadata field of the index ({there})")
    if types[name] == "text":
        raise BocError(f"hits cannot be sorted by {name}, which is of type text; choose a field of another type")
    return sort


def by_field(hits: Sequence[Hit], sort: str) -> list[Hit]:
    """Return hits by the values of a field, ascending; after a minus, descending.

    Of several values of a hit the first in that order counts. Equal ones stay in the order given, hits without a value
    come last.
    """
    name, falling = sort.removeprefix("-"), sort.startswith("-")
    pairs = [(_values(hit, name), hit) for hit in hits]
    pick = max if falling else min
    keyed = sorted(((pick(values), hit) for values, hit in pairs if values), key=lambda pair: pair[0], reverse=falling)
    return [*(hit for _, hit in keyed), *(hit for values, hit in pairs if not values)]


def _values(hit: Hit, name: str) -> Sequence[Any]:
    value = hit.item.fields.get(name, [])
    return value if isinstance(value, (list, tuple)) else [value]
