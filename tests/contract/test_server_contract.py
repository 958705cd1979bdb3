"""What every back end must do, of those on real servers: each as it stores codes by itself, and the other ways."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from test_backend_contract import *  # noqa: F403

from boc import registry
from boc.types import Backend
from tests.servers.fixtures import LIGHT

SCHEMES = {"elasticsearch": "elastic", "opensearch": "opensearch"}
OPTIONS = {
    "opensearch-3": ["", "?field=counted_text"],
    "opensearch-2": [""],
    "elasticsearch-9": ["", "?field=sparse_vector&vectors=float"],
    "elasticsearch-8": [""],
    "elasticsearch-8.19": [""],
}
"""Kind of server -> options of the address."""
CASES = [
    pytest.param(kind, options, id=f"{kind}{options}", marks=[pytest.mark.servers] * ((kind, options) != (LIGHT, "")))
    for kind, each in OPTIONS.items()
    for options in each
]
pytestmark = pytest.mark.parametrize(("server", "options"), CASES, indirect=["server"], scope="session")


@pytest.fixture
def place() -> str:
    return "server"


@pytest.fixture
def backend(server: Any, options: str) -> Backend:
    return registry.backend(f"{SCHEMES[server.kind.engine]}+{server.url}{options}")


@pytest.fixture
def name(backend: Backend) -> Iterator[str]:
    """A name no other test uses; a server gets slow by what is left on it."""
    name = f"boc-test-{uuid.uuid4().hex[:12]}"
    yield name
    for each in backend.names():
        if each.startswith(name):
            backend.remove(each)
