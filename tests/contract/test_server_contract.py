"""What every back end must do, of those on real servers, each as it stores codes by itself."""

import uuid
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from boc.plugins import Backend
from boc.types import Rows
from tests.contract.test_backend_contract import *  # noqa: F403
from tests.contract.test_backend_contract import build, vectors_for
from tests.contract.test_odd_options import *  # noqa: F403
from tests.oracles import picture, random_terms
from tests.servers.fixtures import SHARED, kinds
from tests.servers.fixtures import address as address_of

pytestmark = pytest.mark.parametrize("server", kinds(*SHARED), indirect=True, scope="session")


@pytest.fixture
def place() -> str:
    return "server"


@pytest.fixture
def address(server: Any) -> str:
    return address_of(server)


@pytest.fixture
def name(backend: Backend) -> Iterator[str]:
    """A name no other test uses; a server gets slow by what is left on it."""
    name = f"boc-test-{uuid.uuid4().hex[:12]}"
    yield name
    for each in backend.names():
        if each.startswith(name):
            backend.remove(each)


def test_interrupted_edit_warns(backend: Backend, name: str) -> None:
    terms = random_terms(np.random.default_rng(0), (2, 3), 3, 1)
    build(backend, name, [picture("a")], terms[:1])
    for commits in (False, True):
        with backend.edit(name) as editor:
            editor.put(Rows([picture("b")], terms[1:], vectors_for(1)))
            if commits:
                editor.commit("ef" * 32)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            backend.open(name)
        assert ["repeat the edit" in str(each.message) for each in caught] == [True] * (not commits)
    assert backend.open(name).manifest.items == {"image": 2, "text": 0}
