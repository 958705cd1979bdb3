"""Request ids, and the log of the server on stderr, as lines of text or JSON.

No line holds a token, a sentence or an id.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from contextvars import ContextVar
from datetime import datetime, timezone
from time import perf_counter
from typing import Any, Literal, TypeAlias
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from boc.web.http.headers import below_index, path_of

Form: TypeAlias = Literal["text", "json"]

ID = "X-Request-ID"
REQUEST: ContextVar[str] = ContextVar("request", default="")
"""The id of the request that is being answered."""

ACCESS = "boc.access"
"""The name of the logger of answered requests."""

FAULTS = "boc.faults"
"""The name of the logger of pictures that were refused."""

_access = logging.getLogger(ACCESS)
_SOUND = re.compile("[A-Za-z0-9._-]{1,64}")


class RequestLog:
    """Give each request an id, that of its header ``X-Request-ID`` if it has one; count and log the
    response.

    ``count`` is called with the route, method, status and seconds of each request. The route is the
    pattern of its address, as ``/api/item/{id}``; "none" if there is no route, or the request was
    refused before.
    """

    def __init__(self, app: ASGIApp, count: Callable[[str, str, int, float], None]) -> None:
        self._app = app
        self._count = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = perf_counter()
        status = 500
        size = 0
        requested = Headers(scope=scope).get(ID, "")
        id = requested if _SOUND.fullmatch(requested) else uuid4().hex[:16]
        REQUEST.set(id)

        async def observe(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[ID] = id
            else:
                size += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, observe)
        finally:
            method = scope["method"]
            route = _route(scope)
            seconds = perf_counter() - start
            self._count(route, method, status, seconds)
            values = {
                "method": method,
                "route": route,
                "status": status,
                "ms": round(1000 * seconds, 1),
                "bytes": size,
            }
            values["client"] = (scope.get("client") or ("",))[0]
            _access.info("answered", extra={"values": values})


def _route(scope: Scope) -> str:
    pattern = getattr(scope.get("route"), "path_format", None)
    if isinstance(pattern, str):
        return below_index(pattern)
    return "/static" if path_of(scope).startswith("/static/") else "none"


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        values = getattr(record, "values", {}).values()
        line = " ".join(
            ascii(value)[1:-1] if isinstance(value, str) else str(value) for value in values
        )
        head = (
            f"{_time(record)} {record.levelname} {REQUEST.get() or '-'} "
            f"{line or record.getMessage()}"
        )
        return f"{head}\n{self.formatException(record.exc_info)}" if record.exc_info else head


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        values: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname,
            "request": REQUEST.get() or None,
        }
        values |= {"message": record.getMessage(), **getattr(record, "values", {})}
        if record.exc_info:
            values["traceback"] = self.formatException(record.exc_info)
        return json.dumps(values, default=str)  # in ASCII: some readers end lines at others than \n


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")


def configuration(form: Form | None) -> dict[str, Any]:
    """Return the ``log_config`` of uvicorn: faults of the server always, requests if a form is
    given."""
    formatter = _JsonFormatter if form == "json" else _TextFormatter
    levels = {"uvicorn": "WARNING", FAULTS: "WARNING"} | ({} if form is None else {ACCESS: "INFO"})
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"()": formatter}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
        "loggers": {
            name: {"handlers": ["stderr"], "level": level, "propagate": False}
            for name, level in levels.items()
        },
    }
