"""The JSON interface."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any, Literal

import orjson
from fastapi import APIRouter, File, Query, Request, UploadFile
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response
from pydantic import BaseModel, Field

from boc import __version__
from boc.codecs.crelu import CReLU
from boc.errors import BocError, ImageError
from boc.explain import explain_item
from boc.metadata import parse_filter
from boc.types import Embeddings, Hit, Item, Modality, Stages
from boc.web import answers, shapes, uploads
from boc.web.library import Library, Opened
from boc.web.problems import ProblemError, unknown
from boc.web.settings import FILTERS, SENTENCE, K, Settings
from boc.web.thumbnails import SIDES, Thumbnails
from boc.web.uploads import Upload

STAGES = ("encode_ms", "code_ms", "postings_ms", "rerank_ms", "content_ms")
MOST = 10_000_000  # terms that anybody would ask for
LABELLED = 12  # terms of an explanation with words and pictures
KEPT = "private, max-age=86400, immutable"  # a day: another index may have another picture under the same id

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": answers.Error} for status in (400, 401, 403, 404, 408, 413, 415, 429, 503)
}
Find = Literal["image", "text"]
Metric = Literal["dot", "mrsw", "mwsr", "symm", "mravgw"]


class Asked(BaseModel):
    """What every search may say beside its query."""

    find: Find | None = Field(None, description="Pictures or sentences; pictures, if the index has any.")
    k: int = Field(40, ge=1, le=K, description="Hits wanted.")
    rm: float | None = Field(
        None, ge=1, le=1000, allow_inf_nan=False, description="Candidates re-scored for each hit; the index's."
    )
    z: int | None = Field(None, ge=1, le=MOST, description="Terms of the query that count, the heaviest.")
    rerank: Metric | None = Field(None, description="What re-scores the candidates; the index's.")
    filter: list[str] = Field([], max_length=FILTERS, description="FIELD=VALUE, or != < <= > >=. All must hold.")
    hybrid: Literal["rrf", "sum"] | None = Field(None, description="Count the words of the sentence too.")
    words_weight: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="What sum multiplies the score of the words by."
    )


class Sentence(Asked):
    """A search by a sentence."""

    q: str = Field(max_length=SENTENCE, description="What the picture shows.")


class Why(BaseModel):
    """What an item is compared with: a sentence, or another item."""

    q: str | None = Field(None, max_length=SENTENCE, description="The sentence.")
    like: str | None = Field(None, max_length=10_000, description="The id of an item.")
    z: int | None = Field(None, ge=1, le=MOST, description="Terms of the query that count, the heaviest.")


Picture = Annotated[UploadFile, File(description="A picture; its bytes are looked at, not its name.")]
Terms = Annotated[int | None, Query(ge=1, le=MOST, description="Terms of the query that count, the heaviest.")]
Side = Annotated[int, Query(description=f"Pixels of the longer side: one of {', '.join(map(str, SIDES))}.")]


def router(library: Library, thumbnails: Thumbnails, settings: Settings) -> APIRouter:
    """The routes over one index."""
    api = APIRouter(prefix="/api", responses=ERRORS)
    search = _Search(library, thumbnails)

    @api.get("/info", response_model=answers.Info)
    async def info() -> Response:
        """What the index holds, and what may be asked of it."""
        return await run_in_threadpool(told, lambda opened: _info(opened, settings))

    @api.get("/search", response_model=answers.SearchAnswer)
    async def by_sentence(request: Request, asked: Annotated[Sentence, Query()]) -> Response:
        """Search by a sentence."""
        query = {"kind": "text", "text": asked.q}

        def work() -> Response:
            return search(request, query, asked, lambda opened: library.sentence(opened, asked.q), text=asked.q)

        return await run_in_threadpool(work)

    @api.post("/search", response_model=answers.SearchAnswer)
    async def by_picture(request: Request, image: Picture, asked: Annotated[Asked, Query()]) -> Response:
        """Search by a picture."""

        def work(sent: Upload) -> Response:
            return search(request, {"kind": "image"}, asked, lambda opened: library.upload(opened, sent))

        return await uploaded(image, work)

    @api.get("/similar/{id:path}", response_model=answers.SearchAnswer)
    async def by_item(request: Request, id: str, asked: Annotated[Asked, Query()]) -> Response:
        """Search by an item of the index, which itself is left out."""

        def encode(opened: Opened) -> Embeddings:
            return library.stored(opened, _item(opened, id))

        query = {"kind": "item", "id": id}
        return await run_in_threadpool(lambda: search(request, query, asked, encode, without=id))

    @api.get("/explain/{id:path}", response_model=answers.Explanation)
    async def why(id: str, asked: Annotated[Why, Query()]) -> Response:
        """Why an item has its score for a sentence, or for another item."""
        q, like = asked.q, asked.like
        if (q is None) == (like is None):
            raise BocError("give either q, a sentence, or like, the id of an item")

        def work(opened: Opened) -> shapes.Json:
            if like is not None:
                other = _item(opened, like)
                return explained(opened, id, other, library.shown(opened, other), asked.z, "item")
            sentence = Item("query", "text", str(q))
            return explained(opened, id, sentence, library.sentence(opened, str(q)), asked.z, "sentence")

        return await run_in_threadpool(told, work)

    @api.post("/explain/{id:path}", response_model=answers.Explanation)
    async def why_picture(id: str, image: Picture, z: Terms = None) -> Response:
        """Why an item has its score for a picture."""

        def work(sent: Upload) -> Response:
            query = Item("query", "image", sent.name)
            encode = partial(library.upload, sent=sent)
            return told(lambda opened: explained(opened, id, query, encode(opened), z, "image"))

        return await uploaded(image, work)

    def explained(opened: Opened, id: str, query: Item, asked: Embeddings, z: int | None, of: str) -> shapes.Json:
        item, searcher, labels = _item(opened, id), opened.searcher, opened.labels
        anew = partial(library.item, opened)
        found = explain_item(searcher, query, asked, item, anew, labels, labelled=LABELLED, query_z=z)
        asks = found.query_terms, found.item_terms  # to look for all terms would read all posting lists
        among = sorted({term for terms in asks if terms is not None for term in terms.indices.tolist()})
        return shapes.explanation(found, searcher.index.terms([id], among), of, captions(opened, item))

    @api.get("/item/{id:path}", response_model=answers.WholeItem)
    async def item(id: str) -> Response:
        """One item."""

        def work(opened: Opened) -> shapes.Json:
            found = _item(opened, id)
            return {**shapes.item(found, thumbnails), "captions": captions(opened, found)}

        return await run_in_threadpool(told, work)

    @api.get("/thumb/{id:path}", response_class=Response, responses={200: {"content": {"image/jpeg": {}}}})
    async def thumb(request: Request, id: str, side: Side = 240) -> Response:
        """A small picture: of a picture of the index, or of the one that a sentence describes."""
        if side not in SIDES:
            raise BocError(f"side must be one of {', '.join(map(str, SIDES))} (pixels), got {side}")
        return await run_in_threadpool(drawn, id, side, request.headers.get("if-none-match", ""))

    def drawn(id: str, side: int, known: str) -> Response:
        def picture(opened: Opened) -> Item:
            found = _item(opened, id)
            return found if found.modality == "image" else _item(opened, found.group)

        path = Path(library.do(picture).content)
        try:
            tag = f'"{thumbnails.tag(path, side)}"'
            headers = {"ETag": tag, "Cache-Control": KEPT}
            if tag in known:
                return Response(None, 304, headers)
            return Response(thumbnails.get(path, side).data, 200, headers, "image/jpeg")
        except ImageError as error:
            raise ProblemError(404, str(error)) from error

    def told(work: Callable[[Opened], shapes.Json]) -> Response:
        return _json(library.do(work))

    async def uploaded(image: UploadFile, work: Callable[[Upload], Response]) -> Response:
        data = await image.read()

        def kept() -> Response:
            with uploads.kept(data, image.filename, settings.upload, settings.pixels) as sent:
                return work(sent)

        return await run_in_threadpool(kept)

    return api


class _Search:
    """Searches by whatever an encoder, or the index, gives."""

    def __init__(self, library: Library, thumbnails: Thumbnails) -> None:
        self._library = library
        self._thumbnails = thumbnails

    def __call__(
        self,
        request: Request,
        query: shapes.Json,
        asked: Asked,
        encode: Callable[[Opened], Embeddings],
        *,
        text: str | None = None,
        without: str | None = None,
    ) -> Response:
        start: float = request.scope["state"]["start"]
        found = self._library.do(lambda opened: self._found(opened, asked, encode, text, without))
        found["stages"]["total_ms"] = _ms(1000 * (perf_counter() - start))
        return _json({"query": query, **found})

    def _found(
        self,
        opened: Opened,
        asked: Asked,
        encode: Callable[[Opened], Embeddings],
        text: str | None,
        without: str | None,
    ) -> shapes.Json:
        searcher, stages = opened.searcher, Stages()
        manifest = searcher.index.manifest
        find: Modality = searcher.target(asked.find)
        filters = [parse_filter(each, manifest.fields) for each in asked.filter]
        if (asked.rerank or manifest.rerank) != "dot" and manifest.concept_dtype is None:
            raise BocError(f"the index holds no concept sets, which {asked.rerank} compares; leave rerank out")
        with stages.timed("encode_ms"):
            queries = encode(opened)
        hits = searcher.search_vectors(
            queries,
            k=asked.k + (without is not None),
            rm=asked.rm,
            find=find,
            rerank=asked.rerank,
            filters=filters,
            hybrid=asked.hybrid,
            words_weight=asked.words_weight,
            texts=None if text is None else [text],
            query_z=asked.z,
            stages=stages,
        )[0]
        hits = [hit for hit in hits if hit.item.id != without][: asked.k]
        with stages.timed("content_ms"):
            shown = [self._hit(hit) for hit in hits]
        assert stages.codes is not None
        return {
            "find": find,
            "hits": shown,
            "stages": {
                name: _ms(getattr(stages, name)) for name in answers.StagesAnswer.model_fields if name != "total_ms"
            },
            "postings": opened.postings(stages.codes),
            "terms": int(stages.codes.nnz),
            "candidates": stages.candidates,
            "more": len(hits) == asked.k < min(K, manifest.items[find]),
        }

    def _hit(self, hit: Hit) -> shapes.Json:
        return {**shapes.item(hit.item, self._thumbnails), "score": float(hit.score)}


def captions(opened: Opened, item: Item) -> list[str]:
    """The sentences about the same picture, as far as they are named after it as boc names those of a table."""
    if not item.group or not opened.searcher.index.manifest.items["text"]:
        return []
    wanted = [f"{item.group}#{number}" for number in range(shapes.CAPTIONS)]
    while wanted:
        try:
            found = opened.searcher.index.find(wanted)
            return [each.content for each in found if each.group == item.group and each.id != item.id]
        except KeyError as error:
            del wanted[wanted.index(error.args[0]) :]
    return []


def _item(opened: Opened, id: str) -> Item:
    try:
        return opened.searcher.index.find([id])[0]
    except KeyError:
        raise unknown(id) from None


def _info(opened: Opened, settings: Settings) -> shapes.Json:
    searcher = opened.searcher
    manifest = searcher.index.manifest
    return {
        "name": settings.name,
        "at": re.sub("//[^/@]*@", "//", settings.at),  # whose user and password are nobody's business
        "version": __version__,
        "engine": settings.at.partition(":")[0].partition("+")[0].replace("file", "embedded"),
        "items": {kind: manifest.items.get(kind, 0) for kind in ("image", "text")},
        "code": ", ".join(entry["name"] for entry in manifest.codec["steps"]),
        "terms": manifest.codec["n_terms"],
        "query_z": sum(map(_most_terms, searcher.codec.chains, searcher.codec.widths)),
        "rm": manifest.rm,
        "rerank": manifest.rerank,
        "dim": manifest.identity.dim,
        "encoder": manifest.identity.spec,
        "fields": dict(manifest.fields),
        "concepts": manifest.concept_dtype is not None,
        "examples": opened.examples,
        "limits": {
            "k": K,
            "sentence": SENTENCE,
            "upload": settings.upload,
            "filters": FILTERS,
        },
    }


def _most_terms(chain: Sequence[Any], width: int) -> int:
    """The most terms that a chain gives a query."""
    halves = any(isinstance(step, CReLU) for step in chain)  # of the two terms of a component a query has one
    found = [step.query_z or step.z for step in chain if hasattr(step, "query_z")]
    return min([int(width) // (2 if halves else 1), *(int(z) for z in found if z is not None)])


def _ms(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _json(value: Any) -> Response:
    return Response(orjson.dumps(value), 200, {"Cache-Control": "no-store"}, "application/json")
