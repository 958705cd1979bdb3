"""The application: the page, what it loads, and the JSON interface behind it."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, select_autoescape

from boc import __version__
from boc.search import Searcher
from boc.web import api_docs, routes
from boc.web.auth import Guard
from boc.web.errors import answer_problems
from boc.web.limits import Bodies, Crowd
from boc.web.live_index import Library
from boc.web.responses import Checked, Compressed
from boc.web.settings import Settings
from boc.web.thumbnails import Thumbnails

HERE = Path(__file__).resolve().parent


def create_app(searcher: Searcher, settings: Settings) -> FastAPI:
    """The server of one index, as an ASGI application. Loads nothing: what ``searcher`` has not loaded yet, the first
    request waits for."""
    app = FastAPI(
        title=f"boc: {settings.name}",
        version=__version__,
        description="Search pictures by sentences, and sentences by pictures; and why each was found.",
        docs_url=None,
        redoc_url=None,
    )
    answer_problems(app)
    library = Library(searcher, settings)
    app.include_router(routes.router(library, Thumbnails(settings.cache, settings.cache_bytes), settings))
    app.mount("/static", Checked(directory=HERE / "static"), "static")
    pages = Environment(loader=FileSystemLoader(HERE / "templates"), autoescape=select_autoescape(default=True))

    @app.get("/", include_in_schema=False)
    def page() -> HTMLResponse:
        shown = pages.get_template("index.html").render(name=settings.name, version=__version__)
        return HTMLResponse(shown, headers={"Cache-Control": "no-cache"})

    @app.get("/docs", include_in_schema=False)
    def docs() -> HTMLResponse:
        return HTMLResponse(api_docs.page(app.openapi()))

    app.add_middleware(Compressed)
    for layer in (Crowd, Bodies, Guard):  # the last is the first to be asked
        app.add_middleware(layer, settings=settings)
    return app
