"""The application: the page, its static files, and the JSON interface."""

from __future__ import annotations

import json
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from multiprocessing import parent_process
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from fastapi import FastAPI
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from fastapi.staticfiles import StaticFiles
from jinja2 import Environment, FileSystemLoader, select_autoescape
from PIL import Image

from boc import __version__
from boc.errors import BocError
from boc.search.searcher import Searcher
from boc.web import routes
from boc.web.http.auth import Guard
from boc.web.http.limits import BodyLimit, LoadLimit
from boc.web.http.responses import Compression, answer_problems
from boc.web.http.server import configure_logging, return_memory
from boc.web.live_index import Library
from boc.web.metrics import Metrics, RequestCount, add_operations
from boc.web.microbatch import Batcher
from boc.web.pictures.decoding import PixelBudget
from boc.web.pictures.thumbnails import Thumbnails
from boc.web.settings import Settings

if TYPE_CHECKING:
    from boc.plugins import Encoder

HERE = Path(__file__).resolve().parent
SERVED = "BOC_SERVED"
"""Variable that tells a worker what it serves, in JSON: names, settings, and an encoder."""


def load_app(
    names: Sequence[str],
    settings: Settings,
    encoder: str | None,
    announce: Callable[[str], object] = str,
) -> FastAPI:
    """Open indexes, load their encoders, and create the application of them.

    ``announce`` is called with each encoder before it is loaded, once where several indexes have
    the same.
    """
    configure_logging()
    return_memory()
    searchers = {name: Searcher.open(name, settings.at, encoder=encoder) for name in names}
    loaded: dict[str, Encoder] = {}
    for searcher in searchers.values():
        identity = searcher.index.manifest.identity
        if identity.digest in loaded:
            searcher.encoder = loaded[identity.digest]
        else:
            announce(identity.spec)
            loaded[identity.digest] = searcher.encoder
        searcher.warm()
    return create_app(searchers[names[0]], settings, searchers)


def load_worker() -> FastAPI:
    """Do so in one of several processes, which ends with its parent."""
    parent = parent_process()

    def end_with_parent() -> None:
        assert parent is not None
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)

    Thread(target=end_with_parent, daemon=True).start()
    names, facts, encoder = json.loads(os.environ[SERVED])
    try:
        return load_app(names, Settings(**{**facts, "cache": Path(facts["cache"])}), encoder)
    except BocError as error:
        logging.getLogger(__name__).error("%s", error)
        # This status keeps uvicorn from starting another worker that would fail, too.
        raise SystemExit(3) from None


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
    searchers = {settings.name: searcher, **(others or {})}
    # The services share encoders, thumbnails, and the memory for decoding.
    budget = PixelBudget(settings.decoding)
    batching: dict[str, Batcher] = {}
    thumbnails = Thumbnails(settings.cache, settings.cache_bytes, budget)
    services = {}
    for name, each in searchers.items():
        library = Library(each, settings, budget, batching)
        own = replace(settings, name=name)
        services[name] = routes.Service(tuple(searchers), library, thumbnails, own, metrics.stages)
    app.state.services = services
    app.include_router(routes.api)
    app.include_router(routes.api, prefix="/index/{index}", include_in_schema=False)
    if not settings.api_only:
        app.mount("/static", StaticFiles(directory=HERE / "static"), "static")
        add_pages(app)
    libraries = [service.library for service in services.values()]
    add_operations(app, libraries, metrics, settings.workers)
    app.add_middleware(Compression)
    for layer in (LoadLimit, BodyLimit, Guard):  # the last layer added sees a request first
        app.add_middleware(layer, settings=settings)
    app.add_middleware(RequestCount, metrics=metrics)
    return app


@asynccontextmanager
async def _warm(app: FastAPI) -> AsyncIterator[None]:
    """Load the decoders of pictures, for which the first thumbnail would wait, and order the
    pictures of folders."""
    await run_in_threadpool(Image.init)
    for service in app.state.services.values():
        if service.settings.at.startswith("file:") and not service.settings.api_only:
            for make in (service.library.snapshot.by_date, service.library.snapshot.warm):
                Thread(target=make, daemon=True).start()
    yield


def add_pages(app: FastAPI) -> None:
    """Add the page of each index. All its addresses are relative, so that a proxy may serve it
    below a prefix."""
    pages = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=select_autoescape(default=True),
    )
    template = pages.get_template("index.html")

    def page(service: routes.Service, home: str) -> Response:
        return HTMLResponse(
            template.render(
                name=service.settings.name,
                names=service.names,
                home=home,
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
