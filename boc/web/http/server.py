"""Serving an application over HTTP."""

from __future__ import annotations

import ctypes
import errno
import resource
import socket
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from boc.errors import BocError
from boc.web.http.logs import Form, configuration

CONNECTIONS = 1024  # at a time; a request on a further one is answered with 503
LEAST = 32  # connections, and pictures that they ask for
FILES = 256  # that the process needs beside connections: the index, pictures
MMAP_THRESHOLD = -3  # the option of mallopt: blocks from this size on are mapped for themselves
GRACE = 3  # seconds that open requests have to finish when the server stops


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket. BocError if the port is taken, or the host is no address of this
    machine."""
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
            f"{host}: no address of this machine ({error.strerror})",
            "give <--host 127.0.0.1>",
        ) from error
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(address)
        sock.listen(CONNECTIONS)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise BocError(
                f"port {port} of {host} is taken",
                "stop what runs there, or give another <--port> (0 takes a free one)",
            ) from error
        raise BocError(
            f"{host}:{port}: cannot be listened at ({error.strerror})",
            "give other <--host>, <--port>",
        ) from error
    return sock


def run(app: ASGIApp, sock: socket.socket, log: Form | None = None) -> None:
    """Answer requests until Ctrl-C or SIGTERM. ``log`` is the form of the log of requests; None for
    no log.

    Clients that send or read slowly keep their connection: a proxy in front of the server closes
    these.
    """
    config = uvicorn.Config(
        app,
        http="h11",
        log_config=configuration(log),
        access_log=False,  # addresses may contain a token
        server_header=False,
        backlog=CONNECTIONS,
        limit_concurrency=_connections(),
        timeout_graceful_shutdown=GRACE,
    )
    _return_memory()
    uvicorn.Server(config).run(sockets=[sock])


def _return_memory() -> None:
    """Let the C library return the memory of each picture when it is freed: it would keep a
    gigabyte for later ones."""
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(MMAP_THRESHOLD, 1 << 20)


def _connections() -> int:
    """Return the limit of connections from RLIMIT_NOFILE, whose soft limit is raised if permitted.
    BocError if that is too low to open the index again, as after a change, while clients are
    connected."""
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
