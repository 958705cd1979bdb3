"""OpenSearch 2 and 3: ``opensearch+https://user@host:9200?ca_certs=FILE``. Everything else is shared: see
``indexing.server``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import orjson
from opensearchpy import OpenSearch
from opensearchpy.exceptions import (
    ConnectionError,
    ConnectionTimeout,
    SerializationError,
    SSLError,
    TransportError,
)
from opensearchpy.serializer import JSONSerializer

from boc.errors import BackendError

from .server.address import Address, parse
from .server.backend import ServerBackend
from .server.requests import dumps
from .server.transport import Json, refusal, send_until_answered, unreachable

STRATEGIES = ("counted_text", "text", "rank_features")  # best first, by bench/race/race.py --server


def connect(url: str) -> ServerBackend:
    """The cluster at ``url``, without a request. BackendError for an invalid address."""
    address = parse(url)
    return ServerBackend(OpenSearchTransport(address), address, STRATEGIES)


class _Orjson(JSONSerializer):
    """A fast parser: an answer may hold hundreds of vectors, which the standard library would parse too slowly."""

    def loads(self, s: Any) -> Any:
        try:
            return orjson.loads(s)
        except orjson.JSONDecodeError as error:
            raise SerializationError(s, error) from error

    def dumps(self, data: Any) -> Any:
        return data if isinstance(data, (str, bytes)) else dumps(data)


class OpenSearchTransport:
    """Requests through the official client."""

    engine = "opensearch"

    def __init__(self, address: Address) -> None:
        self.address, self.label = address, address.label
        self._known = False
        headers = {} if address.api_key is None else {"authorization": f"ApiKey {address.api_key}"}
        options: dict[str, Any] = {}
        if address.hosts[0].startswith("https"):
            options = {
                "use_ssl": True,
                "verify_certs": address.verify_certs,
                "ssl_show_warn": False,
                "ca_certs": address.ca_certs,
                "ssl_assert_fingerprint": address.ssl_assert_fingerprint,
            }
        if address.user is not None:
            options["http_auth"] = (address.user, address.password)

        def client(*, retry_on_timeout: bool) -> OpenSearch:
            return OpenSearch(
                list(address.hosts),
                timeout=address.request_timeout,
                max_retries=len(address.hosts) - 1,  # tries each host once
                retry_on_timeout=retry_on_timeout,
                retry_on_status=(),
                serializer=_Orjson(),
                headers=headers,
                **options,
            )

        self._client, self._reader = client(retry_on_timeout=False), client(retry_on_timeout=True)
        self._waits = address.waits

    def request(self, method: str, path: str, body: Mapping[str, Any] | bytes | None = None, **params: Any) -> Json:
        if not self._known:  # the client does not check the product
            self._check_product()
        if method == "GET" and "timeout" not in params:
            return self._read(method, path, body, params)
        return self._send(self._client, method, path, body, params)

    def search(self, path: str, body: Mapping[str, Any] | bytes, **params: Any) -> Json:
        if not self._known:
            self._check_product()
        return self._read("POST", path, body, params)

    def _read(self, method: str, path: str, body: Mapping[str, Any] | bytes | None, params: Json) -> Json:
        return send_until_answered(
            lambda wait: self._send(self._reader, method, path, body, {**params, "timeout": wait}), self._waits
        )

    def _check_product(self) -> None:
        try:
            version = self._read("GET", "/", None, {}).get("version", {})
        except BackendError as error:
            status = getattr(error, "status", None)
            if status == 404:
                raise self._other_product() from None
            if status != 403:  # users with rights on a few indexes only may not ask
                raise
        else:
            if not isinstance(version, dict) or version.get("distribution") != "opensearch":
                raise self._other_product()
        self._known = True

    def _send(
        self, client: OpenSearch, method: str, path: str, body: Mapping[str, Any] | bytes | None, params: Json
    ) -> Json:
        params = dict(params)  # the client takes entries out
        timeout = params.pop("timeout", None)
        if "server_timeout" in params:  # the client takes any timeout among the parameters for its own
            query = {**params, "timeout": params["server_timeout"]}
            del query["server_timeout"]
            path, params = f"{path}?{urlencode(query)}", {}
        if timeout is not None:
            params["request_timeout"] = timeout
        headers = {"content-type": "application/x-ndjson"} if isinstance(body, bytes) else None
        try:
            result = client.transport.perform_request(method, path, params=params, body=body, headers=headers)
        except ConnectionError as error:
            tls, late = isinstance(error, SSLError), isinstance(error, ConnectionTimeout)
            raise unreachable(self.label, str(error.error), tls=tls, late=late) from None
        except TransportError as error:
            raise refusal(self.label, int(error.status_code), error.info) from None
        except SerializationError:
            raise self._other_product() from None
        if not isinstance(result, dict):
            raise self._other_product()
        return result

    def _other_product(self) -> BackendError:
        return BackendError(
            f"what answers at {self.label} is no OpenSearch; for Elasticsearch write elastic+URL, and mind the port"
        )

    def open_pit(self, index: str, keep_alive: str) -> str:
        """Open a point in time of ``index`` and return its id."""
        pit: str = self.request("POST", f"/{index}/_search/point_in_time", keep_alive=keep_alive)["pit_id"]
        return pit

    def close_pit(self, pit: str) -> None:
        self.request("DELETE", "/_search/point_in_time", {"pit_id": [pit]})
