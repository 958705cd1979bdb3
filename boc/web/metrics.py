"""Routes for operators of the server: liveness, readiness, and measurements for Prometheus."""

import os
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.responses import PlainTextResponse, Response
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector

from boc.web.http.responses import ProblemError
from boc.web.live_index import Library
from boc.web.settings import SHARED

FRESH = {"Cache-Control": "no-store"}
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """The counters of one application. With ``SHARED`` set, processes that share that folder answer
    with their sum."""

    def __init__(self) -> None:
        self._own = CollectorRegistry()
        several: dict[str, Any] = {"registry": self._own, "buckets": SECONDS}
        self._requests = Counter(
            "boc_requests",
            "Requests answered.",
            ["route", "method", "status"],
            registry=self._own,
        )
        self._seconds = Histogram(
            "boc_request_seconds",
            "Seconds from request to answer.",
            ["route"],
            **several,
        )
        self._stages = Histogram(
            "boc_stage_seconds",
            "Seconds of a stage of searches.",
            ["stage"],
            **several,
        )
        if SHARED not in os.environ:
            ProcessCollector(registry=self._own)

    def request(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        self._requests.labels(route, method, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def stages(self, milliseconds: Mapping[str, float | None]) -> None:
        """Record the stages of a search, which are named ``NAME_ms``."""
        for name, value in milliseconds.items():
            if value is not None:
                self._stages.labels(name.removesuffix("_ms")).observe(value / 1000)

    def text(self) -> bytes:
        """Return all values in the text format of Prometheus."""
        registry = self._own
        if SHARED in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry)


def add_operations(app: FastAPI, libraries: Mapping[str, Library], metrics: Metrics) -> None:
    """Add ``/healthz``, ``/readyz`` and ``/metrics`` to ``app``."""

    @app.get("/healthz", include_in_schema=False)
    async def alive() -> Response:
        return PlainTextResponse("ok\n", headers=FRESH)

    @app.get("/readyz", include_in_schema=False)
    def ready() -> Response:
        away = 0
        for library in libraries.values():
            try:
                library.do(lambda _: None)
            except ProblemError:
                away += 1
        text = f"{away} of {len(libraries)} indexes cannot be reached\n" if away else "ready\n"
        return PlainTextResponse(text, 503 if away else 200, FRESH)

    @app.get("/metrics", include_in_schema=False)
    def metrics_text() -> Response:
        return Response(metrics.text(), 200, FRESH, CONTENT_TYPE_LATEST)
