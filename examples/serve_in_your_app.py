"""The page and its JSON interface as your own application: they are a FastAPI application, to which you add routes.

    python examples/serve_in_your_app.py photos file:boc-data
    curl 'http://127.0.0.1:8000/api/best?q=a+house+in+the+snow'

One searcher serves all requests. Routes below /api/ ask for the token, if Settings has one, and wait their turn.
"""

import sys

import uvicorn
from fastapi import FastAPI

from boc.search import Searcher
from boc.web.app import create_app
from boc.web.settings import Settings


def application(name: str, at: str, token: str | None = None) -> FastAPI:
    searcher = Searcher.open(name, at)
    app = create_app(searcher, Settings(name, at, token=token))

    @app.get("/api/best")
    def best(q: str) -> dict[str, str | float]:
        """A route of your own: the one best picture."""
        hits = searcher.search(q, k=1)
        return {"id": hits[0].item.id, "score": hits[0].score} if hits else {}

    return app


if __name__ == "__main__":
    uvicorn.run(application(*sys.argv[1:]))
