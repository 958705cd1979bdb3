"""Connections that hold nothing up: those that ask nothing, or do not read their answer, are closed.

uvicorn alone waits for ever for the headers of a request, and for a client that does not read.
"""

from __future__ import annotations

import asyncio
import resource
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

MOST = 1024  # connections at a time
FILES = 256  # that the process needs beside connections: the index, pictures, those accepted and not yet counted
AT_ONCE = 16  # connections that are accepted before one of them is looked at
ASK = 10.0  # seconds that a connection may take to send the headers of its next request
READ = 30.0  # seconds that a client may leave an answer unread
FINISH = 0.5  # seconds in which a request that is on its way arrives, once the server stops


def room() -> int:
    """How many connections this process has files for. Raises its limit of open files where it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST + FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return MOST if soft == resource.RLIM_INFINITY else max(1, min(MOST, soft - min(FILES, soft // 2)))


class PatientProtocol(H11Protocol):
    """HTTP over one connection. Where there are too many, that which has asked nothing for longest gives way."""

    most = MOST
    _idle: dict[PatientProtocol, None] = {}  # noqa: RUF012 - of the process: in the order in which they began to wait

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._asking: asyncio.TimerHandle | None = None
        self._reading: asyncio.TimerHandle | None = None
        self._stopping = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.most and self._idle:
            next(iter(self._idle))._close()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._idle.pop(self, None)
        self._cancel_asking()
        self._cancel_reading()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._cancel_reading()
        self._reading = self.loop.call_later(READ, self._close)

    def resume_writing(self) -> None:
        self._cancel_reading()
        super().resume_writing()

    def shutdown(self) -> None:
        """End the connection once what was asked, or is being asked, is answered."""
        self._stopping = True
        if self._is_busy():
            super().shutdown()
        else:
            self.loop.call_later(FINISH, self._stop)

    def _stop(self) -> None:
        if not self._is_busy():
            self._close()

    def _is_busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _watch(self) -> None:
        """Give the client some time to ask, while nothing that it asked is being answered."""
        if self._is_busy():
            self._idle.pop(self, None)
            self._cancel_asking()
            if self._stopping:
                self.cycle.keep_alive = False
        elif self._asking is None and not self.transport.is_closing():
            self._idle[self] = None
            self._asking = self.loop.call_later(ASK, self._close)

    def _close(self) -> None:
        self._idle.pop(self, None)
        self.transport.abort()

    def _cancel_asking(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None

    def _cancel_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
