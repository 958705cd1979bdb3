"""Logs of the server on stderr, as lines of text or JSON. No line holds a token; queries only if asked for."""

from __future__ import annotations

import json
import logging
from datetime import datetime, timezone
from typing import Any, Literal, TypeAlias

from boc.web.http.observed import REQUEST, Answered

Form: TypeAlias = Literal["text", "json"]

ACCESS = "boc.access"
"""The name of the logger of answered requests."""

_access = logging.getLogger(ACCESS)


def log_answered(found: Answered, *, queries: bool) -> None:
    """Log a request; with ``queries`` also its path and parameters, which hold sentences and ids."""
    if not _access.isEnabledFor(logging.INFO):
        return
    told: dict[str, object] = {
        "method": found.method,
        "route": found.route,
        "status": found.status,
        "ms": round(1000 * found.seconds, 1),
        "bytes": found.size,
        "client": found.client,
    }
    if queries:
        told |= {"path": found.path, "query": found.query}
    _access.info("answered", extra={"told": told})


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        told = getattr(record, "told", {})
        said = " ".join(ascii(value)[1:-1] if isinstance(value, str) else str(value) for value in told.values())
        head = f"{_time(record)} {record.levelname} {REQUEST.get() or '-'} {said or record.getMessage()}"
        return f"{head}\n{self.formatException(record.exc_info)}" if record.exc_info else head


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, Any] = {"time": _time(record), "level": record.levelname, "request": REQUEST.get() or None}
        told |= {"message": record.getMessage(), **getattr(record, "told", {})}
        if record.exc_info:
            told["traceback"] = self.formatException(record.exc_info)
        return json.dumps(told, default=str)  # in ASCII: some readers end lines at others than \n


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")


def configuration(form: Form | None) -> dict[str, Any]:
    """What ``logging.config.dictConfig`` takes: faults of the server always, requests if a form is given."""
    formatter = _Json if form == "json" else _Text
    loggers = {"uvicorn": {"handlers": ["stderr"], "level": "WARNING", "propagate": False}}
    if form is not None:
        loggers[ACCESS] = {"handlers": ["stderr"], "level": "INFO", "propagate": False}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"()": formatter}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
        "loggers": loggers,
    }
