"""What every back end must do, of those on real servers, each as it stores codes by itself."""

import uuid
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from boc.errors import BackendError
from boc.plugins import Backend
from boc.types import Rows
from tests.contract.test_backend_contract import *  # noqa: F403
from tests.contract.test_backend_contract import build, vectors_for
from tests.contract.test_odd_options import *  # noqa: F403
from tests.oracles import new_manifest, picture, random_terms
from tests.servers.fixtures import SHARED, address as address_of, kinds

pytestmark = pytest.mark.parametrize(
    "server",
    kinds(*SHARED),
    indirect=True,
    scope="session",
)


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


def test_interrupted_edit_warns(backend: Backend, name: str):
    terms = random_terms(
        0,
        (2, 3),
        3,
        1,
    )
    build(
        backend,
        name,
        [picture("a")],
        terms[:1],
    )
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


def test_two_writers_of_one_name(backend: Backend, name: str):
    """What is published stays whole, and the second writer is refused."""
    terms = random_terms(
        0,
        (4, 3),
        3,
        1,
    )
    rows = [Rows([picture(id)], terms[i : i + 1], vectors_for(1)) for i, id in enumerate("abcd")]

    def create(source):
        return backend.create(name, replace(new_manifest(3, 3), source=source), {})

    def load(source, *numbers):
        with create(source) as writer:
            for number in numbers:
                writer.add(rows[number])
            writer.commit()

    load("1", 0)
    with backend.edit(name) as editor:
        editor.put(rows[1])
        load("2", 2)
        editor.put(rows[3])
        with pytest.raises(BackendError, match=f"another command has replaced {name} and lost"):
            editor.commit("ef" * 32)
    assert [item.id for item in backend.open(name).items()] == ["c"]
    for source in ("3", "4"):  # the same contents, and others
        with create("3") as writer:
            writer.add(rows[0])
            with pytest.raises(BackendError, match=f"{name} at .* written by another process"):
                load(source, 0, 1)
            writer.add(rows[1])
            writer.commit()
        assert [item.id for item in backend.open(name).items()] == ["a", "b"]
