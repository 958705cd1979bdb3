"""The connection to a server: one request, one answer, one of two errors."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from boc.errors import BackendError
from boc.errors import UnreachableError as UnreachableError

from .address import Address

Json = dict[str, Any]
NEXT = {  # by words of a cause
    "block_exception": "free disk space if it is short, have this block taken away",
    "cannot execute [inline] scripts": "allow scripts of updates (script.allowed_types, script.allowed_contexts)",
    "more than one write index": "take the alias from the other index (POST /_aliases)",
}
AWAY = {"node_not_connected_exception", "node_disconnected_exception", "node_closed_exception"}
"""Errors of a search or a row, of status 500, while the node of its shard comes or goes."""


class RefusedError(BackendError):
    """The server answered with an error: its HTTP ``status``, the type of the error as ``kind``, its ``reason``."""

    def __init__(self, message: str, status: int, kind: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.reason = reason


class UnfinishedError(BackendError):
    """A load cannot continue now. Acknowledged rows stay on the server, and the same load continues from there."""


class Transport(Protocol):
    """A connection to one cluster. Thread-safe. It repeats only what changes nothing: see ``send_until_answered``."""

    engine: str
    """elasticsearch or opensearch."""
    address: Address
    label: str
    """The address without secrets, for messages."""

    def open_pit(self, index: str, keep_alive: str) -> str:
        """Open a point in time of ``index`` and return its id; searches of it ignore later writes."""

    def close_pit(self, pit: str) -> None:
        """Close a point in time."""

    def request(self, method: str, path: str, body: Mapping[str, Any] | bytes | None = None, **params: Any) -> Json:
        """Send one request and return the parsed answer; a mapping is sent as JSON, bytes unchanged (NDJSON).

        ``timeout`` in ``params``, in seconds, replaces that of the connection; all others go into the URL, and
        ``server_timeout`` does so as ``timeout``. RefusedError and UnreachableError, whose messages hold no secret.
        """

    def search(self, path: str, body: Mapping[str, Any] | bytes, **params: Any) -> Json:
        """POST a request that changes nothing. Like any GET, it is repeated on another host if one is late."""


def refusal(label: str, status: int, body: Any) -> RefusedError:
    """Make the error for an answer with ``status`` and parsed ``body``; its message says what to do."""
    kind, reason = _cause(body)
    cause = f"{kind}: {reason}" if kind and reason else kind or reason or "no reason given"
    if status == 401:
        message = (
            f"{label} does not let you in ({kind or status}); name the user in the address (https://USER@HOST) and put "
            "the password into BOC_PASSWORD, or put an API key into BOC_API_KEY"
        )
    elif status == 403 and not kind.endswith("block_exception"):
        message = f"{label} does not allow that to this user: {reason or kind}; ask for rights on the index's names"
    elif kind == "index_closed_exception":
        message = f"{label}: an index of this name is closed; open it with POST /NAME/_open"
    else:
        message = f"{label} refused ({status}): {cause}"
        message += "".join(f"; {step}, then repeat the command" for sign, step in NEXT.items() if sign in cause)
    return RefusedError(message, status, kind, reason)


def unreachable(label: str, reason: str, *, tls: bool, late: bool) -> UnreachableError:
    """Make the error for a request without an answer; its message says what to do."""
    if tls:
        advice = "its certificate is not trusted; name the file of its authority with ?ca_certs=FILE in the address"
    elif late:
        advice = "it took too long; give it more with ?request_timeout=SECONDS in the address"
    else:
        advice = "see whether the server runs there, and whether it wants https"
    error = UnreachableError(f"no answer from {label}: {advice} ({reason})")
    error.late = late
    return error


def send_until_answered(send: Callable[[float], Json], waits: Sequence[float]) -> Json:
    """Send a request that changes nothing until it is answered. ``send`` asks each host once, waiting some seconds.

    So a host that hangs costs seconds and no error. A shard of which a hanging node holds a copy may be late from every
    host, until the cluster gives that node up, usually after half a minute: hence the last and longest wait.
    """
    for wait in waits[:-1]:
        try:
            return send(wait)
        except UnreachableError as error:
            if not error.late:
                raise
    return send(waits[-1])


def _cause(body: Any) -> tuple[str, str]:
    """Return type and reason of an error, with the reasons of its causes; the type of a cause that is in ``AWAY``."""
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        return ("", str(error or "")[:300])
    causes = error.get("root_cause") or [error]
    inner = error.get("caused_by") or (error.get("failed_shards") or [{}])[0].get("reason", {})
    kind, reason = str(causes[0].get("type", "")), str(causes[0].get("reason", ""))
    while isinstance(inner, dict) and inner:
        if inner.get("reason") and str(inner["reason"]) not in reason:
            reason = ": ".join(filter(None, (reason, str(inner["reason"]))))
        if inner.get("type") in AWAY:  # a search may fail between its phases, where the outer error does not tell why
            kind = inner["type"]
        inner = inner.get("caused_by")
    return kind, reason[:600]
