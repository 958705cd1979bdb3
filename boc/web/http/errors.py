"""Errors as answers: ``{"error": "one line"}`` and a status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from boc.errors import BocError
from boc.web.http.headers import HEADERS
from boc.web.http.observed import REQUEST


class ProblemError(Exception):
    """An error to answer with. ``message`` names the value, the rule and the next step."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = dict(headers or {})


def refusal(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """The answer to a failed request."""
    body = orjson.dumps({"error": " ".join(message.split())})
    return Response(body, status, {"Cache-Control": "no-store", **(headers or {})}, "application/json")


def unknown(id: str) -> ProblemError:
    """The 404 error for an unknown item ``id``."""
    return ProblemError(404, f"no item {id[:200]!r} in the index; give an id as a search gives it")


def answer_problems(app: FastAPI) -> None:
    """Make ``app`` answer every error in this form."""

    @app.exception_handler(ProblemError)
    def problem(_: Request, error: ProblemError) -> Response:
        return refusal(error.status, str(error), error.headers)

    @app.exception_handler(BocError)
    def ours(_: Request, error: BocError) -> Response:
        return refusal(400, str(error))

    @app.exception_handler(RequestValidationError)
    def invalid(request: Request, error: RequestValidationError) -> Response:
        kind = request.headers.get("content-type", "").partition(";")[0]
        wants_picture = any(tuple(each["loc"]) == ("body", "image") for each in error.errors())
        if wants_picture and kind.strip().lower() != "multipart/form-data":
            return refusal(415, f"a body of type {kind[:100]!r}; send a form (multipart/form-data) with a file image")
        return refusal(400, "; ".join(map(_told, error.errors())))

    @app.exception_handler(HTTPException)
    def http(_: Request, error: HTTPException) -> Response:
        return refusal(error.status_code, str(error.detail), error.headers)

    @app.exception_handler(Exception)
    def fault(_: Request, error: Exception) -> Response:
        # this handler runs outside the layers, which would add the headers
        said = f"the server failed at this; its terminal has the error, under request {REQUEST.get()}"
        return refusal(500, said, {**HEADERS, "X-Request-ID": REQUEST.get()})


def _told(error: Mapping[str, Any]) -> str:
    place: Sequence[Any] = error.get("loc", ())
    given = f", got {str(error['input'])[:100]!r}" if isinstance(error.get("input"), (str, int, float)) else ""
    return f"{' '.join(map(str, place[1:]))}: {error['msg'].lower()}{given}"
