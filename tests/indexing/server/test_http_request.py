"""The requests of searches: sent by other programs, they have the hits of the search."""

import json
from pathlib import Path
from typing import Any

import pytest

from boc.errors import BocError
from boc.manage.build import build_index
from boc.search.options import SearchOptions
from boc.search.queries import Query
from boc.search.searcher import Searcher
from boc.types import Filter
from tests.servers.fixtures import address, kinds

SEARCHES = [
    ("a red box", (), SearchOptions()),
    (
        "a red box",
        ("left",),
        SearchOptions(
            k=3,
            rm=2,
        ),
    ),
    ("something green", (), SearchOptions(k=5, find="text")),
    (
        "a red box",
        (),
        SearchOptions(
            k=5,
            filters=[
                Filter(
                    "width",
                    "=",
                    64,
                ),
                Filter("size", "!=", 1),
            ],
        ),
    ),
    (
        "a red box",
        (),
        SearchOptions(
            filters=[
                Filter(
                    "width",
                    "=",
                    63,
                ),
            ],
        ),
    ),
    ("a red box", (), SearchOptions(k=1, rm=100_000)),
]
REFUSED = [
    (SearchOptions(k=10_001), "at most 10000 hits, got k = 10001; set a smaller k"),
    (SearchOptions(rerank="mrsw"), "cannot re-rank by mrsw; only boc can; add rerank='dot'"),
    (
        SearchOptions(
            filters=[
                Filter(
                    "colour",
                    "=",
                    "red",
                ),
            ],
        ),
        "colour",
    ),
]


@pytest.mark.parametrize(
    "server",
    kinds("opensearch-3", "elasticsearch-9"),
    indirect=True,
)
def test_request_has_the_hits_of_a_search(
    server: Any,
    name: str,
    library: Path,
    tmp_path: Path,
):
    at = address(server, replicas=0)
    build_index(name, library / "photos.h5", at=at, concepts="float16")
    searcher = Searcher.open(name, at, device="cpu")
    for text, minus, options in SEARCHES:
        query = Query.of(text, minus=minus)
        hits = searcher.search_query(query, options)
        body = searcher.request(query, options)
        found = server.request("POST", f"{name}/_search", json.loads(body))["hits"]["hits"]
        sources = [(hit["_source"]["id"], hit["_source"]["content"]) for hit in found]
        assert sources == [(hit.item.id, hit.item.content) for hit in hits]
        wanted = pytest.approx([hit.score for hit in hits], abs=1e-5)
        given = [hit["_score"] for hit in found]
        # Scores of servers are positive.
        assert [score - 1 if score >= 1 else 1 - 1 / score for score in given] == wanted
        assert bool(hits) == (
            options.filters[:1]
            != [
                Filter(
                    "width",
                    "=",
                    63,
                ),
            ]
        )
    for options, words in REFUSED:
        with pytest.raises(BocError, match=words):
            searcher.request(Query.of("a red box"), options)


def test_request_needs_a_server(library: Path):
    searcher = Searcher.open("photos", f"file:{library / 'index'}", device="cpu")
    words = r"(?s)photos is in a folder.*boc serve photos.*copy_index\(\.\.\., to='elastic\+U"
    with pytest.raises(BocError, match=words):
        searcher.request(Query.of("a red box"))
