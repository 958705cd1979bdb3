"""Whatever is asked of the page, it answers, and not with a fault of its own."""

from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from boc.search.searcher import Searcher

pytest.importorskip(
    "fastapi",
    reason="the page needs the extra web",
)

from fastapi.testclient import TestClient

from tests.boc.web.test_api import client_of

ROUTES = ("search", "explain/", "item/", "thumb/", "info", "")
NAMES = (
    "q",
    "k",
    "rm",
    "z",
    "find",
    "like",
    "unlike",
    "filter",
    "hybrid",
    "rerank",
    "side",
    "weight",
)
TEXT = st.text(max_size=12)
VALUES = (
    TEXT
    | st.integers().map(str)
    | st.floats().map(str)
    | st.sampled_from(["000.png", "image", "rrf", "240"])
)
PARAMETERS = st.lists(
    st.tuples(
        st.sampled_from(NAMES) | TEXT,
        VALUES,
    ),
    max_size=4,
)
HEADERS = st.dictionaries(
    st.sampled_from(
        [
            "host",
            "origin",
            "authorization",
            "cookie",
            "if-none-match",
            "x-request-id",
            "content-type",
        ],
    ),
    st.text(
        alphabet=st.characters(
            min_codepoint=32,
            max_codepoint=126,
        ),
        max_size=12,
    ),
    max_size=3,
)


@pytest.fixture(scope="module")
def client(library: Path, tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    searcher = Searcher.open(
        "photos",
        f"file:{library / 'index'}",
        device="cpu",
    )
    return client_of(
        searcher,
        tmp_path_factory.mktemp("cache"),
    )


@pytest.mark.slow
@given(
    st.sampled_from(["GET", "HEAD", "POST", "PUT"]),
    st.sampled_from(["/api/", "/index/photos/api/", "/static/", "/"]),
    st.sampled_from(ROUTES),
    TEXT,
    PARAMETERS,
    HEADERS,
    st.binary(max_size=40),
)
@example(
    "GET",
    "/api/",
    "thumb/",
    "../../etc/passwd",
    [],
    {},
    b"",
)
@example(
    "POST",
    "/api/",
    "search",
    "",
    [],
    {"content-type": "multipart/form-data; boundary=x"},
    b"--x",
)
def test_requests(
    client: TestClient,
    method: str,
    prefix: str,
    route: str,
    rest: str,
    parameters: list[tuple[str, str]],
    headers: dict[str, str],
    body: bytes,
) -> None:
    query = "&".join(f"{quote(name)}={quote(value)}" for name, value in parameters)
    address = f"{prefix}{route}{quote(rest, safe='/.')}?{query}"
    assert (
        client.request(
            method,
            address,
            headers=headers,
            content=body,
        ).status_code
        < 500
    ), address
