"""The requests of searches: sent by other programs, they have the hits of the search; no secret is
in them."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from boc.errors import BocError
from boc.manage.build import build_index
from boc.names import REQUEST_FORMS
from boc.search.options import SearchOptions
from boc.search.queries import Query
from boc.search.searcher import Searcher
from boc.types import Filter
from indexing.server.address import parse
from indexing.server.requests import HttpRequest
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
    (SearchOptions(k=10_001), "at most 10000 hits, got k = 10001; ask for fewer"),
    (SearchOptions(rerank="mrsw"), "does not re-rank by mrsw, boc does; add rerank='dot'"),
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


def program(text: str) -> str:
    done = subprocess.run(
        ["sh"],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


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
) -> None:
    at = address(server, replicas=0)
    build_index(name, library / "photos.h5", at=at, concepts="float16")
    searcher = Searcher.open(name, at, device="cpu")
    for text, minus, options in SEARCHES:
        query = Query.of(text, minus=minus)
        hits = searcher.search_query(query, options)
        curl = searcher.request(query, options).render("curl")
        found = json.loads(program(curl))["hits"]["hits"]
        sources = [(hit["_source"]["id"], hit["_source"]["content"]) for hit in found]
        assert sources == [(hit.item.id, hit.item.content) for hit in hits]
        wanted = pytest.approx([hit.score for hit in hits], abs=1e-5)
        given = [hit["_score"] for hit in found]
        # Both engines add something to scores, or turn negative ones, to get positive ones.
        by_script = [score - 1.01 for score in given]
        by_floats = [score - 1 if score >= 1 else 1 - 1 / score for score in given]
        assert wanted in (by_script, by_floats)
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


def test_request_needs_a_server(library: Path) -> None:
    searcher = Searcher.open("photos", f"file:{library / 'index'}", device="cpu")
    words = r"(?s)photos is in a folder.*boc serve photos.*copy_index\(\.\.\., to='elastic\+U"
    with pytest.raises(BocError, match=words):
        searcher.request(Query.of("a red box"))


@pytest.mark.parametrize("user", ["me o'hara@", ""])
def test_curl_names_variables(user: str) -> None:
    environment = {"BOC_PASSWORD": "pass-secret", "BOC_API_KEY": "key-secret"}
    quoted = user.replace(" ", "%20")
    place = parse(f"elastic+https://{quoted}one.example.org,two.example.org/below", environment)
    request = HttpRequest(
        place,
        "photos",
        {"query": {"term": {"a'b": "END"}}},
    )
    for form in REQUEST_FORMS:
        assert "secret" not in request.render(form)
    curl = request.render("curl")
    assert ("BOC_PASSWORD" if user else "BOC_API_KEY") in curl
    assert "https://one.example.org:443/below" in curl
    echo = curl.replace("curl ", "printf '%s\\n' ", 1)
    arguments = program(f"BOC_PASSWORD='a b' BOC_API_KEY='c d'\n{echo}").splitlines()
    assert ("me o'hara:a b" if user else "Authorization: ApiKey c d") in arguments
