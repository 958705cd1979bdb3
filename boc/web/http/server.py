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

CONNECTIONS = 1024  # at a time; requests on further connections are answered with 503
LEAST = 32  # smallest number of connections, each of which may open a picture
FILES = 256  # files that the process needs besides connections: the index, pictures


def configure_logging() -> None:
    """Log server faults on stderr, and requests if uvicorn logs them. The part of an address behind
    its route is left out, since it may be a token, a sentence or an id."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    requests = logging.getLogger("uvicorn.access")
    requests.setLevel(logging.INFO)
    requests.addFilter(cut_address)


def cut_address(record: logging.LogRecord) -> bool:
    """Shorten the address in a line of uvicorn's request log to its route."""
    assert isinstance(record.args, tuple)
    client, method, path, *others = record.args
    route = re.match("(/api)?/?[^/?]*", str(path))
    record.args = (client, method, route and route[0], *others)
    return True


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket. Raises BocError if the port is taken, or if the host is not an
    address of this machine."""
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
            "give <--host 127.0.0.1>",
        ) from error
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Connections inherit this option; uvicorn sets it only on sockets that it opened itself.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        sock.bind(address)
        sock.listen(CONNECTIONS)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise BocError(
                f"port {port} of {host} is taken",
                "stop the program that uses it, or give another <--port> (0 for any free port)",
            ) from error
        raise BocError(
            f"{host}:{port}: cannot listen ({error.strerror})",
            "give other <--host>, <--port>",
        ) from error
    return sock


def run(app: ASGIApp, sock: socket.socket, *, log: bool = False) -> None:
    """Answer requests until Ctrl-C or SIGTERM; with ``log``, log them.

    Clients that send or read slowly keep their connection; a proxy in front of the server closes
    such connections.
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
        # Open requests get 3 seconds to finish when the server stops.
        timeout_graceful_shutdown=3,
    )


def return_memory() -> None:
    """Make the C library return the memory of each picture when it is freed; otherwise it would
    keep a gigabyte for later pictures."""
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        # Option -3 is M_MMAP_THRESHOLD: each block of a megabyte or more gets its own mapping.
        library.mallopt(-3, 1 << 20)


def connection_limit() -> int:
    """Return the connection limit derived from RLIMIT_NOFILE, whose soft limit is raised if
    permitted. Raises BocError if the limit is too low to reopen the index, as after a change, while
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
            f"serving needs {again + LEAST} open files, {soft} are allowed; ulimit -n "
            f"{again + 2 * LEAST}",
        )
    return min(CONNECTIONS, soft - max(again, min(FILES, soft // 2)))
