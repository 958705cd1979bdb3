"""Names of indexes on a shared server."""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture
def name(server: Any) -> Iterator[str]:
    """A name that no other test uses; all indexes whose names begin with it, or contain it, are
    removed afterwards."""
    found = f"boc-test-{uuid.uuid4().hex[:12]}"
    yield found
    for each in server.request("GET", f"*{found}*?expand_wildcards=all"):
        server.request("DELETE", each)
