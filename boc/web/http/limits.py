"""Limit the load: the number of concurrent requests, and the size and duration of their bodies."""

from __future__ import annotations

import asyncio
import os

from starlette.datastructures import Headers, QueryParams
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from boc.plan import PAGE
from boc.web.http.headers import path_of
from boc.web.http.responses import ProblemError, refusal
from boc.web.settings import Settings


class BodyLimit:
    """Read the whole body before a request is handled. Reject bodies that are too large or too
    slow, and reject requests while too many bodies are being read."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        # A form is slightly larger than the picture in it.
        self._most = settings.upload + 65_536
        # Memory is reserved for this many bodies of the maximum size, or for more smaller bodies.
        self._room = 16 * self._most
        self._limit = settings.upload
        self._patience = settings.patience

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD"):
            await self._app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", str(self._most))
        try:
            if not declared.isdecimal() or int(declared[:20]) > self._most:
                raise self._too_long()
            size = int(declared)
            if size > self._room:
                raise ProblemError(
                    429,
                    "too many uploads at once; try again in a second",
                    {"Retry-After": "1"},
                )
            self._room -= size
            try:
                await self._with_body(scope, receive, send)
            finally:
                self._room += size
        except ProblemError as error:
            await error.answer()(scope, receive, send)

    async def _with_body(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await asyncio.wait_for(self._read(receive), self._patience)
        except asyncio.TimeoutError:
            said = f"the upload took longer than {self._patience:g} s; send a smaller picture"
            raise ProblemError(408, said) from None
        messages = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def replay() -> Message:
            return next(messages, None) or await receive()

        if body is not None:
            await self._app(scope, replay, send)

    async def _read(self, receive: Receive) -> bytes | None:
        """Return the body, or None if the client disconnected."""
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return None
            body += message.get("body", b"")
            if len(body) > self._most:
                raise self._too_long()
            if not message.get("more_body", False):
                return bytes(body)

    def _too_long(self) -> ProblemError:
        said = f"the picture is larger than {self._limit:,} bytes; send a smaller picture"
        return ProblemError(413, said, {"Connection": "close"})


class LoadLimit:
    """Limit the number of active and waiting requests. Further requests are answered with status
    429 and Retry-After.

    Thumbnails, uploads, picture files, auxiliary requests (lists, facets, spelling, explanations),
    short searches and long searches have separate queues, so that other requests never delay a
    search.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        active = {
            "thumb": settings.active,
            "upload": settings.uploads,
            "question": settings.active,
            # Picture files share these slots with the auxiliary requests of a search.
            "picture": 2,
            # The remaining cores are reserved for short searches.
            "helper": max(1, (os.cpu_count() or 1) // 2),
            "long": max(1, (os.cpu_count() or 1) // 2),
        }
        self._places = {kind: asyncio.Semaphore(places) for kind, places in active.items()}
        self._room = {kind: places + settings.waiting for kind, places in active.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not path_of(scope).startswith("/api/"):
            await self._app(scope, receive, send)
            return
        # Thumbnails and picture files have their own queues. All requests with a body are uploads.
        kind = path_of(scope).split("/")[2]
        if _is_long(QueryParams(scope["query_string"])):
            kind = "long"
        elif kind in ("library", "facets", "words", "explain"):
            kind = "helper"
        elif kind not in ("thumb", "picture"):
            kind = "question"
        if scope["method"] == "POST":
            kind = "upload"
        if not self._room[kind]:
            text = "too many requests at once; try again in a second"
            await refusal(429, text, {"Retry-After": "1"})(scope, receive, send)
            return
        response = []

        async def buffer(message: Message) -> None:
            response.append(message)

        self._room[kind] -= 1
        try:
            async with self._places[kind]:
                # Do not buffer picture files, because they may be too large.
                await self._app(scope, receive, send if kind == "picture" else buffer)
        finally:
            self._room[kind] += 1
        # Send the response outside the limit, so that a slow client does not delay other requests.
        for message in response:
            await send(message)


def _is_long(query: QueryParams) -> bool:
    """Return whether a request takes a lot longer than a search for one page of hits."""
    wanted = query.get("k", "")
    many = wanted.isdecimal() and int(wanted[:9]) > PAGE
    return many or "hybrid" in query or "collapse" in query
