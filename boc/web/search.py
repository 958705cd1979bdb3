"""Search requests of the interface: their parameters, and the answer with its timings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Annotated

from fastapi import Request, Response
from pydantic import BaseModel, Field

from boc.errors import BocError
from boc.inputs.metadata import parse_filter
from boc.names import Hybrid, Metric, Modality
from boc.search.options import SearchOptions
from boc.search.queries import BETA, GAMMA, Part, Query, parse_text
from boc.types import Embeddings, Stages
from boc.web import schemas, serialize
from boc.web.http.responses import as_json
from boc.web.live_index import Library, Opened
from boc.web.pictures.sizes import Sizes
from boc.web.settings import FILTERS, SENTENCE, K

MOST = 10_000_000  # limit of the number of terms in a request
ITEMS = 64  # items that a question may name as wanted, and as unwanted
HEAVIEST = 1000
Id = Annotated[str, Field(min_length=1, max_length=10_000)]
MEASURED = [name for name in schemas.StagesAnswer.model_fields if name != "total_ms"]


class Asked(BaseModel):
    """The parameters of every search beside its query."""

    find: Modality | None = Field(None, description="Pictures or sentences; pictures, if the index has any.")
    k: int = Field(40, ge=1, le=K, description="Hits wanted.")
    rm: float | None = Field(
        None, ge=1, le=1000, allow_inf_nan=False, description="Candidates re-ranked per hit; the index's."
    )
    z: int | None = Field(None, ge=1, le=MOST, description="Terms of the query that count, the heaviest.")
    rerank: Metric | None = Field(None, description="How candidates are re-ranked; the index's.")
    filter: list[str] = Field([], max_length=FILTERS, description="FIELD=VALUE, or != < <= > >=. All must hold.")
    hybrid: Hybrid | None = Field(None, description="Count the words of the sentence too.")
    words_weight: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="What sum multiplies the score of the words by."
    )
    sort: str | None = Field(
        None, max_length=1000, description="Order the hits by this field; after a minus, the largest value first."
    )
    min_confidence: float | None = Field(
        None, ge=0, le=1, description="Give hits a confidence, and leave out hits below this one."
    )
    mmr: float | None = Field(None, ge=0, le=1, description="Variety: 1 keeps the ranking, 0 ranks by difference only.")
    collapse: bool = Field(False, description="Group near-duplicates under the best of them.")

    def options(self, opened: Opened) -> SearchOptions:
        """Its value for an index. BocError for an unknown field, and for what the index does not hold."""
        manifest = opened.searcher.index.manifest
        if (self.rerank or manifest.rerank) != "dot" and manifest.concept_dtype is None:
            raise BocError(f"the index holds no concept sets, which {self.rerank} compares; leave rerank out")
        return SearchOptions(
            k=self.k,
            rm=self.rm,
            find=opened.searcher.target(self.find),
            rerank=self.rerank,
            filters=[parse_filter(each, manifest.fields) for each in self.filter],
            hybrid=self.hybrid,
            words_weight=self.words_weight,
            query_z=self.z,
            sort=self.sort,
            min_confidence=self.min_confidence,
            mmr=self.mmr,
            collapse=self.collapse,
        )


class Question(Asked):
    """A question of several parts: a sentence, and items wanted or unwanted."""

    q: str | None = Field(
        None, max_length=SENTENCE, description='What the picture shows; -word or -"some words": what it does not.'
    )
    like: list[Id] = Field([], max_length=ITEMS, description="Ids of items: more like these.")
    unlike: list[Id] = Field([], max_length=ITEMS, description="Ids of items: less like these.")
    weight: float = Field(
        BETA, gt=0, le=HEAVIEST, description="Weight of all pictures and items together; of the sentence: 1."
    )
    unlike_weight: float = Field(GAMMA, gt=0, le=HEAVIEST, description="Weight of all together that is unwanted.")

    def query(self, images: Sequence[Path] = ()) -> Query:
        """Its value, with uploaded ``images``. BocError if it asks for nothing."""
        sentence, minus = (None, []) if self.q is None else parse_text(self.q)
        return Query.of(
            sentence,
            minus=minus,
            images=images,
            like=self.like,
            unlike=self.unlike,
            weight=self.weight,
            unlike_weight=self.unlike_weight,
        )

    def told(self, query: Query) -> serialize.Json:
        """The query of the answer."""
        if len(query.parts) == 1:
            (part,) = query.parts
            return {"kind": part.kind} | {"text": {"text": part.value}, "item": {"id": part.value}}.get(part.kind, {})
        minus = [part.value for part in query.parts if part.kind == "text" and part.weight < 0]
        return {"kind": "several", "text": query.words, "minus": minus, "like": self.like, "unlike": self.unlike}


class Search:
    """Searches by embeddings from an encoder or from the index."""

    def __init__(self, library: Library, sizes: Sizes, measured: Callable[[serialize.Json], None]) -> None:
        """``measured`` is called with the milliseconds of the stages of each search."""
        self._library = library
        self._sizes = sizes
        self._measured = measured

    def __call__(
        self,
        request: Request,
        query: Query,
        told: serialize.Json,
        asked: Asked,
        encode: Callable[[Opened, Part], Embeddings],
    ) -> Response:
        """A ``SearchAnswer`` to ``query``, which is ``told`` in it; its parts are encoded by ``encode``."""
        start: float = request.scope["state"]["start"]
        found = self._library.do(lambda opened: self._found(opened, query, asked, partial(encode, opened)))
        found["stages"]["total_ms"] = _ms(1000 * (perf_counter() - start))
        self._measured(found["stages"])
        return as_json({"query": told, **found})

    def _found(
        self, opened: Opened, query: Query, asked: Asked, encode: Callable[[Part], Embeddings]
    ) -> serialize.Json:
        searcher, stages = opened.searcher, Stages()
        manifest = searcher.index.manifest
        options, find = asked.options(opened), searcher.target(asked.find)
        begun = perf_counter()
        encoded = list(map(encode, query.parts))
        stages.took("encode_ms", begun)
        hits = searcher.search_query(query, options, encoded=encoded, stages=stages)
        begun = perf_counter()
        sizes = self._sizes.of([hit.item for hit in hits])
        shown = [
            {
                **serialize.item(hit.item, size),
                "score": float(hit.score),
                "confidence": hit.confidence,
                "duplicates": hit.duplicates,
            }
            for hit, size in zip(hits, sizes, strict=True)
        ]
        stages.took("content_ms", begun)
        assert stages.codes is not None
        return {
            "find": find,
            "hits": shown,
            "stages": {name: _ms(getattr(stages, name)) for name in MEASURED},
            "postings": opened.postings(stages.codes),
            "terms": int(stages.codes.nnz),
            "candidates": stages.candidates,
            "more": len(hits) == asked.k < min(K, manifest.items[find]),
        }


def _ms(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
