"""Tests with a small temporary index how a server can hold codes."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from boc.errors import BackendError

from . import term_fields
from .score_check import self_test
from .transport import Json, RefusedError, Transport
from .vector_fields import VECTOR_FIELDS, Binary

EXACT = "exact"  # this field type passed its test


def tried_field(transport: Transport, field: str) -> str:
    """``EXACT`` if the server can hold codes in this way, tested with a small temporary index; else why not."""
    strategy = term_fields.STRATEGIES[field]
    try:
        with _trial(transport, {"terms": strategy.mapping}, strategy.settings) as index:
            lack = self_test(transport, index, strategy)
    except RefusedError as error:
        if error.status in (401, 403):
            return "not known: this user may not make the index boc-probe-*"
        return f"no ({error.reason or error.kind})"
    except BackendError as error:
        return f"no ({error})"
    return f"no ({lack})" if lack else EXACT


def tried_vectors(transport: Transport) -> str:
    """The formats in which the server can store vectors. It compares those of all but the default in compiled code."""
    found = [f"{Binary.name} (exact, the default)"]
    for field in VECTOR_FIELDS.values():
        if field.name == Binary.name:
            continue
        try:
            with _trial(transport, {"vector": field.mapping(2)}, field.settings) as index:
                (value,) = field.values(np.array([[0.6, 0.8]], np.float32))
                transport.request("PUT", f"/{index}/_doc/boc:test:vector", {"vector": value})
        except RefusedError:
            continue
        found.append(f"{field.name} ({'exact' if field.exact else 'rounded'}, faster)")
    return ", ".join(found)


@contextmanager
def _trial(transport: Transport, properties: Json, settings: Json) -> Iterator[str]:
    """The name of a small index, which is removed. RefusedError if the server does not make it."""
    index = f"boc-probe-{uuid.uuid4().hex[:12]}"
    body: Json = {
        "settings": {"number_of_shards": 1, "number_of_replicas": 0, **settings},
        "mappings": {"dynamic": False, "properties": properties},
    }
    transport.request("PUT", f"/{index}", body)
    try:
        yield index
    finally:
        transport.request("DELETE", f"/{index}")
