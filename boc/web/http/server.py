"""Serve an application over HTTP."""

from __future__ import annotations

import ctypes
import errno
import logging
import re
import resource
import socket
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from boc.errors import BocError

CONNECTIONS = 1024  # at the same time; requests on further connections are answered with 503
LEAST = 32  # minimum number of connections, each of which may open a picture
FILES = 256  # open files needed in addition to connections, for the index and pictures


def configure_logging() -> None:
    """Log server errors to stderr, and requests if uvicorn logs them. URLs are shortened to their
    route, because the rest may contain a token, a sentence or an id."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    requests = logging.getLogger("uvicorn.access")
    requests.setLevel(logging.INFO)
    requests.addFilter(cut_address)


def cut_address(record: logging.LogRecord) -> bool:
    """Shorten the URL in a line of uvicorn's request log to the route."""
    assert isinstance(record.args, tuple)
    client, method, path, *others = record.args
    route = re.match("(/api)?/?[^/?]*", str(path))
    record.args = (client, method, route and route[0], *others)
    return True


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket. Raises BocError if the port is already in use, or if the host is not
    an address of this machine."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host,
            port,
            type=socket.SOCK_STREAM,
            flags=socket.AI_PASSIVE,
        )[0]
        sock = socket.socket(family, kind, protocol)
    except OSError as error:
        raise BocError(
            f"{host}: not an address of this machine ({error.strerror})",
            "use <--host 127.0.0.1>",
        ) from error
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Connections inherit this option. uvicorn sets it only for sockets that it opens itself.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        sock.bind(address)
        sock.listen(CONNECTIONS)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise BocError(
                f"port {port} on {host} is already in use",
                "stop the program that uses it, or choose another <--port> (0 for any free port)",
            ) from error
        raise BocError(
            f"{host}:{port}: cannot listen ({error.strerror})",
            "choose another <--host> or <--port>",
        ) from error
    return sock


def run(app: ASGIApp, sock: socket.socket, *, log: bool = False) -> None:
    """Answer requests until Ctrl-C or SIGTERM. If ``log`` is true, log the requests.

    Clients that send or read slowly keep their connections. To close such connections, put a proxy
    in front of the server.
    """
    uvicorn.run(
        app,
        fd=sock.fileno(),
        http="h11",
        log_config=None,
        access_log=log,
        server_header=False,
        backlog=CONNECTIONS,
        limit_concurrency=connection_limit(),
        # When the server stops, active requests have 3 seconds to finish.
        timeout_graceful_shutdown=3,
    )


def return_memory() -> None:
    """Make the C library return the memory of a picture to the system when it is freed. Otherwise,
    the library would keep a gigabyte for later pictures."""
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        # Option -3 is M_MMAP_THRESHOLD. Each block of at least a megabyte gets its own mapping.
        library.mallopt(-3, 1 << 20)


def connection_limit() -> int:
    """Return the connection limit that RLIMIT_NOFILE allows, after raising the soft limit if this
    is permitted. Raises BocError if the limit is too low for reopening a changed index while
    clients are connected."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = CONNECTIONS + FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY:
        return CONNECTIONS
    again = 2 * sum(1 for _ in Path("/dev/fd").iterdir())
    if soft < again + LEAST:
        raise BocError(
            f"the server needs {again + LEAST} open files, but only {soft} are allowed; ulimit -n "
            f"{again + 2 * LEAST}",
        )
    return min(CONNECTIONS, soft - max(again, min(FILES, soft // 2)))
