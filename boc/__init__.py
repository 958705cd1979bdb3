"""Search pictures by sentences, and sentences by pictures, on an inverted index.

The names below are public: ``boc.open("photos")``. Each is loaded on first use, so that ``import
boc`` stays light.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from boc.errors import BocError
    from boc.index import DeleteReport, Index, open
    from boc.manage.build import LoadReport, build_index
    from boc.manage.copy import copy_index
    from boc.search.options import SearchOptions
    from boc.search.searcher import Searcher
    from boc.types import Embeddings, Filter, Hit, Item

__version__ = "0.3.0"

__all__ = [
    "BocError",
    "DeleteReport",
    "Embeddings",
    "Filter",
    "Hit",
    "Index",
    "Item",
    "LoadReport",
    "SearchOptions",
    "Searcher",
    "build_index",
    "copy_index",
    "open",
]

_MODULES = {
    "BocError": "errors",
    "DeleteReport": "index",
    "Embeddings": "types",
    "Filter": "types",
    "Hit": "types",
    "Index": "index",
    "Item": "types",
    "LoadReport": "manage.build",
    "SearchOptions": "search.options",
    "Searcher": "search.searcher",
    "build_index": "manage.build",
    "copy_index": "manage.copy",
    "open": "index",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'boc' has no attribute {name!r}")
    value = getattr(import_module(f"boc.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
