"""Handle requests to the JSON API, with one handler per route.

The table lists the cost of the largest request to each route in milliseconds of processor time, for
a library of 200,000 items and 30,000 words (without encoding, on a busy machine). Further requests
of this size wait in a queue (``boc.web.http.limits``):

| route | largest request | ms |
|---|---|---|
| search | 1,000 characters, 16 filters, 1,000 hits | 15 |
| search by items | 64 wanted, 64 unwanted, 1,000 hits | 50 |
| search, near-duplicates grouped | 1,000 of 4,000 hits | 180 |
| the same by items | 64 wanted, 64 unwanted, 1,000 of 4,000 hits | 90 |
| search, hybrid | 160 words, 2,000 hits fused | 100 |
| facets | 1,000 characters, 16 filters | 10 |
| library | 16 filters, 1,000 pictures | 110 |
| words | 160 unknown words, 16 suggestions | 50 |
| explain | any item | 40 |
"""

from __future__ import annotations

import re
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Annotated, Any, cast
from urllib.parse import quote
from zipfile import ZipFile

from fastapi import APIRouter, Depends, File, Query, Request, UploadFile
from fastapi.concurrency import contextmanager_in_threadpool
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, Field
from starlette.convertors import PathConvertor, register_url_convertor

from boc import __version__
from boc.atomic_files import replacing
from boc.errors import BocError, ImageError
from boc.explain.score import explain_item
from boc.inputs.images import open_image
from boc.manage.pictures import add_pictures
from boc.progress import silent
from boc.types import Item
from boc.web import serialize
from boc.web.facets import DEPTH, facet_fields, facets as count_facets
from boc.web.http.responses import ProblemError, as_json, unknown
from boc.web.live_index import Library, LibrarySnapshot
from boc.web.pictures import uploads
from boc.web.pictures.content import Content, open_content
from boc.web.pictures.thumbnails import SIDES, Thumbnails
from boc.web.pictures.uploads import Upload
from boc.web.search import Question, answer_question
from boc.web.settings import FILTERS, SENTENCE, K, Settings


class AnyId(PathConvertor):
    """Match the rest of a path, including line breaks, because file names may contain them."""

    regex = "(?s:.*)"


register_url_convertor("any", AnyId())

# Browsers must revalidate every time, because another index may use the same id for another
# picture.
CACHE_CONTROL = "private, no-cache"


class Why(BaseModel):
    """Parameters of an explanation. The query is a sentence or another item, unless the request
    contains a picture."""

    q: str | None = Field(None, max_length=SENTENCE, description="The sentence.")
    like: str | None = Field(None, max_length=10_000, description="The id of an item.")


@dataclass(frozen=True)
class Service:
    """Objects that all routes share."""

    library: Library
    thumbnails: Thumbnails
    settings: Settings


async def service_of(request: Request) -> Service:
    """Return the service of the application."""
    service: Service = request.app.state.service
    return service


Served = Annotated[Service, Depends(service_of)]


async def picture_of(
    request: Request,
    service: Served,
    image: Annotated[
        UploadFile | None,
        File(description="A picture. Its contents, not its name, determine the format."),
    ] = None,
) -> AsyncIterator[Upload | None]:
    """Keep the uploaded picture until the request ends. Raises ProblemError 415 for a POST request
    without a picture."""
    if image is not None:
        limits = service.settings.upload, service.settings.pixels
        kept = uploads.keep_upload(await image.read(), image.filename, *limits)
        async with contextmanager_in_threadpool(kept) as sent:
            yield sent
        return
    if request.method == "POST":
        kind = request.headers.get("content-type", "").lower()
        raise ProblemError(
            400 if kind.startswith("multipart/form-data") else 415,
            f"the body of type {kind[:100]!r} contains no picture; send a form "
            "(multipart/form-data) with a file named image",
        )
    yield None


async def check_parameters(request: Request) -> None:
    """Raise ProblemError 400 for an unknown parameter, because a misspelt parameter would otherwise
    be ignored."""
    paths = request.app.openapi()["paths"]
    operations = paths[request.scope["route"].path_format]
    entries = operations[request.method.lower()].get("parameters", [])
    names = [entry["name"] for entry in entries if entry["in"] == "query"]
    for name in request.query_params:
        if name not in names:
            known = f"known: {', '.join(names)}" if names else "omit it"
            raise ProblemError(400, f"unknown parameter {name[:100]!r}; {known}")


Sent = Annotated[Upload | None, Depends(picture_of)]
Parameters = Annotated[Question, Query()]
api = APIRouter(prefix="/api", dependencies=[Depends(check_parameters)])


