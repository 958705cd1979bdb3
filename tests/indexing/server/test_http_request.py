"""The requests of ``boc query``: sent by other programs, they have the hits of ``boc search``; no secret is in them."""

from __future__ import annotations

import json
import re
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from boc.names import REQUEST_FORMS
from boc.search.searcher import Searcher
from indexing.server.address import parse
from indexing.server.requests import HttpRequest
from tests.helpers import boc
from tests.servers.fixtures import kinds

SCHEMES = {"elasticsearch": "elastic", "opensearch": "opensearch"}
SERVERS = kinds("opensearch-3", "elasticsearch-9")
FRACTION = re.compile(r"-?\d+(?:\.\d+(?:e-?\d+)?|e-?\d+)")


def ok(*arguments: object) -> str:
    result = boc(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def assert_alike(text: str, other: str) -> None:
    """Equal but for the last digits of fractions: an encoder that is opened twice may round them another way."""
    assert FRACTION.sub("#", text) == FRACTION.sub("#", other)
    fractions = [[float(number) for number in FRACTION.findall(each)] for each in (text, other)]
    assert fractions[0] == pytest.approx(fractions[1], rel=1e-5, abs=1e-6)


@pytest.fixture
def at(server: Any) -> str:
    return f"{SCHEMES[server.kind.engine]}+{server.url}"


@pytest.fixture
def name(at: str, library: Path) -> Iterator[str]:
    """The index ``photos`` of the library, copied to the server."""
    found = f"boc-test-{uuid.uuid4().hex[:12]}"
    ok("copy", "photos", found, "--from", f"file:{library / 'index'}", "--to", f"{at}?replicas=0")
    yield found
    ok("delete", found, "--all", "--at", at)


def program(text: str) -> str:
    done = subprocess.run(["sh"], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("server", SERVERS, indirect=True)
@pytest.mark.parametrize(
    "asked",
    [
        ("a red box",),
        ("a red box -left", "-k", 3, "--rm", 2),
        ("something green", "--find", "text", "-k", 5),
        ("a red box", "--filter", "width=64", "--filter", "size!=1", "-k", 5),
        ("a red box", "--filter", "width=63"),
        ("a red box", "--rm", 100_000, "-k", 1),
    ],
    ids=str,
)
def test_the_body_sent_by_curl_has_the_hits_of_a_search(
    server: Any, at: str, name: str, asked: tuple[Any, ...]
) -> None:
    hits = json.loads(ok("search", name, *asked, "--json", "--at", at))["hits"]
    answer = json.loads(program(ok("query", name, *asked, "--as", "curl", "--at", at)))
    found = answer["hits"]["hits"]
    assert [hit["_source"]["id"] for hit in found] == [hit["id"] for hit in hits]
    assert [hit["_source"]["content"] for hit in found] == [hit["content"] for hit in hits]
    assert [hit["_score"] - 1.01 for hit in found] == pytest.approx([hit["score"] for hit in hits], abs=1e-5)
    assert bool(hits) == ("width=63" not in asked)


@pytest.mark.parametrize("server", SERVERS, indirect=True)
def test_the_interface_answers_with_the_body_that_the_command_prints(
    server: Any, at: str, name: str, library: Path, tmp_path: Path
) -> None:
    pytest.importorskip("fastapi", reason="the interface needs the extra web")
    from fastapi.testclient import TestClient

    from boc.web.app import create_app
    from boc.web.settings import Settings

    app = create_app(Searcher.open(name, at, device="cpu"), Settings(name, at, cache=tmp_path, api_only=True))
    client = TestClient(app, base_url="http://127.0.0.1:8000")
    for asked, params in (
        (("a red box", "-k", 4), {"q": "a red box", "k": 4}),
        (
            ("a red box -left", "-k", 3, "--rm", 2, "--filter", "width=64"),
            {"q": "a red box -left", "k": 3, "rm": 2, "filter": "width=64"},
        ),
        (("something green", "--find", "text"), {"q": "something green", "find": "text", "k": 10}),
    ):
        answer = client.get("/api/query", params=params)
        assert answer.headers["content-type"] == "application/json"
        assert_alike(answer.text, ok("query", name, *asked, "--at", at).rstrip("\n"))
        hits = server.request("POST", f"{name}/_search", answer.json())["hits"]["hits"]
        wanted = json.loads(ok("search", name, *asked, "--json", "--at", at))["hits"]
        assert [hit["_source"]["id"] for hit in hits] == [hit["id"] for hit in wanted]
    picture = library / "images" / "005.png"
    answer = client.post("/api/query", files={"image": ("any.png", picture.read_bytes())}, params={"k": 4})
    assert_alike(answer.text, ok("query", name, "--image", picture, "-k", 4, "--at", at).rstrip("\n"))


def at_of(library: Path) -> str:
    return f"file:{library / 'index'}"


@pytest.mark.parametrize("server", kinds("opensearch-3"), indirect=True)
@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (("-k", 10_001), "at most 10000 hits, got k = 10001; ask for fewer"),
        (("--rerank", "mrsw"), "does not re-rank by mrsw, boc does; add --rerank dot"),
        (("--filter", "colour=red"), "colour"),
    ],
    ids=str,
)
def test_what_no_single_request_does_is_refused(
    server: Any, at: str, name: str, asked: tuple[Any, ...], words: str
) -> None:
    result = boc("query", name, "a red box", *asked, "--at", at)
    assert result.exit_code == 1
    assert words in result.output


def test_an_index_in_a_folder_is_refused_with_what_answers_instead(library: Path) -> None:
    result = boc("query", "photos", "a red box", "--at", f"file:{library / 'index'}")
    assert result.exit_code == 1
    assert "photos is in a folder" in result.output
    assert "boc serve photos" in result.output
    assert "boc copy photos --to elastic+URL" in result.output


@pytest.mark.parametrize("user", ["me o'hara@", ""])
def test_secrets_are_named_by_their_variables(user: str) -> None:
    environment = {"BOC_PASSWORD": "pass-secret", "BOC_API_KEY": "key-secret"}
    quoted = user.replace(" ", "%20")
    address = parse(f"elastic+https://{quoted}one.example.org,two.example.org/below", environment)
    request = HttpRequest(address, "photos", {"query": {"term": {"a'b": "END"}}})
    for form in REQUEST_FORMS:
        written = request.written(form)
        assert "secret" not in written
        if form == "curl":
            assert ("BOC_PASSWORD" if user else "BOC_API_KEY") in written
            assert "https://one.example.org:443/below" in written
    echo = request.written("curl").replace("curl ", "printf '%s\\n' ", 1)
    arguments = program(f"BOC_PASSWORD='a b' BOC_API_KEY='c d'\n{echo}").splitlines()
    assert ("me o'hara:a b" if user else "Authorization: ApiKey c d") in arguments
