"""Instances of data classes, many at once."""

from __future__ import annotations

from typing import Any, TypeVar

try:
    from boc import _instances
except ImportError:  # no C compiler where it was installed
    _instances = None  # type: ignore[assignment]

Kind = TypeVar("Kind")


def instances(kind: type[Kind], *columns: list[Any]) -> list[Kind]:
    """An instance of a data class for each place of the ``columns``, lists of equal length: one for each of its fields,
    in their order; further fields have the defaults of the class. ValueError if they are not as long as each other.

    For hits of a query, or a million items of a load, calling the class takes longer than all else that is done for
    them. What its ``__init__`` and ``__post_init__`` do beside is not done.
    """
    if _instances is None:
        return [kind(*values) for values in zip(*columns, strict=True)]
    return _instances.of(kind, vars(kind)["__match_args__"][: len(columns)], *columns)
