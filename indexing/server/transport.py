"""Send requests to a cluster over HTTP, with hosts, proxies, TLS, headers and errors handled alike
for all products. Each request returns one response or raises one of two errors.

This is the transport layer below the clients of Elasticsearch 8 and 9, without the clients' own
additions, which request responses in a form that servers of another generation refuse.
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode
from urllib.request import getproxies, proxy_bypass

import orjson
from elastic_transport import (
    BaseNode,
    ConnectionTimeout,
    JsonSerializer,
    RequestsHttpNode,
    TlsError,
    Transport as Nodes,
    TransportError,
)
from elastic_transport.client_utils import basic_auth_to_header, url_to_node_config

from boc.errors import BackendError, UnreachableError as UnreachableError

from .address import Address
from .kept_node import KeptNode

Json = dict[str, Any]
JSON = "application/json"
NDJSON = "application/x-ndjson"
ON_THE_WAY = {401, 403, 407, 408, 413, 429, 500, 502, 503, 504}
"""Statuses that proxies, gateways and access control also return, so they do not identify the
product behind them."""
NEXT = {
    "index closed": "open the index (POST /NAME/_open)",
    "block_exception": "free disk space if it is short, remove this block",
    "cannot execute": "allow scripts (script.allowed_types, script.allowed_contexts)",
    "Limit of": "raise this limit (PUT /NAME/_settings)",
    "no such index": "see what was removed (GET /_cat/indices)",
    "same name as the alias": "rename or remove that index",
    "more than one write index": "take the alias from the other index (POST /_aliases)",
}
"""The next step for each cause, found by words in the message."""
AWAY = {
    "node_not_connected_exception",
    "node_disconnected_exception",
    "node_closed_exception",
    "connect_transport_exception",
}
"""Errors with status 500 of a search or a row, while the node of its shard joins or leaves."""


class RefusedError(BackendError):
    """Raised when the server responds with an error: its HTTP ``status``, the error type as
    ``kind``, and the ``reason``."""

    def __init__(self, message: str, status: int, kind: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.reason = reason


class UnfinishedError(BackendError):
    """Raised when a load cannot continue now. Acknowledged rows stay on the server, and the same
    load continues from there."""


def refusal(label: str, status: int, body: Any) -> RefusedError:
    """Build the error for a response with ``status`` and parsed ``body``. Its message names the
    next step.

    The message appends the reasons of the error's causes. If the type of a cause is in ``AWAY``, it
    replaces the error's type.
    """
    error = body.get("error") if isinstance(body, dict) else None
    kind = ""
    reason = str(error or "")[:300]
    if isinstance(error, dict):
        first = (error.get("root_cause") or [error])[0]
        kind = str(first.get("type", ""))
        reason = str(first.get("reason", ""))
        inner = error.get("caused_by") or (error.get("failed_shards") or [{}])[0].get("reason", {})
        while isinstance(inner, dict) and inner:
            further = str(inner.get("reason") or "")
            if further not in reason:
                reason = ": ".join(filter(None, (reason, further)))
            # A search may fail between its phases, where the outer error does not give the reason.
            if inner.get("type") in AWAY:
                kind = inner["type"]
            inner = inner.get("caused_by")
        reason = reason[:600]
    cause = ": ".join(filter(None, (kind, reason))) or "no reason given"
    if status == 401:
        message = (
            f"{label} refuses access ({kind or status}); name the user in the address "
            "(https://USER@HOST) and put "
            "the password into BOC_PASSWORD, or put an API key into BOC_API_KEY"
        )
    elif status == 403 and not kind.endswith("block_exception"):
        message = (
            f"{label} does not allow that to this user: {reason or kind}; ask for rights on "
            "the index's names"
        )
    elif kind == "index_closed_exception":
        message = f"{label}: an index of this name is closed; open it with POST /NAME/_open"
    else:
        message = f"{label} refused ({status}): {cause}"
        message += next_step(cause)
    return RefusedError(message, status, kind, reason)


def next_step(cause: str) -> str:
    """Return the end of a message about a cause, the first known next step, or an empty string."""
    for sign, step in NEXT.items():
        if sign in cause:
            return f"; {step}, then run the command again"
    return ""


def unreachable(label: str, reason: str, *, tls: bool, late: bool) -> UnreachableError:
    """Build the error for a request without a response. Its message names the next step."""
    if tls:
        advice = (
            "its certificate is not trusted; name the file of its authority with "
            "?ca_certs=FILE in the address"
        )
    elif late:
        advice = "it took too long; allow more time with ?request_timeout=SECONDS in the address"
    else:
        advice = "check whether the server runs there, and whether it requires https"
    error = UnreachableError(f"no answer from {label}: {advice} ({reason})")
    error.late = late
    return error


class _JsonSerializer(JsonSerializer):
    """Parse JSON fast, since a response may contain hundreds of vectors. Other content stays text,
    since proxies respond in HTML."""

    def loads(self, data: bytes) -> Any:
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError:
            return data.decode("utf-8", "replace")


class Transport:
    """Connect to one cluster. Thread-safe. Only requests that change nothing are repeated.

    ``label`` is the address without secrets, for messages.
    """

    engine: str
    """Name of the product, elasticsearch or opensearch."""
    advice: str
    """The product that responds instead, if it is another one, and the address to write in that
    case."""
    pits: tuple[str, str]
    """The URL path of points in time, and the field name of their ids."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.label = address.label
        headers = {"accept": JSON}
        if address.user is not None and address.password is not None:
            headers["authorization"] = basic_auth_to_header((address.user, address.password))
        elif address.api_key is not None:
            headers["authorization"] = f"ApiKey {address.api_key}"
        # A thread without a free connection waits until another thread's request ends.
        options: Json = {
            "request_timeout": address.request_timeout,
            "connections_per_node": 64,
        }
        if address.hosts[0].startswith("https"):
            options |= {
                "ca_certs": address.ca_certs,
                "client_cert": address.client_cert,
                "client_key": address.client_key,
                "verify_certs": address.verify_certs,
                "ssl_show_warn": False,
            }
        configs = [url_to_node_config(host).replace(**options) for host in address.hosts]
        # The environment's proxy serves only requests to other machines.
        found = getproxies()
        proxies: dict[str, str | None] = {}
        for config in configs:
            host = config.host
            proxies[host] = None
            if host not in {"localhost", "127.0.0.1", "::1"} and not proxy_bypass(host):
                proxies[host] = found.get(config.scheme) or found.get("all")
        self._headers = headers | dict(address.headers)
        node_class: type[BaseNode] = KeptNode
        if any(proxies.values()):
            node_class = RequestsHttpNode
        self._nodes = Nodes(
            configs,
            node_class,
            # Each host is tried once.
            max_retries=len(configs) - 1,
            retry_on_status=(),
            serializers=dict.fromkeys((JSON, NDJSON, "text/*", "application/*"), _JsonSerializer()),
            meta_header=False,
        )
        for node in self._nodes.node_pool.all():
            if isinstance(node, RequestsHttpNode):
                proxy = proxies[node.host]
                # A netrc file would replace the user, and a redirect would leak secrets to another
                # host.
                node.session.trust_env = False
                node.session.max_redirects = 0
                node.session.proxies = {} if proxy is None else {"http": proxy, "https": proxy}

    def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | bytes | None = None,
        **params: Any,
    ) -> Json:
        """Send one request and return the parsed response; a mapping is sent as JSON, bytes are
        sent unchanged (NDJSON).

        ``timeout`` in ``params``, in seconds, replaces the timeout of the connection; all other
        parameters go into the URL, where ``server_timeout`` is called ``timeout``. Raises
        RefusedError and UnreachableError, whose messages contain no secret.
        """
        timeout = params.pop("timeout", None)
        if timeout is None and method == "GET":
            return self._read(method, path, body, params)
        return self._send(method, path, body, params, timeout or self.address.request_timeout)

    def search(self, path: str, body: Mapping[str, Any] | bytes, **params: Any) -> Json:
        """POST a request that changes nothing. Like any GET, it is repeated on another host if a
        host is late."""
        return self._read("POST", path, body, params)

    def _read(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | bytes | None,
        params: Json,
    ) -> Json:
        """Send a request that changes nothing until a host responds; each host is tried for a few
        seconds at a time.

        Therefore a hanging host costs seconds and causes no error. If a hanging node has a copy of
        a shard, every host may be late until the cluster drops that node, usually after half a
        minute; hence the last and longest wait.
        """
        for wait in self.address.waits[:-1]:
            try:
                return self._send(method, path, body, params, wait, again=True)
            except UnreachableError as error:
                if not error.late:
                    raise
        return self._send(method, path, body, params, self.address.waits[-1], again=True)

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
        """Send one request. If a host cannot be reached, or with ``again`` is late, the request
        goes to the next of several hosts."""
        if params:
            path = f"{path}?{urlencode(params).replace('server_timeout=', 'timeout=')}"
        headers = dict(self._headers)
        if isinstance(body, bytes):
            headers["content-type"] = NDJSON
        elif body is not None:
            headers["content-type"] = JSON
            body = orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
        try:
            meta, answer = self._nodes.perform_request(
                method,
                path,
                body=body,
                headers=headers,
                request_timeout=timeout,
                retry_on_timeout=again,
            )
        except TransportError as error:
            tls = isinstance(error, TlsError)
            late = isinstance(error, ConnectionTimeout)
            raise unreachable(self.label, str(error.message), tls=tls, late=late) from None
        # Elasticsearch alone names itself in every response.
        named = "x-elastic-product" in meta.headers
        foreign = meta.status not in ON_THE_WAY and named != (self.engine == "elasticsearch")
        if meta.status >= 300 and not foreign:
            raise refusal(self.label, meta.status, answer)
        if foreign or not isinstance(answer, dict):
            raise BackendError(f"the server at {self.label} is {self.advice}, and check the port")
        return answer

    def open_pit(self, index: str, keep_alive: str) -> str:
        """Open a point in time of ``index`` and return its id; searches that use it ignore later
        writes."""
        path, name = self.pits
        answer = self.request("POST", f"/{index}/{path}", keep_alive=keep_alive)
        return str(answer[name])

    def close_pit(self, pit: str) -> None:
        """Close a point in time."""
        path, name = self.pits
        self.request("DELETE", f"/{path}", {name: pit})
