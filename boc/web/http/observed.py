"""Request ids, and one record per answered request."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from time import perf_counter
from urllib.parse import parse_qsl, urlencode
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from boc.web.http.headers import below_index, path_of

ID = "X-Request-ID"
REQUEST: ContextVar[str] = ContextVar("request", default="")
"""The id of the request that is being answered."""

_SOUND = re.compile("[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True)
class Answered:
    """An answered request. ``route`` is the pattern of its address, as ``/api/item/{id}``; "none" if there is no route,
    or the request was refused before. ``query`` are the parameters of the address, without a token. ``size`` is in
    bytes."""

    id: str
    method: str
    route: str
    path: str
    query: str
    client: str
    status: int
    size: int
    seconds: float


class Observed:
    """Gives each request an id, that of its header ``X-Request-ID`` if it has one, and calls ``record`` with what was
    answered."""

    def __init__(self, app: ASGIApp, record: Callable[[Answered], None]) -> None:
        self._app = app
        self._record = record

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun, status, size = perf_counter(), 500, 0
        given = Headers(scope=scope).get(ID, "")
        id = given if _SOUND.fullmatch(given) else uuid4().hex[:16]
        REQUEST.set(id)

        async def seen(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[ID] = id
            else:
                size += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, seen)
        finally:
            route, query = _route(scope), _without_token(scope["query_string"].decode("latin-1"))
            path, client = str(scope["path"]), (scope.get("client") or ("",))[0]
            seconds = perf_counter() - begun
            self._record(Answered(id, scope["method"], route, path, query, client, status, size, seconds))


def _route(scope: Scope) -> str:
    found = getattr(scope.get("route"), "path_format", None)
    if isinstance(found, str):
        return below_index(found)
    return "/static" if path_of(scope).startswith("/static/") else "none"


def _without_token(query: str) -> str:
    return urlencode([(name, value) for name, value in parse_qsl(query, keep_blank_values=True) if name != "token"])
