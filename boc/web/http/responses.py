"""Create responses: JSON, errors as ``{"error": "one line"}`` with a status code, and
compression."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from boc.errors import BocError, worded
from boc.search.options import SearchOptions
from boc.web.http.headers import HEADERS, path_of

PARAMETERS = {"like", *vars(SearchOptions())}


class ProblemError(BocError):
    """Error that is sent as a response. ``message`` states the value, the rule and the next
    step."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.http_status = status
        self.headers = headers

    def answer(self) -> Response:
        """Return the error as an HTTP response."""
        return refusal(self.http_status, str(self), self.headers)


def as_json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON response that must not be cached."""
    return Response(
        orjson.dumps(value),
        status,
        {**(headers or {}), "Cache-Control": "no-store"},
        "application/json",
    )


def parameter_words(mark: str) -> str:
    """Convert an option in a hint to the request parameter of the same name. Other options stay
    unchanged, because they are for the operator, who uses the command line."""
    name, _, value = mark[2:].partition(" ")
    return f"{name}={value}" if name in PARAMETERS else mark


def refusal(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return the error response for a failed request."""
    return as_json({"error": " ".join(message.split())}, status, headers)


def unknown(id: str) -> ProblemError:
    """Return the 404 error for an unknown item ``id``."""
    return ProblemError(
        404,
        f"no item {id[:200]!r} in the index; it may have been removed or renamed",
    )


def answer_problems(app: FastAPI) -> None:
    """Make ``app`` return all errors in the format of this module."""

    @app.exception_handler(BocError)
    def ours(_: Request, error: BocError) -> Response:
        message = worded(error, parameter_words)
        return refusal(error.http_status, message, getattr(error, "headers", None))

    @app.exception_handler(RequestValidationError)
    def invalid(_: Request, error: RequestValidationError) -> Response:
        return refusal(400, "; ".join(map(_message, error.errors())))

    @app.exception_handler(HTTPException)
    def http(_: Request, error: HTTPException) -> Response:
        return refusal(error.status_code, str(error.detail), error.headers)

    @app.exception_handler(Exception)
    def fault(_: Request, error: Exception) -> Response:
        # This handler runs outside the middleware that adds the headers, so add them here.
        return refusal(
            500,
            "the request failed with an internal error; see the terminal of the server",
            HEADERS,
        )


def _message(error: Mapping[str, Any]) -> str:
    if error["type"] == "string_too_long":
        what = error["loc"][-1]
        if what == "q":
            what = "the sentence"
        return (
            f"{what} has {len(error['input']):,} characters; shorten it to "
            f"{error['ctx']['max_length']:,}"
        )
    value = ""
    if isinstance(error.get("input"), (str, int, float)):
        value = f", got {str(error['input'])[:100]!r}"
    return f"{' '.join(map(str, error.get('loc', ())[1:]))}: {error['msg'].lower()}{value}"


class Compression(GZipMiddleware):
    """Compress all responses except pictures, which are compressed already."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(app, minimum_size=1000, compresslevel=5)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pictures = ("/api/thumb/", "/api/picture/")
        if scope["type"] == "http" and path_of(scope).startswith(pictures):
            await self.app(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)
