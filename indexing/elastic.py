"""Elasticsearch 8 and 9: ``elastic+https://user@host:9200?ca_certs=FILE``. Everything else is shared: see
``indexing.server``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from elastic_transport import ConnectionTimeout, JsonSerializer, SerializationError, TlsError, TransportError
from elasticsearch import ApiError, Elasticsearch, UnsupportedProductError

from boc.errors import BackendError

from .server.address import Address, parse
from .server.backend import ServerBackend
from .server.requests import dumps
from .server.transport import Json, refusal, send_until_answered, unreachable

JSON, NDJSON = "application/json", "application/x-ndjson"
STRATEGIES = ("text", "sparse_vector", "rank_features")  # best first, by bench/race/race.py --server
ON_THE_WAY = {401, 403, 408, 413, 429, 500, 502, 503, 504}
"""Statuses that gateways and access control return too; they do not identify the product behind them."""


def connect(url: str) -> ServerBackend:
    """The cluster at ``url``, without a request. BackendError for an invalid address."""
    address = parse(url)
    return ServerBackend(ElasticTransport(address), address, STRATEGIES)


class _Orjson(JsonSerializer):
    """A fast parser: an answer may hold hundreds of vectors, which the standard library would parse too slowly."""

    def json_dumps(self, data: Any) -> bytes:
        return dumps(data)

    def json_loads(self, data: bytes) -> Any:
        return orjson.loads(data)


class ElasticTransport:
    """Requests through the official client of Elasticsearch 8, which also talks to version 9."""

    engine = "elasticsearch"

    def __init__(self, address: Address) -> None:
        self.address, self.label = address, address.label
        options: dict[str, Any] = {}
        if address.hosts[0].startswith("https"):
            options["verify_certs"] = address.verify_certs
            options["ssl_show_warn"] = False
            if address.ca_certs is not None:
                options["ca_certs"] = address.ca_certs
            if address.ssl_assert_fingerprint is not None:
                options["ssl_assert_fingerprint"] = address.ssl_assert_fingerprint
        if address.user is not None and address.password is not None:
            options["basic_auth"] = (address.user, address.password)
        elif address.api_key is not None:
            options["api_key"] = address.api_key
        self._client = client = Elasticsearch(
            list(address.hosts),
            request_timeout=address.request_timeout,
            max_retries=len(address.hosts) - 1,  # tries each host once
            retry_on_timeout=False,
            retry_on_status=(),
            serializer=_Orjson(),
            **options,
        )
        self._readers = {wait: client.options(request_timeout=wait, retry_on_timeout=True) for wait in address.waits}

    def request(self, method: str, path: str, body: Mapping[str, Any] | bytes | None = None, **params: Any) -> Json:
        timeout = params.pop("timeout", None)
        if timeout is None and method == "GET":
            return self._read(method, path, body, params)
        client = self._client if timeout is None else self._client.options(request_timeout=timeout)
        return self._send(client, method, path, body, params)

    def search(self, path: str, body: Mapping[str, Any] | bytes, **params: Any) -> Json:
        return self._read("POST", path, body, params)

    def _read(self, method: str, path: str, body: Mapping[str, Any] | bytes | None, params: Json) -> Json:
        readers = self._readers
        return send_until_answered(lambda wait: self._send(readers[wait], method, path, body, params), list(readers))

    def _send(
        self, client: Elasticsearch, method: str, path: str, body: Mapping[str, Any] | bytes | None, params: Json
    ) -> Json:
        if "server_timeout" in params:
            params = {**params, "timeout": params["server_timeout"]}
            del params["server_timeout"]
        headers = {"accept": JSON}
        if body is not None:
            headers["content-type"] = NDJSON if isinstance(body, bytes) else JSON
        try:
            answer = client.perform_request(method, path, params=params, headers=headers, body=body)
        except UnsupportedProductError:
            raise self._other_product() from None
        except ApiError as error:
            if "x-elastic-product" not in error.meta.headers and error.meta.status not in ON_THE_WAY:
                raise self._other_product() from None
            raise refusal(self.label, error.meta.status, error.body) from None
        except SerializationError:
            raise self._other_product() from None
        except TransportError as error:
            tls, late = isinstance(error, TlsError), isinstance(error, ConnectionTimeout)
            raise unreachable(self.label, str(error.message), tls=tls, late=late) from None
        result: Json = answer.body
        return result

    def _other_product(self) -> BackendError:
        return BackendError(
            f"what answers at {self.label} is no Elasticsearch; for OpenSearch write opensearch+URL, and mind the port"
        )

    def open_pit(self, index: str, keep_alive: str) -> str:
        """Open a point in time of ``index`` and return its id."""
        pit: str = self.request("POST", f"/{index}/_pit", keep_alive=keep_alive)["id"]
        return pit

    def close_pit(self, pit: str) -> None:
        self.request("DELETE", "/_pit", {"id": pit})
