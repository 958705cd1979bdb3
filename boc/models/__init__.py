"""Encoders that were downloaded with ``boc model get``: what they are called, where they lie, what they hold."""

from __future__ import annotations

from .catalogue import CATALOGUE, Entry, entry, repository, spec
from .files import contents, weights
from .store import Model, find, home, models, read, remove, verify

__all__ = [
    "CATALOGUE",
    "Entry",
    "Model",
    "contents",
    "entry",
    "find",
    "home",
    "models",
    "read",
    "remove",
    "repository",
    "spec",
    "verify",
    "weights",
]
