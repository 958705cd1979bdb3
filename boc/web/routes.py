"""The JSON interface."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, File, Query, Request, UploadFile
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response
from pydantic import BaseModel, Field

from boc import __version__
from boc.codecs.crelu import CReLU
from boc.errors import BocError, ImageError
from boc.explain.score import explain_item
from boc.types import Embeddings, Item
from boc.web import schemas, serialize, uploads
from boc.web.errors import ProblemError, unknown
from boc.web.headers import root_of
from boc.web.live_index import Library, Opened
from boc.web.responses import as_json
from boc.web.search import MOST, Asked, Search, Sentence
from boc.web.settings import FILTERS, SENTENCE, K, Settings
from boc.web.thumbnails import SIDES, Thumbnails
from boc.web.uploads import Upload

LABELLED = 12  # terms of an explanation with words and pictures
KEPT = "private, max-age=86400, immutable"  # a day: another index may have another picture under the same id

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": schemas.Error} for status in (400, 401, 403, 404, 408, 413, 415, 429, 503)
}


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
    search = Search(library, thumbnails)

    @api.get("/info", response_model=schemas.Info)
    async def info() -> Response:
        """What the index holds, and what may be asked of it."""
        return await run_in_threadpool(told, lambda opened: _info(opened, settings))

    @api.get("/search", response_model=schemas.SearchAnswer)
    async def by_sentence(request: Request, asked: Annotated[Sentence, Query()]) -> Response:
        """Search by a sentence."""
        query = {"kind": "text", "text": asked.q}

        def work() -> Response:
            return search(request, query, asked, lambda opened: library.sentence(opened, asked.q), text=asked.q)

        return await run_in_threadpool(work)

    @api.post("/search", response_model=schemas.SearchAnswer)
    async def by_picture(request: Request, image: Picture, asked: Annotated[Asked, Query()]) -> Response:
        """Search by a picture."""

        def work(sent: Upload) -> Response:
            return search(request, {"kind": "image"}, asked, partial(library.upload, sent=sent))

        return await uploaded(image, work)

    @api.get("/similar/{id:path}", response_model=schemas.SearchAnswer)
    async def by_item(request: Request, id: str, asked: Annotated[Asked, Query()]) -> Response:
        """Search by an item of the index, which itself is left out."""

        def encode(opened: Opened) -> Embeddings:
            return library.stored(opened, _item(opened, id))

        query = {"kind": "item", "id": id}
        return await run_in_threadpool(lambda: search(request, query, asked, encode, without=id))

    @api.get("/explain/{id:path}", response_model=schemas.Explanation)
    async def why(request: Request, id: str, asked: Annotated[Why, Query()]) -> Response:
        """Why an item has its score for a sentence, or for another item."""
        q, like, root = asked.q, asked.like, root_of(request.scope)
        if (q is None) == (like is None):
            raise BocError("give either q, a sentence, or like, the id of an item")

        def work(opened: Opened) -> serialize.Json:
            if like is not None:
                other = _item(opened, like)
                return explained(opened, id, other, library.shown(opened, other), asked.z, "item", root)
            sentence = Item("query", "text", str(q))
            return explained(opened, id, sentence, library.sentence(opened, str(q)), asked.z, "sentence", root)

        return await run_in_threadpool(told, work)

    @api.post("/explain/{id:path}", response_model=schemas.Explanation)
    async def why_picture(request: Request, id: str, image: Picture, z: Terms = None) -> Response:
        """Why an item has its score for a picture."""

        def work(sent: Upload) -> Response:
            query, root = Item("query", "image", sent.name), root_of(request.scope)
            encode = partial(library.upload, sent=sent)
            return told(lambda opened: explained(opened, id, query, encode(opened), z, "image", root))

        return await uploaded(image, work)

    def explained(
        opened: Opened, id: str, query: Item, asked: Embeddings, z: int | None, of: str, root: str
    ) -> serialize.Json:
        item, searcher, labels = _item(opened, id), opened.searcher, opened.labels
        anew = partial(library.item, opened)
        found = explain_item(searcher, query, asked, item, anew, labels, labelled=LABELLED, query_z=z)
        return serialize.explanation(found, searcher.index.terms([id]), of, captions(opened, item), root)

    @api.get("/item/{id:path}", response_model=schemas.WholeItem)
    async def item(request: Request, id: str) -> Response:
        """One item."""

        def work(opened: Opened) -> serialize.Json:
            found = _item(opened, id)
            shown = serialize.item(found, thumbnails, root_of(request.scope))
            return {**shown, "captions": captions(opened, found)}

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

    def told(work: Callable[[Opened], serialize.Json]) -> Response:
        return as_json(library.do(work))

    async def uploaded(image: UploadFile, work: Callable[[Upload], Response]) -> Response:
        data = await image.read()

        def kept() -> Response:
            with uploads.kept(data, image.filename, settings.upload, settings.pixels) as sent:
                return work(sent)

        return await run_in_threadpool(kept)

    return api


def captions(opened: Opened, item: Item) -> list[str]:
    """The sentences about the same picture, as far as they are named after it as boc names those of a table."""
    if not item.group or not opened.searcher.index.manifest.items["text"]:
        return []
    wanted = [f"{item.group}#{number}" for number in range(serialize.CAPTIONS)]
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


def _info(opened: Opened, settings: Settings) -> serialize.Json:
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
