"""Send HTTP requests to a cluster, handling hosts, proxies, TLS, headers and errors in the same way
for all products. Each request returns a response or raises one of two errors.

This module uses the transport layer of the Elasticsearch 8 and 9 clients, but not the clients
themselves, because they request response formats that servers of other major versions reject.
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
"""HTTP statuses that proxies, gateways and access control also return. Responses with these
statuses do not identify the product."""
NEXT = {
    "index closed": "open the index (POST /NAME/_open)",
    "block_exception": "free disk space if it is short, remove this block",
    "cannot execute": "allow scripts (script.allowed_types, script.allowed_contexts)",
    "Limit of": "raise this limit (PUT /NAME/_settings)",
    "no such index": "see what was removed (GET /_cat/indices)",
    "same name as the alias": "rename or remove that index",
    "more than one write index": "take the alias from the other index (POST /_aliases)",
}
"""Suggested next steps, keyed by words in the error message."""
AWAY = {
    "node_not_connected_exception",
    "node_disconnected_exception",
    "node_closed_exception",
    "connect_transport_exception",
}
"""Errors that a search or a row returns with status 500 while the node with the shard is joining or
leaving the cluster."""


class RefusedError(BackendError):
    """Raised when the server responds with an error. Contains the HTTP ``status``, the error type
    as ``kind``, and the ``reason``."""

    def __init__(self, message: str, status: int, kind: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.reason = reason


class UnfinishedError(BackendError):
    """Raised when a load cannot continue for now. Acknowledged rows stay on the server, so the load
    can be resumed."""


def refusal(label: str, status: int, body: Any) -> RefusedError:
    """Build the error for a response with ``status`` and parsed ``body``. Its message names the
    next step.

    The message includes the reasons for the error's causes. If a cause has a type in ``AWAY``, this
    type replaces the type of the error.
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
            # If a search fails between its phases, the outer error does not give the reason.
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
    """Return the first known next step for a cause, to append to a message, or an empty string."""
    for sign, step in NEXT.items():
        if sign in cause:
            return f"; {step}, then run the command again"
    return ""


def unreachable(label: str, reason: str, *, tls: bool, late: bool) -> UnreachableError:
    """Build the error for a request that received no response. Its message names the next step."""
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
    """Parse JSON with a fast parser, because responses can contain hundreds of vectors. Return
    other content as text, because proxies respond with HTML."""

    def loads(self, data: bytes) -> Any:
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError:
            return data.decode("utf-8", "replace")


class Transport:
    """Connection to a cluster. Thread-safe. Only read-only requests are retried.

    ``label`` is the address to use in messages, without secrets.
    """

    engine: str
    """Product name: elasticsearch or opensearch."""
    advice: str
    """End of the error message for a server of another product, with the address to use instead."""
    pits: tuple[str, str]
    """URL path for points in time, and the name of the field that contains their ids."""

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
        # Use the proxy from the environment only for requests to other machines.
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
            # Try each host once.
            max_retries=len(configs) - 1,
            retry_on_status=(),
            serializers=dict.fromkeys((JSON, NDJSON, "text/*", "application/*"), _JsonSerializer()),
            meta_header=False,
        )
        for node in self._nodes.node_pool.all():
            if isinstance(node, RequestsHttpNode):
                proxy = proxies[node.host]
                # A netrc file would override the user, and a redirect would leak secrets to another
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
        """Send a request and return the parsed response. Mappings are sent as JSON; bytes (NDJSON)
        are sent unchanged.

        ``timeout`` in ``params``, in seconds, overrides the timeout of the connection. All other
        parameters are added to the URL, with ``server_timeout`` renamed to ``timeout``. Raises
        RefusedError or UnreachableError, whose messages do not contain secrets.
        """
        timeout = params.pop("timeout", None)
        if timeout is None and method == "GET":
            return self._read(method, path, body, params)
        return self._send(method, path, body, params, timeout or self.address.request_timeout)

    def search(self, path: str, body: Mapping[str, Any] | bytes, **params: Any) -> Json:
        """Send a read-only request by POST. Like a GET request, it is retried on another host if a
        host does not respond in time."""
        return self._read("POST", path, body, params)

    def _read(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | bytes | None,
        params: Json,
    ) -> Json:
        """Send a read-only request until a host responds, trying each host for a few seconds at a
        time.

        A hanging host therefore causes a delay of seconds, but no error. If a hanging node has a
        copy of a shard, all hosts may be slow to respond until the cluster drops this node, usually
        after half a minute. The last wait is long enough for this.
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
        """Send a request. If a host cannot be reached, the request is sent to the next host; with
        ``again``, also if a host does not respond in time."""
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
        # Only Elasticsearch identifies itself in every response.
        named = "x-elastic-product" in meta.headers
        foreign = meta.status not in ON_THE_WAY and named != (self.engine == "elasticsearch")
        if meta.status >= 300 and not foreign:
            raise refusal(self.label, meta.status, answer)
        if foreign or not isinstance(answer, dict):
            raise BackendError(f"the server at {self.label} is {self.advice}, and check the port")
        return answer

    def open_pit(self, index: str, keep_alive: str) -> str:
        """Open a point in time for ``index`` and return its id. Searches that use the id ignore
        later writes."""
        path, name = self.pits
        answer = self.request("POST", f"/{index}/{path}", keep_alive=keep_alive)
        return str(answer[name])

    def close_pit(self, pit: str) -> None:
        """Close a point in time."""
        path, name = self.pits
        self.request("DELETE", f"/{path}", {name: pit})
