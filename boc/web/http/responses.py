"""Responses: files that are revalidated on each use, and compression."""

from __future__ import annotations

from typing import Any

import orjson
from fastapi.responses import Response
from fastapi.staticfiles import StaticFiles
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from boc.web.http.headers import path_of

SMALL = 1000  # bytes below which an answer is not compressed
LEVEL = 5


def as_json(value: Any) -> Response:
    """A JSON answer that must not be cached."""
    return Response(orjson.dumps(value), 200, {"Cache-Control": "no-store"}, "application/json")


class Checked(StaticFiles):
    """Static files that browsers cache but revalidate each time, so an upgrade never mixes old and new files."""

    def file_response(self, *given: Any, **options: Any) -> Response:
        """The file, or status 304 if it has not changed."""
        answer = super().file_response(*given, **options)
        answer.headers["Cache-Control"] = "no-cache"
        return answer


class Compressed:
    """Compresses all answers but pictures and archives of them, which are compressed already."""

    def __init__(self, app: ASGIApp) -> None:
        self._plain = app
        self._zipped = GZipMiddleware(app, SMALL, LEVEL)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        picture = scope["type"] == "http" and path_of(scope).startswith(("/api/thumb/", "/api/zip"))
        await (self._plain if picture else self._zipped)(scope, receive, send)
