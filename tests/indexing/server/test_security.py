"""A cluster as it is run for real: TLS by an authority of its own, an API key that opens one
index's names only."""

import base64
import json
from pathlib import Path

import pytest

from boc.inputs.features import FeatureFile
from boc.plugins import backend
from boc.search.searcher import Searcher
from boc.types import MODALITIES
from tests.helpers import boc
from tests.servers import SecureServer

pytestmark = pytest.mark.servers

RIGHTS = ("manage", "read", "write")
"""The least that the pages name for the names of an index."""


def secrets(server: SecureServer, key: str) -> list[str]:
    """All that must never be seen: the password, the key, and its secret half; the other is a
    name."""
    return [server.password, key, base64.b64decode(key).decode().partition(":")[2]]


def test_commands_with_an_api_key(
    secure: SecureServer,
    library: Path,
    tmp_path: Path,
    monkeypatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    key = secure.api_key("photos", "photos-boc-*", rights=RIGHTS)
    address = secure.url.removeprefix("https://")
    at = ("--at", f"elastic+https://{address}?ca_certs={secure.authority}&replicas=0")
    features = library / "photos.h5"
    model = f"tern:{library / 'model'}"
    table = tmp_path / "metadata.csv"
    table.write_text(
        "id,number:integer,title:text\n000.png,7,a first box\n001.png,8,a second box\n",
        encoding="utf-8",
    )
    queries = tmp_path / "queries.txt"
    queries.write_text("a red box\nsomething green\n", encoding="utf-8")
    monkeypatch.setenv("BOC_API_KEY", key)
    said = []

    def ok(*arguments, status=0):
        result = boc(*arguments, *at)
        said.append(result.output + capfd.readouterr().out + capfd.readouterr().err)
        assert result.exit_code == status, result.output
        return result.output

    search = ("search", "photos", "--encoder", model)
    ok("index", "photos", features, "--metadata", table)
    ok("add", "photos", features)
    assert "000.png" in ok(*search, "--queries", features, "-k", 3)
    ok(*search, "a red box", "--filter", "number>=8", "--json")
    ok(*search, "a first box", "--hybrid", "rrf")
    ok(*search, "--queries", queries)
    assert '"query"' in ok(*search, "a red box", "-k", 3, "--request")
    ok("evaluate", features, "--name", "photos")
    ok("verify", "photos")
    ok("info", "photos")
    assert "elasticsearch" in ok("info")
    ok("explain", "photos", "a red box", "000.png", "--encoder", model)
    ok("delete", "photos", "001.png")
    # The key does not open this name.
    ok("index", "others", features, status=1)
    ok("delete", "photos", "--all")
    secure.request("PUT", "articles", {"settings": {"number_of_replicas": 0}})
    secure.request("PUT", "articles/_doc/000.png?refresh=true", {"price": 1})
    names = ("articles", "articles-boc*", "boc-on-articles*", "boc-probe-*")
    monkeypatch.setenv("BOC_API_KEY", secure.api_key(*names, rights=RIGHTS))
    # The other items have no document.
    ok("attach", "articles", features, "--yes", status=1)
    assert "000.png" in ok("search", "articles", "--queries", features, "--filter", "price=1")
    ok("attach", "articles", "--detach", "--yes")
    assert secure.request("GET", "articles/_source/000.png") == {"price": 1}
    output = "".join(said)
    assert not [secret for secret in secrets(secure, key) if secret in output]


def test_secrets_are_not_stored(
    secure: SecureServer,
    library: Path,
    monkeypatch,
) -> None:
    key = secure.api_key("pictures*")
    bare = f"elastic+{secure.url}"
    trusting = f"{bare}?ca_certs={secure.authority}"
    commands = [
        ("index", "pictures", library / "photos.h5"),
        ("search", "pictures", "a red box"),
        ("info", "pictures"),
        ("info",),
        ("verify", "pictures"),
        ("delete", "pictures", "--all"),
    ]
    for given, at, words in (
        (key, bare, "its certificate is not trusted"),
        (key[:-6] + "AAAAAA", trusting, "refuses access"),
        (None, trusting, "refuses access"),
    ):
        if given is None:
            monkeypatch.delenv("BOC_API_KEY", raising=False)
        else:
            monkeypatch.setenv("BOC_API_KEY", given)
        for command in commands:
            result = boc(*command, "--at", at)
            assert result.exit_code == 1, (command, result.output)
            assert words in result.output, (command, result.output)
            assert not [secret for secret in secrets(secure, key) if secret in result.output]
    monkeypatch.setenv("BOC_API_KEY", key)
    assert boc(*commands[0], "--at", trusting).exit_code == 0
    stored = [secure.request("GET", path) for path in ("pictures*", "pictures/_search?size=500")]
    assert not [secret for secret in secrets(secure, key) if secret in json.dumps(stored)]


def test_rights_on_an_alias_alone(
    secure: SecureServer,
    library: Path,
    tmp_path: Path,
    monkeypatch,
) -> None:
    """Nothing else is shown, nothing refused that the server allows: of a whole index, of a part,
    of attached codes."""
    pytest.importorskip("fastapi", reason="the interface needs the extra web")
    from fastapi.testclient import TestClient

    from boc.web.app import create_app
    from boc.web.settings import Settings

    monkeypatch.setenv("BOC_PASSWORD", secure.password)
    host = secure.url.removeprefix("https://")
    options = f"?ca_certs={secure.authority}"
    admin = ("--at", f"elastic+https://elastic@{host}{options}&replicas=0")
    features = library / "photos.h5"
    model = f"tern:{library / 'model'}"
    table = tmp_path / "metadata.csv"
    with FeatureFile(features) as file:
        ids = [item.id for modality in MODALITIES for item in file.items(modality)]
    rows = [f"{id},t{i % 2}" for i, id in enumerate(ids)]
    table.write_text("\n".join(["id,tag", *rows]), encoding="utf-8")
    boc(f"index whole {features} --metadata {table}", *admin)
    shop = {"settings": {"number_of_replicas": 0}, "aliases": {"shop": {}}}
    secure.request("PUT", "shop-1", shop)
    pictures = [id for id in ids if "#" not in id]
    for i, id in enumerate(pictures):
        secure.request("PUT", f"shop-1/_doc/{id}?refresh=true", {"tag": f"t{i % 2}"})
    # Captions have no document.
    assert boc(f"attach shop {features} --yes", *admin).exit_code == 1
    (physical,) = secure.request("GET", "whole")
    tagged = {"term": {"meta.tag": "t1"}}
    blocks = {"exists": {"field": "block"}}
    actions = [
        {"index": physical, "alias": "all"},
        {"index": physical, "alias": "part", "filter": {"bool": {"should": [tagged, blocks]}}},
        {"index": physical, "alias": "blind", "filter": tagged},
        {"index": "shop-1", "alias": "window", "filter": {"term": {"tag.keyword": "t1"}}},
    ]
    secure.request("POST", "_aliases", {"actions": [{"add": action} for action in actions]})
    rights = ["read", "view_index_metadata"]
    url = f"elastic+https://{host}{options}"
    user = ("--at", url)
    for alias, shown in (
        ("all", {*ids}),
        ("part", {*ids[1::2]}),
        ("window", {*pictures[1::2]}),
    ):
        names = ["window", "shop-boc", "shop"] if alias == "window" else [alias]
        monkeypatch.setenv("BOC_API_KEY", secure.api_key(*names, rights=rights))
        search = ("search", alias, "a red box", "-k", 99, "--encoder", model)
        commands = [(*search, "--json"), ("info", alias), ("verify", alias)]
        if alias != "window":
            commands.append(("copy", alias, f"{alias}-copy", "--to", f"file:{tmp_path}"))
        output = ""
        for command in commands:
            result = boc(*command, *user)
            assert result.exit_code == 0, (command, result.output)
            output += result.output
        assert not [id for id in {*ids} - shown if id in output]
        searcher = Searcher.open(alias, url, encoder=model, device="cpu")
        assert {item.id for item in searcher.index.items()} == shown
        app = create_app(searcher, Settings(alias, url, cache=tmp_path))
        client = TestClient(app, base_url="http://127.0.0.1:8000")
        for path in ("/api/library?k=99", "/api/search?q=a%20red%20box&k=99"):
            assert {hit["id"] for hit in client.get(path).json()["hits"]} <= shown, path
        if alias != "window":
            copy = backend(f"file:{tmp_path}").open(f"{alias}-copy")
            assert {item.id for item in copy.items()} == shown
        for other in ("whole", physical, "shop-1"):
            assert boc("search", other, "a red box", "--encoder", model, *user).exit_code == 1
    monkeypatch.setenv("BOC_API_KEY", secure.api_key("blind", rights=rights))
    output = boc(f"search blind a --encoder {model}", *user).output
    assert "the filter of the alias blind hides the code" in output
