"""Routes for operators of the server: liveness, readiness, and measurements for Prometheus."""

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from datetime import datetime
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
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from boc.web.http.responses import ProblemError
from boc.web.live_index import Library
from boc.web.settings import SHARED

FRESH = {"Cache-Control": "no-store"}
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """The counters of one application. With ``SHARED`` set, processes that share that folder answer with their sum."""

    def __init__(self) -> None:
        self._own = CollectorRegistry()
        several: dict[str, Any] = {"registry": self._own, "buckets": SECONDS}
        self._requests = Counter(
            "boc_requests", "Requests answered.", ["route", "method", "status"], registry=self._own
        )
        self._seconds = Histogram("boc_request_seconds", "Seconds from request to answer.", ["route"], **several)
        self._stages = Histogram("boc_stage_seconds", "Seconds of a stage of searches.", ["stage"], **several)
        self._encoder = Histogram(
            "boc_encoder_seconds", "Seconds in which a query was encoded, waiting included.", ["kind"], **several
        )
        self._cache = Counter(
            "boc_cache_requests",
            "Values asked of a cache, by whether it had them.",
            ["cache", "result"],
            registry=self._own,
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

    def encoding(self, kind: str) -> AbstractContextManager[object]:
        """Return a block in which a query, a "text" or an "image", is encoded."""
        timer: AbstractContextManager[object] = self._encoder.labels(kind).time()
        return timer

    def cache(self, name: str) -> Callable[[bool], None]:
        """Return a function to call for each value asked of the cache ``name``, with whether the cache had it."""
        hit, miss = (self._cache.labels(name, result) for result in ("hit", "miss"))
        return lambda known: (hit if known else miss).inc()

    def text(self, libraries: Mapping[str, Library]) -> bytes:
        """Return all values, and the state of the indexes by name, in the text format of Prometheus."""
        registry = self._own
        if SHARED in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        indexes = CollectorRegistry()
        indexes.register(_Indexes(libraries))
        return generate_latest(registry) + generate_latest(indexes)


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
        return Response(metrics.text(libraries), 200, FRESH, CONTENT_TYPE_LATEST)


class _Indexes(Collector):
    """The indexes as the answering process has them open."""

    def __init__(self, libraries: Mapping[str, Library]) -> None:
        self._libraries = libraries

    def collect(self) -> Iterable[Metric]:
        up = GaugeMetricFamily("boc_index_up", "Whether the index can be reached.", labels=["index"])
        created = GaugeMetricFamily(
            "boc_index_created_timestamp_seconds", "When the index was made or last changed.", labels=["index"]
        )
        items = GaugeMetricFamily("boc_index_items", "Items of the index.", labels=["index", "modality"])
        encoder = GaugeMetricFamily(
            "boc_index_encoder", "The encoder of the index; always 1.", labels=["index", "encoder", "digest"]
        )
        for name, library in self._libraries.items():
            manifest = library.snapshot.searcher.index.manifest
            up.add_metric([name], float(library.away is None))
            created.add_metric([name], datetime.fromisoformat(manifest.created).timestamp())
            for modality, count in manifest.items.items():
                items.add_metric([name, modality], count)
            encoder.add_metric([name, manifest.identity.spec, manifest.identity.digest[:12]], 1)
        return up, created, items, encoder
