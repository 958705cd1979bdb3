"""Elasticsearch 8 and 9: ``elastic+https://user@host:9200?ca_certs=FILE``. All else is shared: see ``_server``."""

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
from .server.transport import Json, refusal, unreachable

JSON, NDJSON = "application/json", "application/x-ndjson"
STRATEGIES = ("text", "sparse_vector", "rank_features")  # best first, by bench/race/race.py --server
ON_THE_WAY = {401, 403, 408, 413, 429, 500, 502, 503, 504}
"""Statuses that gateways give too, and the guard of a server: neither says what stands behind it."""


def connect(url: str) -> ServerBackend:
    """The cluster behind ``url``. Nothing is asked of it yet; BackendError for an address that cannot be one."""
    address = parse(url)
    return ServerBackend(ElasticTransport(address), address, STRATEGIES)


class _Orjson(JsonSerializer):
    """Hundreds of re-rank vectors an answer: the standard library's parser would take longer than the server."""

    def json_dumps(self, data: Any) -> bytes:
        return dumps(data)

    def json_loads(self, data: bytes) -> Any:
        return orjson.loads(data)


class ElasticTransport:
    """Requests through the official client of Elasticsearch 8, which 9 understands too."""

    engine = "elasticsearch"

    def __init__(self, address: Address) -> None:
        self.shown = address.shown
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
        self._client = Elasticsearch(
            list(address.hosts),
            request_timeout=address.request_timeout,
            max_retries=len(address.hosts) - 1,  # each host once
            retry_on_timeout=False,
            retry_on_status=(),
            serializer=_Orjson(),
            **options,
        )

    def request(self, method: str, path: str, body: Mapping[str, Any] | bytes | None = None, **params: Any) -> Json:
        timeout = params.pop("timeout", None)
        client = self._client if timeout is None else self._client.options(request_timeout=timeout)
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
            raise refusal(self.shown, error.meta.status, error.body) from None
        except SerializationError:
            raise self._other_product() from None
        except TransportError as error:
            tls, late = isinstance(error, TlsError), isinstance(error, ConnectionTimeout)
            raise unreachable(self.shown, str(error.message), tls=tls, late=late) from None
        found: Json = answer.body
        return found

    def _other_product(self) -> BackendError:
        return BackendError(
            f"what answers at {self.shown} is no Elasticsearch; for OpenSearch write opensearch+URL, and mind the port"
        )

    def open_pit(self, index: str, keep_alive: str) -> str:
        """The id of a point in time of ``index``."""
        found: str = self.request("POST", f"/{index}/_pit", keep_alive=keep_alive)["id"]
        return found

    def close_pit(self, pit: str) -> None:
        self.request("DELETE", "/_pit", {"id": pit})
