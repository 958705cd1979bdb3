"""The back ends of the contracts, each with an empty place."""

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from boc import plugins
from boc.plugins import Backend
from indexing.embedded import merge

PLACES: dict[str, Callable[[Path], str]] = {"embedded": lambda folder: f"file:{folder / 'indexes'}"}
"""Name of a back end -> the URL of an empty place of it. Those that need a server:
test_server_contract.py."""


@pytest.fixture(params=PLACES)
def place(request) -> str:
    return str(request.param)


@pytest.fixture
def address(place: str, tmp_path: Path) -> str:
    return PLACES[place](tmp_path)


@pytest.fixture
def backend(address: str) -> Backend:
    return plugins.backend(address)


@pytest.fixture
def name() -> str:
    """A name no other test uses: servers are shared."""
    return f"boc-test-{uuid.uuid4().hex[:12]}"


@pytest.fixture(autouse=True)
def _many_segments(monkeypatch) -> None:
    """Leave every edit of a folder in a segment of its own, until there are eight."""
    monkeypatch.setattr(merge, "FEW", 1)
