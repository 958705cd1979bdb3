"""Search requests of the interface: their parameters, and the answer with its timings."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from fastapi import Request, Response
from pydantic import BaseModel, Field

from boc.errors import BocError
from boc.inputs.metadata import parse_filter
from boc.names import Hybrid, Metric, Modality
from boc.search_options import SearchOptions
from boc.types import Embeddings, Stages
from boc.web import schemas, serialize
from boc.web.http.headers import root_of
from boc.web.http.responses import as_json
from boc.web.live_index import Library, Opened
from boc.web.pictures.thumbnails import Thumbnails
from boc.web.settings import FILTERS, SENTENCE, K

MOST = 10_000_000  # limit of the number of terms in a request
MEASURED = [name for name in schemas.StagesAnswer.model_fields if name != "total_ms"]


class Asked(BaseModel):
    """The parameters of every search beside its query."""

    find: Modality | None = Field(None, description="Pictures or sentences; pictures, if the index has any.")
    k: int = Field(40, ge=1, le=K, description="Hits wanted.")
    rm: float | None = Field(
        None, ge=1, le=1000, allow_inf_nan=False, description="Candidates re-scored for each hit; the index's."
    )
    z: int | None = Field(None, ge=1, le=MOST, description="Terms of the query that count, the heaviest.")
    rerank: Metric | None = Field(None, description="What re-scores the candidates; the index's.")
    filter: list[str] = Field([], max_length=FILTERS, description="FIELD=VALUE, or != < <= > >=. All must hold.")
    hybrid: Hybrid | None = Field(None, description="Count the words of the sentence too.")
    words_weight: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="What sum multiplies the score of the words by."
    )


class Sentence(Asked):
    """A search by a sentence."""

    q: str = Field(max_length=SENTENCE, description="What the picture shows.")


class Search:
    """Searches by embeddings from an encoder or from the index."""

    def __init__(self, library: Library, thumbnails: Thumbnails) -> None:
        self._library = library
        self._thumbnails = thumbnails

    def __call__(
        self,
        request: Request,
        query: serialize.Json,
        asked: Asked,
        encode: Callable[[Opened], Embeddings],
        *,
        text: str | None = None,
        without: str | None = None,
    ) -> Response:
        """A ``SearchAnswer``. ``text`` is the sentence of the query, ``without`` an item to leave out of the hits."""
        start: float = request.scope["state"]["start"]
        root = root_of(request.scope)
        found = self._library.do(lambda opened: self._found(opened, asked, encode, text, without, root))
        found["stages"]["total_ms"] = _ms(1000 * (perf_counter() - start))
        return as_json({"query": query, **found})

    def _found(
        self,
        opened: Opened,
        asked: Asked,
        encode: Callable[[Opened], Embeddings],
        text: str | None,
        without: str | None,
        root: str,
    ) -> serialize.Json:
        searcher, stages = opened.searcher, Stages()
        manifest = searcher.index.manifest
        find: Modality = searcher.target(asked.find)
        filters = [parse_filter(each, manifest.fields) for each in asked.filter]
        if (asked.rerank or manifest.rerank) != "dot" and manifest.concept_dtype is None:
            raise BocError(f"the index holds no concept sets, which {asked.rerank} compares; leave rerank out")
        begun = perf_counter()
        queries = encode(opened)
        stages.took("encode_ms", begun)
        k = asked.k + (without is not None)
        options = SearchOptions(k, asked.rm, find, asked.rerank, filters, asked.hybrid, asked.words_weight, asked.z)
        texts = None if text is None else [text]
        hits = searcher.search_vectors(queries, options, texts=texts, stages=stages)[0]
        begun = perf_counter()
        hits = [hit for hit in hits if hit.item.id != without][: asked.k]
        shown = [{**serialize.item(hit.item, self._thumbnails, root), "score": float(hit.score)} for hit in hits]
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
