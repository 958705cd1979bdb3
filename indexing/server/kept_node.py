"""Send requests to a host of a cluster over persistent connections, with a third of the processor
time of a general HTTP client."""

from __future__ import annotations

import select
import ssl
import time
from collections import deque
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from string import punctuation
from threading import Semaphore
from typing import Any
from urllib.parse import quote

import certifi
from elastic_transport import (
    ApiResponseMeta,
    BaseNode,
    ConnectionError,
    ConnectionTimeout,
    HttpHeaders,
    NodeConfig,
    TlsError,
    TransportApiResponse,
)


class KeptNode(BaseNode):
    """Connect to a host without a proxy, trusted by certificates. At most ``connections_per_node``
    requests are open at a time; further requests wait."""

    def __init__(self, config: NodeConfig) -> None:
        super().__init__(config)
        self._free: deque[HTTPConnection] = deque()
        self._room = Semaphore(config.connections_per_node)
        self._context: ssl.SSLContext | None = None
        if config.scheme == "https":
            self._context = ssl.create_default_context(cafile=config.ca_certs or certifi.where())
            if config.client_cert is not None:
                self._context.load_cert_chain(config.client_cert, config.client_key)
            if not config.verify_certs:
                self._context.check_hostname = False
                self._context.verify_mode = ssl.CERT_NONE

    def perform_request(
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        headers: HttpHeaders | None = None,
        request_timeout: Any = None,
    ) -> Any:
        """Send one request. Raises ConnectionTimeout, TlsError or ConnectionError if there is no
        response."""
        begun = time.time()
        with self._room:
            connection = self._connection(request_timeout)
            data = None
            try:
                # Other programs use arbitrary characters in index names.
                path = quote(f"{self.path_prefix}{target}", safe=punctuation)
                connection.request(method, path, body, dict(headers or {}))
                response = connection.getresponse()
                data = response.read()
            except (OSError, HTTPException) as error:
                kind: type[ConnectionError | ConnectionTimeout] = ConnectionError
                if isinstance(error, ssl.SSLError):
                    kind = TlsError
                elif isinstance(error, TimeoutError):
                    kind = ConnectionTimeout
                raise kind(str(error) or type(error).__name__, errors=(error,)) from error
            finally:
                # Half of a response may be left in the connection.
                if data is None or connection.sock is None:
                    connection.close()
                else:
                    self._free.append(connection)
        answered = HttpHeaders(response.getheaders())
        took = time.time() - begun
        meta = ApiResponseMeta(response.status, "1.1", answered, took, self.config)
        return TransportApiResponse(meta, data)

    def _connection(self, timeout: float) -> HTTPConnection:
        """Return a persistent connection that the host has not closed, or a new connection."""
        with suppress(IndexError):
            while True:
                connection = self._free.pop()
                closed = select.poll()
                closed.register(connection.sock, select.POLLIN)
                if not closed.poll(0):
                    connection.sock.settimeout(timeout)
                    return connection
                connection.close()
        if self._context is None:
            return HTTPConnection(self.host, self.port, timeout=timeout)
        return HTTPSConnection(self.host, self.port, timeout=timeout, context=self._context)

    def close(self) -> None:
        """Close all connections that no request uses."""
        while self._free:
            self._free.pop().close()

    def __del__(self) -> None:
        self.close()
