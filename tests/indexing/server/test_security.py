"""A cluster as it is run for real: TLS by an authority of its own, an API key that opens one
index's names only."""

import base64
import json
from pathlib import Path

import pytest

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