@api.get("/info")
def info(service: Served) -> Response:
    """Return the contents of the index, and the limits on requests."""
    settings = service.settings

    def look(snapshot: LibrarySnapshot) -> serialize.Json:
        manifest = snapshot.searcher.index.manifest
        return {
            "name": settings.name,
            "version": __version__,
            "items": manifest.items,
            "encoder": manifest.identity.spec,
            "fields": snapshot.fields,
            "facets": facet_fields(snapshot),
            "keeps": settings.keep is not None,
            "examples": snapshot.examples,
            "limits": {
                "k": K,
                "sentence": SENTENCE,
                "upload": settings.upload,
                "filters": FILTERS,
            },
        }

    return as_json(service.library.do(look))


@api.get("/search")
@api.post("/search")
def search(service: Served, question: Parameters, sent: Sent) -> Response:
    """Search by a sentence, by items, by a picture, or by a combination of these. Items in the
    query are excluded from the hits."""
    query = question.query(sent)
    library = service.library

    def answer(snapshot: LibrarySnapshot) -> serialize.Json:
        return answer_question(
            snapshot,
            question,
            query,
            partial(library.part, snapshot, sent=sent),
        )

    return as_json(library.do(answer))


@api.get("/library")
def library(
    service: Served,
    filters: Annotated[list[str], Query(alias="filter", max_length=FILTERS)] = [],  # noqa: B006
    skip: Annotated[int, Query(ge=0, description="Number of pictures to skip.")] = 0,
    k: Annotated[int, Query(ge=1, le=K, description="Maximum number of pictures.")] = 60,
) -> Response:
    """List the pictures in the index without a search, newest first."""

    def look(snapshot: LibrarySnapshot) -> serialize.Json:
        count, items = snapshot.newest(tuple(filters), slice(skip, skip + k))
        return {"pictures": count, "hits": [serialize.item(item) for item in items]}

    return as_json(service.library.do(look))


@api.post("/library")
def keep_picture(service: Served, sent: Sent) -> Response:
    """Save a picture to the folder that the owner of the server chose, and add it to the index. The
    picture can be found within seconds. A picture that is sent twice is saved only once, and a
    picture that cannot be encoded is not saved."""
    folder = service.settings.keep
    if folder is None or sent is None:
        raise ProblemError(403, "this server does not accept picture uploads")
    with open_image(sent.path) as image:
        kind = str(image.format).lower()
    stem = re.sub(r"[^\w -]+", "_", Path(sent.name).stem, flags=re.ASCII)[:60]
    path = Path(folder) / f"{stem}-{sent.key[:12]}.{kind}"
    with ExitStack() as undo:
        if not path.exists():
            undo.callback(path.unlink, missing_ok=True)
        with replacing(path) as temporary:
            shutil.copyfile(sent.path, temporary)
        # If this folder is the indexed folder, the next sync will assign the same id.
        report = service.library.do(
            lambda snapshot: add_pictures(
                snapshot.searcher,
                service.settings.name,
                service.settings.at,
                [path],
                ids=None,
                fields=None,
                metadata=None,
                ocr=False,
                progress=silent,
            ),
        )
        undo.pop_all()
    return as_json({"id": path.name, "replaced": report.replaced > 0})


@api.get("/words")
def words(service: Served, q: Annotated[str, Query(max_length=SENTENCE)]) -> Response:
    """List the words in a sentence that neither the index nor its encoder knows."""

    def look(snapshot: LibrarySnapshot) -> serialize.Json:
        return {"unknown": [each._asdict() for each in snapshot.spelling.unknown(q)]}

    return as_json(service.library.do(look))


@api.get("/facets")
@api.post("/facets")
def facets(service: Served, question: Parameters, sent: Sent) -> Response:
    """Count the hits, or the newest pictures, for each value of each field."""
    asks = question.q or question.like or question.unlike or sent
    query = question.query(sent) if asks else None

    def count(snapshot: LibrarySnapshot) -> serialize.Json:
        options = question.options(snapshot)
        if query is None:
            items = snapshot.newest(tuple(question.filters), slice(K))[1]
        else:
            options = replace(options, k=DEPTH, collapse=False, sort=None)
            encoded = [service.library.part(snapshot, each, sent) for each in query.parts]
            hits = snapshot.searcher.search_query(query, options, encoded=encoded)
            items = [hit.item for hit in hits]
        return count_facets(snapshot, items)

    return as_json(service.library.do(count))


@api.get("/explain/{id:any}")
@api.post("/explain/{id:any}")
def why(service: Served, id: str, parameters: Annotated[Why, Query()], sent: Sent) -> Response:
    """Explain the score of an item for a sentence, for another item, or for a picture."""
    q = parameters.q
    like = parameters.like
    if [q, like, sent].count(None) != 2:
        raise BocError("pass q (a sentence) or like (the id of an item), or send a picture")
    library = service.library

    def explain(snapshot: LibrarySnapshot) -> serialize.Json:
        if sent is not None:
            query = Item("query", "image", sent.name)
            encoded = library.picture(snapshot, sent.path, sent.name, sent.key)
        elif like is not None:
            query = find(snapshot, like)
            # If the picture file is missing, only the stored vector of the item is available.
            try:
                encoded = library.whole_item(snapshot, query)
            except ImageError:
                encoded = snapshot.searcher.embeddings(like)
        else:
            query = Item("query", "text", str(q))
            encoded = library.sentence(snapshot, query.content)
        explanation = explain_item(
            snapshot.searcher,
            query,
            encoded,
            find(snapshot, id),
            partial(library.item, snapshot),
            snapshot.labels,
            # Add words and pictures to this number of terms.
            labelled=12,
        )
        return serialize.explanation(explanation)

    return as_json(library.do(explain))


