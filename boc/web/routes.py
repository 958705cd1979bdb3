"""The JSON interface: one handler per route, over the index that the application serves."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Depends, File, Query, Request, UploadFile
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, Field
from starlette.convertors import PathConvertor, register_url_convertor

from boc import __version__
from boc.codecs import SurrogateCodec, code_of
from boc.codecs.signed import CReLU
from boc.errors import BackendError, BocError, ImageError, UnreachableError, worded
from boc.explain.score import explain_item
from boc.types import Item
from boc.web import schemas, serialize
from boc.web.facets import facet_fields
from boc.web.facets import facets as count_facets
from boc.web.http.responses import ProblemError, as_json, parameter_words, unknown
from boc.web.live_index import Library, LibrarySnapshot
from boc.web.pictures import uploads
from boc.web.pictures.content import Content, open_content
from boc.web.pictures.thumbnails import SIDES, Thumbnails
from boc.web.pictures.uploads import Upload
from boc.web.search import MOST, Question, Search
from boc.web.settings import FILTERS, SENTENCE, K, Settings


class AnyId(PathConvertor):
    """The rest of a path, line ends too, which names of files may have."""

    regex = "(?s:.*)"


register_url_convertor("any", AnyId())

LABELLED = 12  # terms per explanation that get words and pictures
# checked each time: another index may have another picture under the same id
CACHE_CONTROL = "private, no-cache"

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": schemas.Error} for status in (400, 401, 403, 404, 408, 413, 415, 429, 503)
}


class Why(BaseModel):
    """The query of an explanation: a sentence, or another item, unless a picture is sent."""

    q: str | None = Field(None, max_length=SENTENCE, description="The sentence.")
    like: str | None = Field(None, max_length=10_000, description="The id of an item.")
    z: int | None = Field(
        None,
        ge=1,
        le=MOST,
        description="Terms of the query that count, the heaviest.",
    )


Picture = Annotated[
    UploadFile | None,
    File(description="A picture; its bytes are looked at, not its name."),
]
Side = Annotated[
    int,
    Query(description=f"Pixels of the longer side: one of {', '.join(map(str, SIDES))}."),
]


@dataclass(frozen=True)
class Service:
    """The parts that the routes of one index use. ``names`` are those of all indexes of the
    application."""

    names: tuple[str, ...]
    library: Library
    thumbnails: Thumbnails
    settings: Settings
    search: Search

    async def answer(self, work: Callable[[LibrarySnapshot], serialize.Json]) -> Response:
        """Run ``work`` on the index in a thread; answer with its result as JSON."""
        return await run_in_threadpool(lambda: as_json(self.library.do(work)))

    async def with_upload(
        self,
        request: Request,
        image: UploadFile | None,
        work: Callable[[Upload | None], Response],
    ) -> Response:
        """Run ``work`` in a thread, with the picture that was sent. ProblemError 415 for a POST
        without one."""
        if image is None:
            if request.method == "POST":
                kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
                if kind == "multipart/form-data":
                    raise ProblemError(
                        400,
                        "image: no file of this name in the form; send the picture as image",
                    )
                raise ProblemError(
                    415,
                    f"a body of type {kind[:100]!r}; send a form (multipart/form-data) with a "
                    "file image",
                )
            return await run_in_threadpool(work, None)
        data = await image.read()

        def run() -> Response:
            with uploads.keep_upload(
                data,
                image.filename,
                self.settings.upload,
                self.settings.pixels,
            ) as sent:
                return work(sent)

        return await run_in_threadpool(run)


async def service_of(request: Request) -> Service:
    """Return the service of the index that the address names, else of the first. ProblemError 404
    if there is none."""
    services: dict[str, Service] = request.app.state.services
    name = request.path_params.get("index", next(iter(services)))
    if name not in services:
        raise ProblemError(
            404,
            f"no index {name[:100]!r} is served here; there are: {', '.join(services)}",
        )
    return services[name]


Served = Annotated[Service, Depends(service_of)]
Parameters = Annotated[Question, Query()]
api = APIRouter(prefix="/api", responses=ERRORS)


@api.get("/info", response_model=schemas.Info)
async def info(service: Served) -> Response:
    """Return the contents of the index, and the limits of requests."""
    return await service.answer(lambda snapshot: _info(snapshot, service))


@api.get("/search", response_model=schemas.SearchAnswer)
@api.post("/search", response_model=schemas.SearchAnswer)
async def search(
    request: Request,
    service: Served,
    question: Parameters,
    image: Picture = None,
) -> Response:
    """Search by a sentence, by items, by a picture, or by several of these. Items that it names are
    left out."""
    return await service.with_upload(request, image, partial(service.search, request, question))


WRITTEN: dict[int | str, dict[str, Any]] = {200: {"content": {"application/json": {}}}}


@api.get("/query", response_class=Response, responses=WRITTEN)
@api.post("/query", response_class=Response, responses=WRITTEN)
async def request_body(
    request: Request,
    service: Served,
    question: Parameters,
    image: Picture = None,
) -> Response:
    """Return the search request for the server of the index. 400 for what no single request
    does."""

    def work(sent: Upload | None) -> Response:
        query = question.query(sent)

        def write(snapshot: LibrarySnapshot) -> str:
            encoded = (
                []
                if query.ids
                else [service.library.part(snapshot, each, sent) for each in query.parts]
            )
            try:
                return snapshot.searcher.request(
                    query,
                    question.options(snapshot),
                    encoded=encoded,
                ).render("body")
            except UnreachableError:
                raise
            except BackendError as error:
                raise ProblemError(400, worded(error, parameter_words)) from error

        return Response(
            service.library.do(write),
            200,
            {"Cache-Control": "no-store"},
            "application/json",
        )

    return await service.with_upload(request, image, work)


@api.get("/library", response_model=schemas.LibraryAnswer)
async def library(
    service: Served,
    filters: Annotated[list[str], Query(alias="filter", max_length=FILTERS)] = [],  # noqa: B006
    skip: Annotated[int, Query(ge=0, description="Pictures to pass over.")] = 0,
    k: Annotated[int, Query(ge=1, le=K, description="Pictures to return at most.")] = 60,
    pick: Annotated[
        list[str],
        Query(max_length=K, description="Ids of pictures: only these."),
    ] = [],  # noqa: B006
) -> Response:
    """The pictures of the index by date, the newest first: without a search."""

    def work(snapshot: LibrarySnapshot) -> serialize.Json:
        ids = snapshot.by_date(tuple(filters))
        ids = [id for id in ids if id in pick] if pick else ids
        try:
            items = snapshot.searcher.index.find(ids[skip : skip + k])
        except KeyError as error:  # deleted a moment ago
            raise unknown(error.args[0]) from None
        return {"pictures": len(ids), "hits": [serialize.item(item) for item in items]}

    return await service.answer(work)


@api.get("/words", response_model=schemas.SpellingAnswer)
async def words(service: Served, q: Annotated[str, Query(max_length=SENTENCE)]) -> Response:
    """The words of a sentence that neither the index nor its encoder knows."""
    return await service.answer(
        lambda snapshot: {"unknown": [each._asdict() for each in snapshot.spelling.unknown(q)]},
    )


@api.get("/facets", response_model=schemas.FacetsAnswer)
@api.post("/facets", response_model=schemas.FacetsAnswer)
async def facets(
    request: Request,
    service: Served,
    question: Parameters,
    image: Picture = None,
) -> Response:
    """Count how many of the hits have which value of each field."""

    def work(sent: Upload | None) -> Response:
        query = question.query(sent)

        def count(snapshot: LibrarySnapshot) -> serialize.Json:
            encoded = [service.library.part(snapshot, each, sent) for each in query.parts]
            return count_facets(snapshot, query, encoded, question.options(snapshot))

        return as_json(service.library.do(count))

    return await service.with_upload(request, image, work)


@api.get("/explain/{id:any}", response_model=schemas.ExplanationAnswer)
@api.post("/explain/{id:any}", response_model=schemas.ExplanationAnswer)
async def why(
    request: Request,
    service: Served,
    id: str,
    parameters: Annotated[Why, Query()],
    image: Picture = None,
) -> Response:
    """Explain why an item has its score for a sentence, for another item, or for a picture."""
    q = parameters.q
    like = parameters.like
    library = service.library

    def work(sent: Upload | None) -> Response:
        if (q is not None) + (like is not None) + (sent is not None) != 1:
            raise BocError(
                "give either q, a sentence, or like, the id of an item, or send a picture",
            )

        def explain(snapshot: LibrarySnapshot) -> serialize.Json:
            if sent is not None:
                query = Item("query", "image", sent.name)
                encoded = library.upload(snapshot, sent)
            elif like is not None:
                query = _item(snapshot, like)
                encoded = library.embeddings_with_parts(snapshot, query)
            else:
                query = Item("query", "text", str(q))
                encoded = library.sentence(snapshot, str(q))
            item = _item(snapshot, id)
            searcher = snapshot.searcher
            encode = partial(library.item, snapshot)
            explanation = explain_item(
                searcher,
                query,
                encoded,
                item,
                encode,
                snapshot.labels,
                labelled=LABELLED,
                query_z=parameters.z,
            )
            return serialize.explanation(explanation)

        return as_json(library.do(explain))

    return await service.with_upload(request, image, work)


@api.get("/item/{id:any}", response_model=schemas.WholeItem)
async def item(service: Served, id: str) -> Response:
    """One item."""

    def work(snapshot: LibrarySnapshot) -> serialize.Json:
        entry = _item(snapshot, id)
        words = snapshot.searcher.codec.words if entry.modality == "image" else {}
        terms = serialize.word_answers(snapshot.searcher.index.terms([id]), words) if words else []
        return {**serialize.item(entry), "captions": captions(snapshot, entry), "words": terms}

    return await service.answer(work)


@api.get(
    "/thumb/{id:any}",
    response_class=Response,
    responses={200: {"content": {"image/jpeg": {}}}},
)
async def thumb(request: Request, service: Served, id: str, side: Side = 240) -> Response:
    """The thumbnail of a picture, or of the picture that a sentence describes."""
    if side not in SIDES:
        raise BocError(f"side must be one of {', '.join(map(str, SIDES))} (pixels), got {side}")
    known = request.headers.get("if-none-match", "")
    return await run_in_threadpool(_thumbnail, service, id, side, known)


@api.get(
    "/picture/{id:any}",
    response_class=StreamingResponse,
    responses={200: {"content": {"image/*": {}}}},
)
async def original(service: Served, id: str) -> StreamingResponse:
    """The file of a picture as it is, to be saved."""

    stack = ExitStack()

    def look() -> Content:
        entry = service.library.do(lambda snapshot: _item(snapshot, id))
        try:
            return stack.enter_context(open_content(entry))
        except ImageError as error:
            raise ProblemError(404, str(error)) from error

    def read() -> Iterator[bytes]:
        with stack:
            yield from content.read()

    content = await run_in_threadpool(look)
    headers = {
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(content.name, safe='')}",
        "Content-Length": str(content.status.st_size),
        "Cache-Control": CACHE_CONTROL,
    }
    return StreamingResponse(read(), 200, headers, f"image/{content.kind.lower()}")


def _thumbnail(service: Service, id: str, side: int, known: str) -> Response:
    """Return the thumbnail as JPEG, or 304 if its tag is among those ``known``."""

    def picture(snapshot: LibrarySnapshot) -> Item:
        entry = _item(snapshot, id)
        return entry if entry.modality == "image" else _item(snapshot, entry.group)

    entry = service.library.do(picture)
    try:
        with open_content(entry) as content:
            name = service.thumbnails.name(entry.content, content.status, side)
            headers = {"ETag": f'"{name}"', "Cache-Control": CACHE_CONTROL}
            if headers["ETag"] in known:
                return Response(None, 304, headers)
            return Response(service.thumbnails.get(content, name, side), 200, headers, "image/jpeg")
    except ImageError as error:
        raise ProblemError(404, str(error)) from error


def captions(snapshot: LibrarySnapshot, item: Item) -> list[str]:
    """Return the sentences about the same picture, found by the ids that boc gives to the captions
    of a table."""
    if not item.group or not snapshot.searcher.index.manifest.items["text"]:
        return []
    ids = [f"{item.group}#{number}" for number in range(serialize.CAPTIONS)]
    while ids:
        try:
            items = snapshot.searcher.index.find(ids)
            return [
                each.content for each in items if each.group == item.group and each.id != item.id
            ]
        except KeyError as error:
            del ids[ids.index(error.args[0]) :]
    return []


def _item(snapshot: LibrarySnapshot, id: str) -> Item:
    try:
        return snapshot.searcher.index.find([id])[0]
    except KeyError:
        raise unknown(id) from None


def _info(snapshot: LibrarySnapshot, service: Service) -> serialize.Json:
    searcher = snapshot.searcher
    settings = service.settings
    manifest = searcher.index.manifest
    return {
        "name": settings.name,
        "indexes": list(service.names),
        "at": re.sub("//[^/@]*@", "//", settings.at),  # without user and password
        "version": __version__,
        "engine": settings.at.partition(":")[0].partition("+")[0].replace("file", "embedded"),
        "items": {kind: manifest.items.get(kind, 0) for kind in ("image", "text")},
        "code": str(
            code_of(manifest.codec)
            or ", ".join(entry["name"] for entry in manifest.codec["steps"]),
        ),
        "terms": manifest.codec["n_terms"],
        "query_z": _most_terms(searcher.codec),
        "rm": manifest.rm,
        "rerank": manifest.rerank,
        "dim": manifest.identity.dim,
        "encoder": manifest.identity.spec,
        "fields": snapshot.fields,
        "facets": facet_fields(snapshot),
        "concepts": manifest.concept_dtype is not None,
        "examples": snapshot.examples,
        "limits": {"k": K, "sentence": SENTENCE, "upload": settings.upload, "filters": FILTERS},
    }


def _most_terms(codec: SurrogateCodec) -> int:
    steps: list[Any] = list(codec.steps)
    halves = any(
        isinstance(step, CReLU) for step in steps
    )  # a query has one of the two terms of a component
    limits = [step.query_z or step.z for step in steps if hasattr(step, "query_z")]
    return min([codec.n_terms // (2 if halves else 1), *(int(z) for z in limits if z is not None)])
