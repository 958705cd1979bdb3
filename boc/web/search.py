"""Search requests of the JSON API: the parameters, and the response."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Annotated, Any, get_type_hints

from pydantic import Field, create_model

from boc.errors import BocError
from boc.inputs.metadata import parse_filter
from boc.search.options import SearchOptions
from boc.search.queries import Query, QueryPart, parse_text
from boc.types import Embeddings
from boc.web import serialize
from boc.web.live_index import LibrarySnapshot
from boc.web.pictures.uploads import Upload
from boc.web.settings import FILTERS, SENTENCE, K

MOST = 10_000_000  # maximum number of terms in a request
ITEMS = 64  # maximum number of wanted items in a query, and of unwanted items
UNWANTED = 16  # maximum number of unwanted words and sentences in a query
Id = Annotated[str, Field(min_length=1, max_length=10_000)]

LIMITS: Mapping[str, tuple[Any, Any]] = {
    "k": (int, Field(40, ge=1, le=K)),
    "rm": (float | None, Field(None, ge=1, le=1000, allow_inf_nan=False)),
    "filters": (list[str], Field([], alias="filter", max_length=FILTERS)),
    "query_z": (int | None, Field(None, alias="z", ge=1, le=MOST)),
    "sort": (str | None, Field(None, max_length=1000)),
}
"""Types and limits of the parameters that differ from ``SearchOptions``."""


def parameters() -> dict[str, Any]:
    """Return the fields of ``SearchOptions`` as request parameters, with descriptions from the
    docstring of the class."""
    types = get_type_hints(SearchOptions)
    entries = re.findall(
        r"^ +(\w+) : .*\n((?: {8}.*\n)+)",
        SearchOptions.__doc__ or "",
        re.MULTILINE,
    )
    texts = {name: " ".join(text.split()) for name, text in entries}
    chosen = {}
    for each in fields(SearchOptions):
        kind, value = LIMITS.get(each.name, (types[each.name], Field(each.default)))
        value.description = texts.get(each.name, "")
        chosen[each.name] = kind, value
    return chosen


_Options: Any = create_model("_Options", **parameters())


class Question(_Options):
    """Parameters of a search: the search options, and a sentence, items, or both. The request may
    also contain a picture."""

    q: str | None = Field(
        None,
        max_length=SENTENCE,
        description='Description of the picture; -word or -"some words" excludes things.',
    )
    like: list[Id] = Field([], max_length=ITEMS, description="Ids of similar items.")
    unlike: list[Id] = Field([], max_length=ITEMS, description="Ids of dissimilar items.")

    def options(self, snapshot: LibrarySnapshot) -> SearchOptions:
        """Return the search options for an index. Raises BocError for an unknown field, and for
        options that the index does not support."""
        manifest = snapshot.searcher.index.manifest
        if (self.rerank or manifest.rerank) != "dot" and manifest.concept_dtype is None:
            raise BocError(
                f"the index has no concept sets, which {self.rerank} compares; omit rerank",
            )
        values = {each.name: getattr(self, each.name) for each in fields(SearchOptions)}
        values["find"] = snapshot.searcher.target(self.find)
        values["filters"] = [parse_filter(each, manifest.fields) for each in self.filters]
        return SearchOptions(**values)

    def query(self, sent: Upload | None = None) -> Query:
        """Return the query, with the uploaded picture if there is one. Raises BocError if the query
        is empty."""
        sentence, minus = parse_text(self.q)
        # Each unwanted text must be encoded separately.
        if len(minus) > UNWANTED:
            raise BocError(
                f"the sentence has {len(minus)} unwanted parts, but the limit is {UNWANTED}; leave "
                "some out",
            )
        return Query.of(
            sentence,
            minus=minus,
            images=[sent.path] if sent else [],
            like=self.like,
            unlike=self.unlike,
        )


def answer_question(
    snapshot: LibrarySnapshot,
    question: Question,
    query: Query,
    encode: Callable[[QueryPart], Embeddings],
) -> serialize.Json:
    """Return the hits of a search; ``more`` is true if a larger k might return more hits."""
    searcher = snapshot.searcher
    options = question.options(snapshot)
    find = searcher.target(question.find)
    hits = searcher.search_query(query, options, encoded=list(map(encode, query.parts)))
    shown = [
        {
            **serialize.item(hit.item),
            "score": float(hit.score),
            "duplicates": hit.duplicates,
        }
        for hit in hits
    ]
    return {
        "find": find,
        "hits": shown,
        "notes": hits.notes,
        "more": len(hits) == options.k < min(K, searcher.index.manifest.items[find]),
    }
