"""Requests to a cluster over HTTP: hosts, proxies, TLS, headers and errors, the same for all products.

It is the transport below the clients of Elasticsearch 8 and 9, without what these add: they ask for answers in a form
that servers of another generation refuse.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode
from urllib.request import getproxies, proxy_bypass

import orjson
from elastic_transport import (
    ConnectionTimeout,
    HttpHeaders,
    JsonSerializer,
    RequestsHttpNode,
    TlsError,
    TransportError,
    Urllib3HttpNode,
)
from elastic_transport import Transport as Nodes
from elastic_transport.client_utils import basic_auth_to_header, url_to_node_config

from boc.errors import BackendError

from .address import Address
from .requests import dumps
from .transport import Json, refusal, send_until_answered, unreachable

JSON, NDJSON = "application/json", "application/x-ndjson"
CONNECTIONS = 64  # to a host at once; a thread that finds none waits, however long another one's request takes
HERE = {"localhost", "127.0.0.1", "::1"}
ON_THE_WAY = {401, 403, 407, 408, 413, 429, 500, 502, 503, 504}
"""Statuses that proxies, gateways and access control return too; they do not identify the product behind them."""


class _Json(JsonSerializer):
    """A fast parser: an answer may hold hundreds of vectors. What is not JSON stays text: proxies answer in HTML."""

    def loads(self, data: bytes) -> Any:
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError:
            return data.decode("utf-8", "replace")


class HttpTransport(ABC):
    """A connection to one cluster; ``Transport`` says what its methods do."""

    engine: str
    advice: str
    """What answers, if it is another product, and what to write then."""
    pits: tuple[str, str]
    """The path of points in time, and the name of their ids."""

    def __init__(self, address: Address) -> None:
        self.address, self.label = address, address.label
        headers = {"accept": JSON}
        if address.user is not None and address.password is not None:
            headers["authorization"] = basic_auth_to_header((address.user, address.password))
        elif address.api_key is not None:
            headers["authorization"] = f"ApiKey {address.api_key}"
        options: dict[str, Any] = {"request_timeout": address.request_timeout, "connections_per_node": CONNECTIONS}
        if address.hosts[0].startswith("https"):
            names = ("ca_certs", "client_cert", "client_key", "ssl_assert_fingerprint", "verify_certs")
            given = {name: getattr(address, name) for name in names}
            options |= {"ssl_show_warn": False, **{k: v for k, v in given.items() if v is not None}}
        nodes = [url_to_node_config(host).replace(**options) for host in address.hosts]
        proxies = {(node.scheme, node.host): _proxy(address, node.scheme, node.host) for node in nodes}
        if any(proxies.values()) and address.ssl_assert_fingerprint is not None:
            raise BackendError("a fingerprint is not compared through a proxy; trust the server by ?ca_certs=FILE")
        self._headers = headers | dict(address.headers)
        self._nodes = Nodes(
            nodes,
            RequestsHttpNode if any(proxies.values()) else Urllib3HttpNode,
            max_retries=len(nodes) - 1,  # tries each host once
            retry_on_status=(),
            serializers={each: _Json() for each in (JSON, NDJSON, "text/*", "application/*")},
            meta_header=False,
        )
        for node in self._nodes.node_pool.all():
            if isinstance(node, RequestsHttpNode):
                proxy = proxies[node.scheme, node.host]
                node.session.trust_env = False  # a netrc file would replace the user of the address
                node.session.proxies = {} if proxy is None else {"http": proxy, "https": proxy}
                node.session.max_redirects = 0  # headers may hold secrets of this host

    def request(self, method: str, path: str, body: Mapping[str, Any] | bytes | None = None, **params: Any) -> Json:
        timeout = params.pop("timeout", None)
        if timeout is None and method == "GET":
            return self._read(method, path, body, params)
        return self._send(method, path, body, params, self.address.request_timeout if timeout is None else timeout)

    def search(self, path: str, body: Mapping[str, Any] | bytes, **params: Any) -> Json:
        return self._read("POST", path, body, params)

    def _read(self, method: str, path: str, body: Mapping[str, Any] | bytes | None, params: Json) -> Json:
        return send_until_answered(
            lambda wait: self._send(method, path, body, params, wait, again=True), self.address.waits
        )

    def _send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | bytes | None,
        params: Json,
        timeout: float,
        *,
        again: bool = False,
    ) -> Json:
        """Send one request; of several hosts to the next one, if a host is not reached or, with ``again``, late."""
        query = {"timeout" if name == "server_timeout" else name: value for name, value in params.items()}
        headers, data = self._headers, None
        if body is not None:
            headers = headers | {"content-type": NDJSON if isinstance(body, bytes) else JSON}
            data = body if isinstance(body, bytes) else dumps(dict(body))
        try:
            meta, answer = self._nodes.perform_request(
                method,
                f"{path}?{urlencode(query)}" if query else path,
                body=data,
                headers=HttpHeaders(headers),
                request_timeout=timeout,
                retry_on_timeout=again,
            )
        except TransportError as error:
            tls, late = isinstance(error, TlsError), isinstance(error, ConnectionTimeout)
            raise unreachable(self.label, str(error.message), tls=tls, late=late) from None
        if meta.status not in ON_THE_WAY and not self._is_product(meta.headers):
            raise self._other_product()
        if meta.status >= 300:
            raise refusal(self.label, meta.status, answer)
        if not isinstance(answer, dict):
            raise self._other_product()
        return answer

    def _other_product(self) -> BackendError:
        return BackendError(f"what answers at {self.label} is {self.advice}, and mind the port")

    @abstractmethod
    def _is_product(self, headers: Mapping[str, str]) -> bool:
        """Return whether an answer with these headers may be of the product."""

    def open_pit(self, index: str, keep_alive: str) -> str:
        pit: str = self.request("POST", f"/{index}/{self.pits[0]}", keep_alive=keep_alive)[self.pits[1]]
        return pit

    def close_pit(self, pit: str) -> None:
        self.request("DELETE", f"/{self.pits[0]}", {self.pits[1]: pit})


def _proxy(address: Address, scheme: str, host: str) -> str | None:
    """Return the proxy on the way to a host: that of the address, or of the environment, if it is another machine."""
    if address.proxy is not None or host in HERE or proxy_bypass(host):
        return address.proxy
    proxies = getproxies()
    return proxies.get(scheme) or proxies.get("all")
