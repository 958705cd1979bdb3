"""The collector of garbage is left as it was found."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from boc.garbage import OBJECTS, collected_rarely


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def test_the_collector_looks_rarely_and_then_as_before() -> None:
    gc.set_threshold(700, 11, 12)
    with collected_rarely():
        assert gc.get_threshold() == (OBJECTS, 11, 12)
        with collected_rarely():
            assert gc.get_threshold() == (OBJECTS, 11, 12)
        assert gc.get_threshold() == (OBJECTS, 11, 12)
    assert gc.get_threshold() == (700, 11, 12)
    with pytest.raises(KeyError), collected_rarely():
        raise KeyError
    assert gc.get_threshold() == (700, 11, 12)


@pytest.mark.parametrize("chosen", [0, OBJECTS + 1])
def test_who_has_it_look_more_rarely_or_never_is_not_disturbed(chosen: int) -> None:
    gc.set_threshold(chosen, 10, 10)
    with collected_rarely():
        assert gc.get_threshold()[0] == chosen
    assert gc.get_threshold()[0] == chosen
