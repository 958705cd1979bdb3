"""A client of the server over the index ``photos`` of the library."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from boc.search.searcher import Searcher

if TYPE_CHECKING:
    from fastapi.testclient import TestClient


@pytest.fixture
def client(searcher: Searcher, tmp_path: Path) -> TestClient:
    from tests.boc.web.test_api import client_of

    return client_of(searcher, tmp_path)
