"""A search as one HTTP request, written out for other programs. Secrets are named by their variables, never shown."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Any

import orjson

from boc.names import RequestForm

from .address import Address
from .requests import dumps
from .transport import Json

JSON = "application/json"
IMPORTS = {
    "elasticsearch": "from elasticsearch import Elasticsearch as Client",
    "opensearch": "from opensearchpy import OpenSearch as Client",
}


@dataclass(frozen=True)
class HttpRequest:
    """``body`` for the searches of ``index`` at ``address``, a server of ``engine``; ``action`` is _search, or
    _search/template, which a client calls by its path."""

    engine: str
    address: Address
    index: str
    body: Json
    action: str = "_search"

    @property
    def path(self) -> str:
        """The path behind the address of the server. A shard that cannot answer is an error, not a gap in the hits."""
        return f"{self.index}/{self.action}?allow_partial_search_results=false"

    @property
    def url(self) -> str:
        return f"{self.address.hosts[0]}/{self.path}"

    def written(self, form: RequestForm) -> str:
        """The body as JSON, or the whole request as a program in ``form``."""
        forms = {"json": self._json, "curl": self._curl, "python": self._python, "kibana": self._kibana}
        return forms[form]()

    def _json(self) -> str:
        return _spread({name: dumps(value).decode() for name, value in self.body.items()}, '"')

    def _curl(self) -> str:
        address = self.address
        words = ["curl", "-sS", "-H", "'Content-Type: application/json'"]
        if address.ca_certs is not None:
            words += ["--cacert", shlex.quote(address.ca_certs)]
        if not address.verify_certs and address.ssl_assert_fingerprint is None:  # curl knows no fingerprints
            words.append("-k")
        if address.user is not None:
            words += ["-u", shlex.quote(f"{address.user}:") + '"$BOC_PASSWORD"']
        elif address.api_key is not None:
            words += ["-H", '"Authorization: ApiKey $BOC_API_KEY"']
        return f"{' '.join(words)} {shlex.quote(self.url)} --data-binary @- <<'END'\n{self._json()}\nEND"

    def _python(self) -> str:
        address = self.address
        options: dict[str, Any] = {}
        if address.hosts[0].startswith("https"):
            told = {"verify_certs": address.verify_certs, "ca_certs": address.ca_certs}
            options = {name: repr(value) for name, value in told.items() if value not in (None, True)}
            if address.ssl_assert_fingerprint is not None:
                options["ssl_assert_fingerprint"] = repr(address.ssl_assert_fingerprint)
        elastic = self.engine == "elasticsearch"
        if address.user is not None:
            pair = f'({address.user!r}, os.environ["BOC_PASSWORD"])'
            options["basic_auth" if elastic else "http_auth"] = pair
        elif address.api_key is not None:
            key = 'os.environ["BOC_API_KEY"]'
            options |= {"api_key": key} if elastic else {"headers": f'{{"authorization": "ApiKey " + {key}}}'}
        given = "".join(f", {name}={value}" for name, value in options.items())
        plain = orjson.loads(dumps(self.body))
        search = f"search(index={self.index!r}, body=body, allow_partial_search_results=False)"
        if self.action != "_search":
            headers = "" if not elastic else f", headers=dict.fromkeys(['accept', 'content-type'], {JSON!r})"
            search = f"{'' if elastic else 'transport.'}perform_request('POST', '/{self.path}'{headers}, body=body)"
        return "\n".join(
            [
                *(["import os", ""] if "os.environ" in given else []),
                IMPORTS[self.engine],
                "",
                f"client = Client({address.hosts[0]!r}{given})",
                f"body = {_spread({name: repr(value) for name, value in plain.items()}, repr('')[0])}",
                f'for hit in client.{search}["hits"]["hits"]:',
                '    print(hit["_id"], hit["_score"], hit["_source"])',
            ]
        )

    def _kibana(self) -> str:
        return f"{'GET' if self.action == '_search' else 'POST'} {self.path}\n{self._json()}"


def _spread(values: dict[str, str], quote: str) -> str:
    """An object with one entry per line; long lists of numbers would take a line per number otherwise."""
    return "{\n" + ",\n".join(f"  {quote}{name}{quote}: {value}" for name, value in values.items()) + "\n}"