@api.get("/item/{id:any}")
def item(service: Served, id: str) -> Response:
    """Return one item."""

    def look(snapshot: LibrarySnapshot) -> serialize.Json:
        entry = find(snapshot, id)
        words = snapshot.searcher.codec.words if entry.modality == "image" else {}
        terms = serialize.word_answers(snapshot.searcher.index.terms([id]), words) if words else []
        return {**serialize.item(entry), "captions": captions(snapshot, entry), "words": terms}

    return as_json(service.library.do(look))


@api.get("/thumb/{id:any}")
def thumb(
    request: Request,
    service: Served,
    id: str,
    side: Annotated[
        int,
        Query(description=f"Length of the longer side in pixels: {', '.join(map(str, SIDES))}."),
    ] = 240,
) -> Response:
    """Return the thumbnail of a picture, or of the picture that a sentence describes."""
    if side not in SIDES:
        raise BocError(f"side must be one of {', '.join(map(str, SIDES))} (pixels), got {side}")

    entry = service.library.do(lambda snapshot: find_picture(snapshot, id))
    with opened(entry) as content:
        name = service.thumbnails.name(entry.content, content.state, side)
        headers = {"ETag": f'"{name}"', "Cache-Control": CACHE_CONTROL}
        if headers["ETag"] in request.headers.get("if-none-match", ""):
            return Response(None, 304, headers)
        return Response(service.thumbnails.get(content, name, side), 200, headers, "image/jpeg")


@api.get("/picture/{id:any}")
def original(service: Served, id: str) -> StreamingResponse:
    """Return the original file of a picture as a download."""
    entry = service.library.do(lambda snapshot: find(snapshot, id))
    stack = ExitStack()
    content = stack.enter_context(opened(entry))

    def read() -> Iterator[bytes]:
        with stack:
            yield from content.read()

    headers = {
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(content.name, safe='')}",
        "Content-Length": str(content.status.st_size),
        "Cache-Control": CACHE_CONTROL,
    }
    return StreamingResponse(read(), 200, headers, f"image/{content.kind.lower()}")


@api.get("/picture")
def originals(
    service: Served,
    ids: Annotated[list[str], Query(alias="id", min_length=1, max_length=100)],
) -> StreamingResponse:
    """Return the original files of several pictures as a ZIP file. The id of a sentence stands for
    the picture that the sentence describes."""
    entries = service.library.do(
        lambda snapshot: dict.fromkeys(find_picture(snapshot, each) for each in ids),
    )
    # If a picture cannot be sent, reject the request before sending any data.
    for entry in entries:
        with opened(entry):
            pass

    def read() -> Iterator[bytes]:
        # Without ``seek``, the archive is written sequentially.
        blocks: list[bytes] = []

        def write(block: bytes) -> int:
            blocks.append(bytes(block))
            return len(block)

        file = SimpleNamespace(write=write, flush=list)
        with ZipFile(cast(Any, file), "w") as archive:
            for entry in entries:
                name = "/".join(
                    part for part in PurePosixPath(entry.id).parts if part not in ("/", "..")
                )
                with opened(entry) as content, archive.open(name, "w", force_zip64=True) as member:
                    for block in content.read():
                        member.write(block)
                        yield b"".join(blocks)
                        blocks.clear()
        yield b"".join(blocks)

    headers = {
        "Content-Disposition": "attachment; filename=pictures.zip",
        "Cache-Control": CACHE_CONTROL,
    }
    return StreamingResponse(read(), 200, headers, "application/zip")


@contextmanager
def opened(entry: Item) -> Iterator[Content]:
    """Open the file of a picture. Raises ProblemError 404 if the file cannot be read or decoded."""
    try:
        with open_content(entry) as content:
            yield content
    except ImageError as error:
        raise ProblemError(404, str(error)) from error


def captions(snapshot: LibrarySnapshot, item: Item) -> list[str]:
    """Return the other sentences that describe the same picture. They are found by the ids that boc
    assigns to the captions in a table."""
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


def find_picture(snapshot: LibrarySnapshot, id: str) -> Item:
    """Return a picture, or the picture that a sentence describes. Raises the same errors as
    ``find``."""
    entry = find(snapshot, id)
    return entry if entry.modality == "image" else find(snapshot, entry.group)


def find(snapshot: LibrarySnapshot, id: str) -> Item:
    """Return the item with the given id. Raises ProblemError 404 for an unknown id."""
    try:
        return snapshot.searcher.index.find([id])[0]
    except KeyError:
        raise unknown(id) from None
