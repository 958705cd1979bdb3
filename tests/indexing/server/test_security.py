"""A cluster as it is run for real: TLS by an authority of its own, an API key that opens one
index's names only."""

import base64
import hashlib
import json
import ssl
import subprocess
from pathlib import Path

import pytest

from boc.inputs.features import FeatureFile
from boc.plugins import backend
from boc.search.searcher import Searcher
from boc.types import MODALITIES
from tests.helpers import boc
from tests.servers import SecureServer

pytestmark = pytest.mark.servers


def secrets(server: SecureServer, key: str) -> list[str]:
    """All that must never be seen: the password, the key, and its secret half; the other is a
    name."""
    return [server.password, key, base64.b64decode(key).decode().partition(":")[2]]


def test_commands_with_an_api_key(
    secure: SecureServer,
    library: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    key = secure.api_key("photos", "photos-boc-*")
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
    said: list[str] = []

    def ok(*arguments: object, status: int = 0) -> str:
        result = boc(*arguments, *at)
        said.append(result.output + capfd.readouterr().out + capfd.readouterr().err)
        assert result.exit_code == status, result.output
        return result.output

    ok("index", "photos", features, "--metadata", table)
    ok("add", "photos", features)
    assert "000.png" in ok("search", "photos", "--queries", features, "-k", 3, "--encoder", model)
    ok("search", "photos", "a red box", "--filter", "number>=8", "--json", "--encoder", model)
    ok("search", "photos", "a first box", "--hybrid", "rrf", "--encoder", model)
    ok("search", "photos", "--queries", queries, "--encoder", model)
    best = ok("search", "photos", "a red box", "-k", 1, "--encoder", model).split()[2]
    command = ok("search", "photos", "a red box", "-k", 3, "--request", "curl", "--encoder", model)
    assert (
        best
        in subprocess.run(["sh"], input=command, capture_output=True, text=True, check=True).stdout
    )
    ok("evaluate", features, "--name", "photos")
    ok("verify", "photos")
    ok("info", "photos")
    assert "elasticsearch" in ok("info")
    ok("explain", "photos", "a red box", "000.png", "--encoder", model)
    ok("delete", "photos", "001.png")
    ok("index", "others", features, status=1)  # a name that the key does not open
    ok("delete", "photos", "--all")
    output = "".join(said)
    assert not [secret for secret in secrets(secure, key) if secret in output]


def test_secrets_are_not_stored(
    secure: SecureServer,
    library: Path,
    monkeypatch: pytest.MonkeyPatch,
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
        (key[:-6] + "AAAAAA", trusting, "does not let you in"),
        (None, trusting, "does not let you in"),
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


def test_fingerprint(secure: SecureServer, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = ssl.get_server_certificate(("127.0.0.1", secure.port))
    fingerprint = hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate)).hexdigest()
    monkeypatch.setenv("BOC_PASSWORD", secure.password)
    at = f"elastic+https://elastic@127.0.0.1:{secure.port}?verify_certs=false&ssl_assert_fingerprint="
    assert boc("index", "prints", library / "photos.h5", "--at", at + fingerprint).exit_code == 0
    other = "0" * 64
    result = boc("info", "prints", "--at", at + other)
    assert result.exit_code == 1
    assert secure.password not in result.output


def test_rights_on_an_alias_alone(
    secure: SecureServer,
    library: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
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
    table.write_text(
        "\n".join(["id,tag", *(f"{id},t{i % 2}" for i, id in enumerate(ids))]),
        encoding="utf-8",
    )
    boc("index", "whole", features, "--metadata", table, *admin)
    secure.request(
        "PUT",
        "shop-1",
        {"settings": {"number_of_replicas": 0}, "aliases": {"shop": {}}},
    )
    pictures = [id for id in ids if "#" not in id]
    for i, id in enumerate(pictures):
        secure.request("PUT", f"shop-1/_doc/{id}?refresh=true", {"tag": f"t{i % 2}"})
    assert (
        boc("attach", "shop", features, "--yes", *admin).exit_code == 1
    )  # captions have no document
    (physical,) = secure.request("GET", "whole")
    tagged = {"bool": {"should": [{"term": {"meta.tag": "t1"}}, {"exists": {"field": "block"}}]}}
    added = [
        (physical, "all", None),
        (physical, "part", tagged),
        (physical, "blind", {"term": {"meta.tag": "t1"}}),
        ("shop-1", "window", {"term": {"tag.keyword": "t1"}}),
    ]
    actions = [
        {"add": {"index": i, "alias": a, **({"filter": f} if f else {})}} for i, a, f in added
    ]
    secure.request("POST", "_aliases", {"actions": actions})
    odd = {id for i, id in enumerate(ids) if i % 2}
    for alias, shown in (("all", {*ids}), ("part", odd), ("window", {*pictures[1::2]})):
        names = [alias, *(["shop-boc", "shop"] if alias == "window" else [])]
        key = secure.api_key(*names, rights=["read", "view_index_metadata"])
        monkeypatch.setenv("BOC_API_KEY", key)
        user = ("--at", f"elastic+https://{host}{options}")
        index = backend(user[1]).open(alias)
        assert {item.id for item in index.items()} == shown
        for command in (
            ("search", alias, "a red box", "-k", 99, "--encoder", model, "--json"),
            ("search", alias, "a red box", "-k", 99, "--encoder", model, "--request", "curl"),
            ("info", alias),
            ("verify", alias),
            ("copy", alias, f"{alias}-copy", "--to", f"file:{tmp_path}"),
        ):
            if alias == "window" and command[0] == "copy":
                continue
            result = boc(*command, *user)
            assert result.exit_code == 0, (command, result.output)
            if command[-1] == "curl":
                hits = json.loads(
                    subprocess.run(
                        ["sh"],
                        input=result.output,
                        capture_output=True,
                        text=True,
                    ).stdout,
                )
                assert {hit["_id"] for hit in hits["hits"]["hits"]} <= shown
            assert not [id for id in {*ids} - shown if id in result.output]
        searcher = Searcher.open(alias, user[1], encoder=model, device="cpu")
        app = create_app(searcher, Settings(alias, user[1], cache=tmp_path, api_only=True))
        client = TestClient(app, base_url="http://127.0.0.1:8000")
        for path in ("/api/library?k=99", "/api/search?q=a%20red%20box&k=99"):
            assert {hit["id"] for hit in client.get(path).json()["hits"]} <= shown, path
        if alias != "window":
            assert {
                item.id for item in backend(f"file:{tmp_path}").open(f"{alias}-copy").items()
            } == shown
        for other in ("whole", physical, "shop-1"):
            assert boc("search", other, "a red box", "--encoder", model, *user).exit_code == 1
    monkeypatch.setenv(
        "BOC_API_KEY",
        secure.api_key("blind", rights=["read", "view_index_metadata"]),
    )
    assert (
        "the filter of the alias blind hides the code"
        in boc("search", "blind", "a", "--encoder", model, *user).output
    )
