"""Create the application: the page, its static files, and the JSON API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Thread

from fastapi import FastAPI
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, Response
from fastapi.staticfiles import StaticFiles
from jinja2 import Environment, FileSystemLoader, select_autoescape
from PIL import Image

from boc import __version__
from boc.search.searcher import Searcher
from boc.web import routes
from boc.web.http.auth import Guard
from boc.web.http.limits import BodyLimit, LoadLimit
from boc.web.http.responses import Compression, answer_problems
from boc.web.live_index import Library
from boc.web.metrics import Metrics, RequestCount, add_operations
from boc.web.pictures.decoding import PixelBudget
from boc.web.pictures.thumbnails import Thumbnails
from boc.web.settings import Settings

HERE = Path(__file__).resolve().parent


def create_app(searcher: Searcher, settings: Settings) -> FastAPI:
    """Create the ASGI application that serves an index.

    Creating the application loads no data. The first request waits until the parts that
    ``searcher`` has not loaded yet are available.
    """
    app = FastAPI(
        title=f"boc: {settings.name}",
        version=__version__,
        description="Search pictures by sentences and sentences by "
        "pictures, with an explanation of each hit.",
        docs_url=None,
        redoc_url=None,
        lifespan=_warm,
    )
    answer_problems(app)
    metrics = Metrics()
    budget = PixelBudget(settings.decoding)
    library = Library(searcher, settings, budget)
    thumbnails = Thumbnails(settings.cache, settings.cache_bytes, budget)
    app.state.service = routes.Service(library, thumbnails, settings)
    app.include_router(routes.api)
    app.mount("/static", StaticFiles(directory=HERE / "static"), "static")
    pages = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=select_autoescape(default=True),
    )
    template = pages.get_template("index.html")

    @app.get("/", include_in_schema=False)
    def page() -> Response:
        # The page uses relative URLs, so that a proxy can serve the page below a prefix.
        return HTMLResponse(template.render(name=settings.name, token=settings.token is not None))

    add_operations(app, library, metrics)
    app.add_middleware(Compression)
    # The middleware that is added last handles a request first.
    for layer in (LoadLimit, BodyLimit, Guard):
        app.add_middleware(layer, settings=settings)
    app.add_middleware(RequestCount, metrics=metrics)
    return app


@asynccontextmanager
async def _warm(app: FastAPI) -> AsyncIterator[None]:
    """Load the picture decoders, and sort the pictures of folders, so that the first requests do
    not have to wait."""
    await run_in_threadpool(Image.init)
    service = app.state.service
    if service.settings.at.startswith("file:"):
        for make in (service.library.snapshot.by_date, service.library.snapshot.warm):
            Thread(target=make, daemon=True).start()
    yield
