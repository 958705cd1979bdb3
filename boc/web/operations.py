"""Routes for operators of the server: liveness, readiness and measurements."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import FastAPI
from fastapi.responses import PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST

from boc.web.http.errors import ProblemError
from boc.web.live_index import Library
from boc.web.metrics import Metrics

FRESH = {"Cache-Control": "no-store"}


def add_operations(app: FastAPI, libraries: Mapping[str, Library], metrics: Metrics) -> None:
    """Add ``/healthz``, ``/readyz`` and ``/metrics`` to ``app``."""

    @app.get("/healthz", include_in_schema=False)
    async def alive() -> Response:
        return PlainTextResponse("ok\n", headers=FRESH)

    @app.get("/readyz", include_in_schema=False)
    def ready() -> Response:
        away = sum(not _reached(library) for library in libraries.values())
        told = f"{away} of {len(libraries)} indexes cannot be reached\n" if away else "ready\n"
        return PlainTextResponse(told, 503 if away else 200, FRESH)

    @app.get("/metrics", include_in_schema=False)
    def measured() -> Response:
        return Response(metrics.text(libraries), 200, FRESH, CONTENT_TYPE_LATEST)


def _reached(library: Library) -> bool:
    try:
        library.do(lambda _: None)
    except ProblemError:
        return False
    return True
