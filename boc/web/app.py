"""The application: the page, its static files, and the JSON interface."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, select_autoescape

from boc import __version__
from boc.search import Searcher
from boc.web import routes
from boc.web.http.auth import Guard
from boc.web.http.errors import answer_problems
from boc.web.http.limits import Bodies, Crowd, Heads
from boc.web.http.responses import Checked, Compressed
from boc.web.live_index import Library
from boc.web.pictures.decoding import Budget
from boc.web.pictures.thumbnails import Thumbnails
from boc.web.search import Search
from boc.web.settings import Settings

HERE = Path(__file__).resolve().parent


def create_app(searcher: Searcher, settings: Settings) -> FastAPI:
    """The server of one index as an ASGI application. It loads nothing itself: the first request waits for what
    ``searcher`` has not loaded yet."""
    app = FastAPI(
        title=f"boc: {settings.name}",
        version=__version__,
        description="Search pictures by sentences, and sentences by pictures; and why each was found.",
        docs_url=None,
        redoc_url=None,
    )
    answer_problems(app)
    budget = Budget(settings.decoding)
    library = Library(searcher, settings, budget)
    thumbnails = Thumbnails(settings.cache, settings.cache_bytes, budget)
    app.state.service = routes.Service(library, thumbnails, settings, Search(library, thumbnails))
    app.include_router(routes.api)
    app.mount("/static", Checked(directory=HERE / "static"), "static")
    pages = Environment(loader=FileSystemLoader(HERE / "templates"), autoescape=select_autoescape(default=True))

    @app.get("/", include_in_schema=False)
    def page() -> HTMLResponse:
        shown = pages.get_template("index.html").render(name=settings.name, version=__version__)
        return HTMLResponse(shown, headers={"Cache-Control": "no-cache"})

    app.add_middleware(Compressed)
    for layer in (Crowd, Bodies, Guard):  # the last layer added sees a request first
        app.add_middleware(layer, settings=settings)
    app.add_middleware(Heads)
    return app
