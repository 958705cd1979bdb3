"""Tests with a small temporary index how a server can hold codes."""

from __future__ import annotations

import uuid

from boc.errors import BackendError

from . import term_fields
from .score_check import self_test
from .transport import Json, RefusedError, Transport

EXACT = "exact"  # this field type passed its test


def tried_field(transport: Transport, field: str) -> str:
    """``EXACT`` if the server can hold codes in this way, tested with a small temporary index; else why not."""
    strategy = term_fields.STRATEGIES[field]
    index = f"boc-probe-{uuid.uuid4().hex[:12]}"
    body: Json = {
        "settings": {"number_of_shards": 1, "number_of_replicas": 0, **strategy.settings},
        "mappings": {"dynamic": False, "properties": {"terms": strategy.mapping}},
    }
    try:
        transport.request("PUT", f"/{index}", body)
    except RefusedError as error:
        if error.status in (401, 403):
            return f"not known: this user may not make the index {index}"
        return f"no ({error.reason or error.kind})"
    try:
        lack = self_test(transport, index, strategy)
    except BackendError as error:
        return f"no ({error})"
    finally:
        transport.request("DELETE", f"/{index}")
    return f"no ({lack})" if lack else EXACT
