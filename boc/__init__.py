"""Search pictures by sentences, and sentences by pictures, on an inverted index.

The names below are the public interface: ``from boc import Searcher``. Each is loaded on first use, so that
``import boc`` stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from boc.errors import BocError
    from boc.indexes.build import add_items, build_index, delete
    from boc.indexes.copy import copy_index
    from boc.indexes.sync import sync_index
    from boc.search.options import SearchOptions
    from boc.search.searcher import Searcher
    from boc.types import Embeddings, Filter, Hit, Item

__version__ = "0.2.0"

__all__ = [
    "BocError",
    "Embeddings",
    "Filter",
    "Hit",
    "Item",
    "SearchOptions",
    "Searcher",
    "add_items",
    "build_index",
    "copy_index",
    "delete",
    "sync_index",
]

_MODULES = {
    "BocError": "errors",
    "Embeddings": "types",
    "Filter": "types",
    "Hit": "types",
    "Item": "types",
    "SearchOptions": "search.options",
    "Searcher": "search.searcher",
    "add_items": "indexes.build",
    "build_index": "indexes.build",
    "copy_index": "indexes.copy",
    "delete": "indexes.build",
    "sync_index": "indexes.sync",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'boc' has no attribute {name!r}")
    value = getattr(import_module(f"boc.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
