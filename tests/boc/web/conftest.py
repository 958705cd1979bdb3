"""A searcher of the index ``photos`` of ``library``, and a client of the server over it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from boc.search.searcher import Searcher

if TYPE_CHECKING:
    from fastapi.testclient import TestClient


@pytest.fixture(scope="module")
def searcher(library: Path) -> Searcher:
    return Searcher.open("photos", f"file:{library / 'index'}", device="cpu")


@pytest.fixture
def client(searcher: Searcher, tmp_path: Path) -> TestClient:
    from tests.boc.web.test_api import client_of

    return client_of(searcher, tmp_path)
