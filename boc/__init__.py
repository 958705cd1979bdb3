"""Search pictures by sentences, and sentences by pictures, on an inverted index.

The names below are public, for example ``boc.open("photos")``. Each name is imported on first use,
so ``import boc`` is fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from boc.errors import BocError
    from boc.evaluate.runs import Evaluation
    from boc.evaluate.verify import Verification
    from boc.explain.score import Explanation
    from boc.index import Index, open
    from boc.manage.attach import AttachReport, attach_index, detach_index
    from boc.manage.build import DeleteReport, LoadReport, build_index
    from boc.manage.copy import CopyReport, copy_index
    from boc.manage.duplicates import DuplicateGroup
    from boc.manage.sync import SyncReport
    from boc.manage.whole_index import CompactReport, delete_index, index_names
    from boc.search.hits import Hits
    from boc.search.options import SearchOptions
    from boc.search.queries import Query
    from boc.search.searcher import Searcher
    from boc.types import Embeddings, Filter, Hit, Item

__version__ = "0.4.0"

__all__ = [
    "AttachReport",
    "BocError",
    "CompactReport",
    "CopyReport",
    "DeleteReport",
    "DuplicateGroup",
    "Embeddings",
    "Evaluation",
    "Explanation",
    "Filter",
    "Hit",
    "Hits",
    "Index",
    "Item",
    "LoadReport",
    "Query",
    "SearchOptions",
    "Searcher",
    "SyncReport",
    "Verification",
    "attach_index",
    "build_index",
    "copy_index",
    "delete_index",
    "detach_index",
    "index_names",
    "open",
]

_NAMES = {
    "errors": "BocError",
    "evaluate.runs": "Evaluation",
    "evaluate.verify": "Verification",
    "explain.score": "Explanation",
    "index": "Index open",
    "manage.attach": "AttachReport attach_index detach_index",
    "manage.build": "DeleteReport LoadReport build_index",
    "manage.copy": "CopyReport copy_index",
    "manage.duplicates": "DuplicateGroup",
    "manage.sync": "SyncReport",
    "manage.whole_index": "CompactReport delete_index index_names",
    "search.hits": "Hits",
    "search.options": "SearchOptions",
    "search.queries": "Query",
    "search.searcher": "Searcher",
    "types": "Embeddings Filter Hit Item",
}
"""The public names of each module."""

_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'boc' has no attribute {name!r}")
    value = getattr(import_module(f"boc.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
