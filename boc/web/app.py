"""The application: the page, its static files, and the JSON interface."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from threading import Thread

from fastapi import FastAPI
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from fastapi.staticfiles import StaticFiles
from jinja2 import Environment, FileSystemLoader, select_autoescape
from PIL import Image

from boc import __version__
from boc.search.searcher import Searcher
from boc.web import routes
from boc.web.http.auth import Guard
from boc.web.http.limits import BodyLimit, Heads, LoadLimit
from boc.web.http.logs import RequestLog
from boc.web.http.responses import Compression, answer_problems
from boc.web.live_index import Library
from boc.web.metrics import Metrics, add_operations
from boc.web.microbatch import Batcher
from boc.web.pictures.decoding import PixelBudget
from boc.web.pictures.thumbnails import Thumbnails
from boc.web.search import Search
from boc.web.settings import Settings

HERE = Path(__file__).resolve().parent


def create_app(
    searcher: Searcher,
    settings: Settings,
    others: Mapping[str, Searcher] | None = None,
) -> FastAPI:
    """Create the server of one index, or of several, as an ASGI application.

    ``settings.name`` is the index at ``/``; it and the ``others``, by name, are at
    ``/index/NAME/``. With ``settings.api_only`` there is the JSON interface without pages. It loads
    nothing itself: the first request waits for what a searcher has not loaded yet.
    """
    app = FastAPI(
        title=f"boc: {settings.name}",
        version=__version__,
        description="Search pictures by sentences, and sentences "
        "by pictures; and why each was found.",
        docs_url=None,
        redoc_url=None,
        lifespan=_warm,
    )
    answer_problems(app)
    metrics = Metrics()
    app.state.services = services = _services(
        {settings.name: searcher, **(others or {})},
        settings,
        metrics,
    )
    app.include_router(routes.api)
    app.include_router(routes.api, prefix="/index/{index}", include_in_schema=False)
    if not settings.api_only:
        app.mount("/static", StaticFiles(directory=HERE / "static"), "static")
        _add_pages(app)
    add_operations(app, {name: service.library for name, service in services.items()}, metrics)
    app.add_middleware(Compression)
    for layer in (LoadLimit, BodyLimit, Guard):  # the last layer added sees a request first
        app.add_middleware(layer, settings=settings)
    app.add_middleware(RequestLog, count=metrics.request)
    app.add_middleware(Heads)
    return app


@asynccontextmanager
async def _warm(app: FastAPI) -> AsyncIterator[None]:
    """Load the decoders of pictures, for which the first thumbnail would wait, and order the
    pictures of folders."""
    await run_in_threadpool(Image.init)
    for service in app.state.services.values():
        if service.settings.at.startswith("file:") and not service.settings.api_only:
            Thread(target=service.library.snapshot.by_date, daemon=True).start()
    yield


def _services(
    searchers: Mapping[str, Searcher],
    settings: Settings,
    metrics: Metrics,
) -> dict[str, routes.Service]:
    """Return a service per index; they share encoders, thumbnails, and the memory for decoding."""
    budget = PixelBudget(settings.decoding)
    batching: dict[str, Batcher] = {}
    thumbnails = Thumbnails(settings.cache, settings.cache_bytes, budget)
    services = {}
    for name, searcher in searchers.items():
        library = Library(searcher, settings, budget, batching)
        search = Search(library, metrics.stages)
        own = replace(settings, name=name)
        services[name] = routes.Service(tuple(searchers), library, thumbnails, own, search)
    return services


def _add_pages(app: FastAPI) -> None:
    """Add the page of each index. All its addresses are relative, so that a proxy may serve it
    below a prefix."""
    pages = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=select_autoescape(default=True),
    )

    def page(service: routes.Service, home: str) -> Response:
        name = service.settings.name
        names = service.names
        return HTMLResponse(
            pages.get_template("index.html").render(
                name=name,
                names=names,
                home=home,
                version=__version__,
                token=service.settings.token is not None,
            ),
        )

    @app.get("/", include_in_schema=False)
    def first(service: routes.Served) -> Response:
        return page(service, "")

    @app.get("/index/{index}/", include_in_schema=False)
    def index_page(service: routes.Served) -> Response:
        return page(service, "../../")

    @app.get("/index/{index}", include_in_schema=False)
    def without_slash(service: routes.Served) -> Response:
        return RedirectResponse(f"{service.settings.name}/")
