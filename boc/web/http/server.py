"""Serving an application over HTTP."""

from __future__ import annotations

import asyncio
import errno
import socket

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from boc.errors import BocError
from boc.web.http.connections import AT_ONCE, PatientProtocol, room
from boc.web.http.errors import refusal
from boc.web.http.logs import Form, configuration

TAKE = 0.2  # seconds in which waiting connections are accepted before the server stops
QUEUE = 1024  # connections that the system holds until they are accepted
GRACE = 3  # seconds that open requests have to finish when the server stops


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket. BocError if the port is taken, or the host is no address of this machine."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
    except OSError as error:
        raise BocError(f"--host {host}: no address of this machine ({error.strerror}); give 127.0.0.1") from error
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(address)
        sock.listen(QUEUE)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise BocError(
                f"port {port} of {host} is taken; stop what runs there, or give another --port (0 takes a free one)"
            ) from error
        raise BocError(f"{host}:{port}: cannot be listened at ({error.strerror}); give other --host, --port") from error
    return sock


def run(app: ASGIApp, sock: socket.socket, log: Form | None = None) -> None:
    """Answer requests until Ctrl-C or SIGTERM. ``log`` is the form of the log of requests; None for no log."""
    config = uvicorn.Config(
        _Stopped(app),
        log_config=configuration(log),
        access_log=False,  # addresses may contain a token
        server_header=False,
        http=PatientProtocol,
        backlog=AT_ONCE,
        timeout_graceful_shutdown=GRACE,
    )
    PatientProtocol.most = room()
    _Server(config).run(sockets=[sock])


class _Stopped:
    """Answers 503 to a request that takes longer than the server has to stop; uvicorn would log each as a fault."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def seen(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, seen)
        except asyncio.CancelledError:
            if scope["type"] != "http" or begun:
                raise
            said = "the server stops before this was done; ask again when it is back"
            await refusal(503, said, {"Retry-After": "1"})(scope, receive, send)


class _Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen; asyncio takes how many it accepts at once for the length of the system's queue, too."""
        await super().startup(sockets)
        for sock in sockets or ():
            sock.listen(QUEUE)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop, after connections that the system holds ready were taken: it would reset them. Requests that were cut
        off get an error."""
        await asyncio.sleep(TAKE)
        await super().shutdown(sockets)
        if tasks := set(self.server_state.tasks):
            await asyncio.wait(tasks, timeout=TAKE)
