"""Add routes for server operators: liveness, readiness, and Prometheus metrics."""

from dataclasses import dataclass
from time import perf_counter

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
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from boc.web.http.headers import path_of
from boc.web.http.responses import ProblemError
from boc.web.live_index import Library

FRESH = {"Cache-Control": "no-store"}
METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """Counters for one application in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "boc_requests",
            "Requests answered.",
            ["route", "method", "status"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "boc_request_seconds",
            "Time from request to response in seconds.",
            ["route"],
            registry=self.registry,
            buckets=SECONDS,
        )
        ProcessCollector(registry=self.registry)


@dataclass
class RequestCount:
    """Count and time requests by route, which is a URL pattern such as ``/api/item/{id}``. The
    route is "none" if no route matches or if the request was rejected earlier. Methods that are not
    in ``METHODS`` are counted as "other". HEAD requests are handled as GET requests; the server
    itself drops the body."""

    app: ASGIApp
    metrics: Metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        begun = perf_counter()
        status = 500

        async def observe(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self.app(scope, receive, observe)
        finally:
            pattern = getattr(scope.get("route"), "path_format", None)
            if isinstance(pattern, str):
                route = pattern
            elif path_of(scope).startswith("/static/"):
                route = "/static"
            else:
                route = "none"
            method = scope["method"] if scope["method"] in METHODS else "other"
            self.metrics.requests.labels(route, method, str(status)).inc()
            self.metrics.seconds.labels(route).observe(perf_counter() - begun)


def add_operations(app: FastAPI, library: Library, metrics: Metrics) -> None:
    """Add ``/healthz``, ``/readyz`` and ``/metrics`` to ``app``."""

    @app.get("/healthz", include_in_schema=False)
    async def alive() -> Response:
        return PlainTextResponse("ok\n", headers=FRESH)

    @app.get("/readyz", include_in_schema=False)
    def ready() -> Response:
        try:
            library.do(lambda _: None)
        except ProblemError:
            return PlainTextResponse("the index cannot be reached\n", 503, FRESH)
        return PlainTextResponse("ready\n", 200, FRESH)

    @app.get("/metrics", include_in_schema=False)
    def measurements() -> Response:
        return Response(generate_latest(metrics.registry), 200, FRESH, CONTENT_TYPE_LATEST)
