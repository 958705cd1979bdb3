"""How files and texts go out: checked for changes each time, and compressed where that helps."""

from __future__ import annotations

from typing import Any

import orjson
from fastapi.responses import Response
from fastapi.staticfiles import StaticFiles
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from boc.web.headers import path_of

SMALL = 1000  # bytes that are sent as they are
LEVEL = 5


def as_json(value: Any) -> Response:
    """An answer that is of this moment."""
    return Response(orjson.dumps(value), 200, {"Cache-Control": "no-store"}, "application/json")


class Checked(StaticFiles):
    """Files that browsers keep, but ask after each time: an upgrade never mixes old and new ones."""

    def file_response(self, *given: Any, **options: Any) -> Response:
        """The file, or that it has not changed."""
        answer = super().file_response(*given, **options)
        answer.headers["Cache-Control"] = "no-cache"
        return answer


class Compressed:
    """Compresses everything but pictures, which are so already."""

    def __init__(self, app: ASGIApp) -> None:
        self._plain = app
        self._zipped = GZipMiddleware(app, SMALL, LEVEL)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        picture = scope["type"] == "http" and path_of(scope).startswith("/api/thumb/")
        await (self._plain if picture else self._zipped)(scope, receive, send)
