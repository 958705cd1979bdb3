"""Serve the page from your own application. The page is a FastAPI application, so you
can add routes.

    python examples/serve_in_your_app.py photos file:boc-data
    curl 'http://127.0.0.1:8000/api/best?q=a+house+in+the+snow'

Routes below /api/ require the token, if Settings contains a token, and are subject to
the load limits.
"""

import sys

import uvicorn
from fastapi import FastAPI

import boc
from boc.web.app import create_app
from boc.web.settings import Settings


def application(name: str, at: str, token: str | None = None) -> FastAPI:
    index = boc.open(name, at)
    app = create_app(index.searcher, Settings(name, at, token=token))

    @app.get("/api/best")
    def best(q: str) -> dict[str, str | float]:
        """Return the best picture, as an example of your own route."""
        hits = index.search(q, k=1)
        return {"id": hits[0].id, "score": hits[0].score} if hits else {}

    return app


if __name__ == "__main__":
    uvicorn.run(application(*sys.argv[1:]))
