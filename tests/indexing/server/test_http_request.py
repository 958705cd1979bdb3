"""The requests of ``boc query``: sent by other programs, they have the hits of ``boc search``; no secret is in them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from boc.names import REQUEST_FORMS
from boc.search.queries import Query
from boc.search.searcher import Searcher
from indexing.server.address import parse
from indexing.server.http_request import HttpRequest
from indexing.server.requests import dumps
from indexing.server.search_template import written
from tests.helpers import boc
from tests.servers.errors import RequestError
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


def program(form: str, text: str) -> str:
    run = ["sh"] if form == "curl" else [sys.executable, "-"]
    done = subprocess.run(run, input=text, capture_output=True, text=True, check=False)
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
    answer = json.loads(program("curl", ok("query", name, *asked, "--as", "curl", "--at", at)))
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


@pytest.mark.parametrize("server", SERVERS, indirect=True)
def test_all_forms_have_the_same_hits(server: Any, at: str, name: str) -> None:
    asked = ("a red box", "-k", 4, "--at", at)
    wanted = [hit["id"] for hit in json.loads(ok("search", name, "--json", *asked))["hits"]]
    body = json.loads(ok("query", name, *asked))
    head, _, lines = ok("query", name, *asked, "--as", "kibana").partition("\n")
    assert json.loads(lines) == body
    method, path = head.split()
    found = server.request(method, path, body)["hits"]["hits"]
    assert [hit["_source"]["id"] for hit in found] == wanted
    printed = program("python", ok("query", name, *asked, "--as", "python")).splitlines()
    assert [line.split()[0] for line in printed] == wanted


ASKED: list[tuple[Any, ...]] = [
    ("a red box",),
    ("a red box -left", "-k", 3, "--rm", 2),
    ("something green", "--find", "text", "-k", 5),
    ("a red box", "--filter", "width=64", "--filter", "size!=1", "-k", 5),
    ("a red box", "--filter", "width=63"),
]


@pytest.mark.parametrize("server", kinds("opensearch-3"), indirect=True)
def test_the_stored_template_has_the_hits_of_a_search(server: Any, at: str, name: str) -> None:
    missing = boc("query", name, "a red box", "--template", "--at", at)
    assert missing.exit_code == 1
    assert f"store it with boc query {name} --store" in missing.output
    ok("query", name, "--store", "--at", at)
    for asked in ASKED:
        hits = json.loads(ok("search", name, *asked, "--json", "--at", at))["hits"]
        call = (name, *asked, "--template", "--at", at, "--as")
        for_curl = ok("query", *call, "curl")
        assert "dotProduct" not in for_curl
        assert "params.query" not in for_curl
        found = json.loads(program("curl", for_curl))["hits"]["hits"]
        assert [hit["_source"]["id"] for hit in found] == [hit["id"] for hit in hits]
        assert [hit["_source"]["content"] for hit in found] == [hit["content"] for hit in hits]
        assert [hit["_score"] - 1.01 for hit in found] == pytest.approx([hit["score"] for hit in hits], abs=1e-5)
        printed = program("python", ok("query", *call, "python")).splitlines()
        assert [line.split()[0] for line in printed] == [hit["id"] for hit in hits]
        head, _, lines = ok("query", *call, "kibana").partition("\n")
        answer = server.request(*head.split(), json.loads(lines))
        assert [hit["_source"]["id"] for hit in answer["hits"]["hits"]] == [hit["id"] for hit in hits]
    sent = json.loads(ok("query", name, "a red box", "--template", "--at", at))
    path = f"{name}/_search/template"
    few = {"id": sent["id"], "params": {key: sent["params"][key] for key in ("terms", "vector", "modality")}}
    usual = [hit["id"] for hit in json.loads(ok("search", name, "a red box", "--json", "--at", at))["hits"]]
    assert [hit["_source"]["id"] for hit in server.request("POST", path, few)["hits"]["hits"]] == usual
    ok("query", name, "--remove", "--at", at)
    with pytest.raises(RequestError, match="unable to find script"):
        server.request("POST", path, sent)
    assert boc("query", name, "a red box", "--template", "--at", at).exit_code == 1


@pytest.mark.parametrize("server", kinds("opensearch-3"), indirect=True)
def test_a_template_goes_with_its_index(server: Any, at: str, name: str, library: Path) -> None:
    other = f"{name}-other"
    ok("copy", "photos", other, "--from", f"file:{library / 'index'}", "--to", f"{at}?replicas=0")
    ok("query", other, "--store", "--at", at)
    (first,) = server.request("GET", other)
    assert server.request("GET", f"_scripts/{first}")["found"]
    for _ in range(2):  # the one before the last goes
        ok("copy", "photos", other, "--replace", "--code", "bits:8", "--from", at_of(library), "--to", at)
    with pytest.raises(RequestError):
        server.request("GET", f"_scripts/{first}")
    ok("query", other, "--store", "--at", at)
    (last,) = server.request("GET", other)
    ok("delete", other, "--all", "--at", at)
    with pytest.raises(RequestError):
        server.request("GET", f"_scripts/{last}")


def at_of(library: Path) -> str:
    return f"file:{library / 'index'}"


@pytest.mark.parametrize("server", SERVERS, indirect=True)
@pytest.mark.parametrize("field", ["text", "best for many digits", "binary_text"])
def test_what_a_template_becomes_has_the_hits_of_a_search(server: Any, at: str, library: Path, field: str) -> None:
    """Written out here, also for servers without templates."""
    if field == "best for many digits":
        field = "sparse_vector" if server.kind.engine == "elasticsearch" else "rank_features"
    name = f"boc-test-{uuid.uuid4().hex[:12]}"
    ok("copy", "photos", name, "--from", at_of(library), "--to", f"{at}?replicas=0&field={field}")
    try:
        searcher = Searcher.open(name, at, device="cpu")
        index: Any = searcher.index
        index.generation = replace(index.generation, state=replace(index.generation.state, template=True))
        for asked, options in (("a red box", {"k": 10}), ("green", {"k": 3, "rm": 4.0, "find": "text"})):
            query = Query.of(asked)
            params = json.loads(dumps(searcher.request(query, template=True, **options).body["params"]))
            body = json.loads(rendered(written(index.generation), params))
            hits = server.request("POST", f"{name}/_search", body)["hits"]["hits"]
            wanted = searcher.search_query(query, **options)
            assert [hit["_source"]["id"] for hit in hits] == [hit.item.id for hit in wanted]
            assert [hit["_score"] - 1.01 for hit in hits] == pytest.approx([hit.score for hit in wanted], abs=1e-5)
    finally:
        ok("delete", name, "--all", "--at", at)


def rendered(template: str, values: Any) -> str:
    """What mustache makes of it: sections of lists, values that are there or not, and toJson."""

    def section(match: re.Match[str]) -> str:
        kind, key, inner = match.groups()
        if key == "toJson":
            return json.dumps(values if inner == "." else values[inner])
        value = values.get(key)
        if kind == "^":
            return "" if value else inner
        rows = value if isinstance(value, list) else [values] if value else []
        return "".join(rendered(inner, row) for row in rows)

    whole = re.sub(r"\{\{([#^])(\w+)\}\}(.*?)\{\{/\2\}\}", section, template, flags=re.DOTALL)
    return re.sub(r"\{\{(\w+)\}\}", lambda match: str(values.get(match[1], "")), whole)


@pytest.mark.parametrize("server", kinds("elasticsearch-9"), indirect=True)
def test_a_server_without_templates_is_told(server: Any, at: str, name: str) -> None:
    """The archive that is fetched lacks the module; a whole distribution has it."""
    result = boc("query", name, "--store", "--at", at)
    if result.exit_code == 0:
        return
    assert "has no search templates, which are of its module lang-mustache" in result.output


@pytest.mark.parametrize("server", kinds("opensearch-3"), indirect=True)
@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (("-k", 10_001), "at most 10000 hits, got k = 10001; ask for fewer"),
        (("--rerank", "mrsw"), "does not re-rank by mrsw, boc does; add --rerank dot"),
        (("--filter", "colour=red"), "colour"),
        (("--template", "-k", 10, "--rm", 2000), "re-ranks at most 10000 candidates, got 20000; lower --rm"),
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


def test_a_query_needs_something_to_ask(library: Path) -> None:
    assert boc("query", "photos", "--at", at_of(library)).exit_code == 2
    assert boc("query", "photos", "a red box", "--store", "--at", at_of(library)).exit_code == 2
    assert boc("query", "photos", "--store", "--remove", "--at", at_of(library)).exit_code == 2
    for option in ("--store", "--remove"):
        assert "stores no search templates" in boc("query", "photos", option, "--at", at_of(library)).output


@pytest.mark.parametrize("engine", ["elasticsearch", "opensearch"])
@pytest.mark.parametrize("user", ["me o'hara@", ""])
def test_secrets_are_named_by_their_variables(engine: str, user: str) -> None:
    environment = {"BOC_PASSWORD": "pass-secret", "BOC_API_KEY": "key-secret"}
    quoted = user.replace(" ", "%20")
    address = parse(f"{SCHEMES[engine]}+https://{quoted}one.example.org,two.example.org/below", environment)
    request = HttpRequest(engine, address, "photos", {"query": {"term": {"a'b": "END"}}})
    for form in REQUEST_FORMS:
        written = request.written(form)
        assert "secret" not in written
        if form in ("curl", "python"):
            assert ("BOC_PASSWORD" if user else "BOC_API_KEY") in written
            assert "https://one.example.org:443/below" in written
    compile(request.written("python"), "program", "exec")
    echo = request.written("curl").replace("curl ", "printf '%s\\n' ", 1)
    arguments = program("curl", f"BOC_PASSWORD='a b' BOC_API_KEY='c d'\n{echo}").splitlines()
    assert ("me o'hara:a b" if user else "Authorization: ApiKey c d") in arguments
