"""Instances made many at once are those that calling the class makes."""

from __future__ import annotations

import gc
import sys
from dataclasses import FrozenInstanceError, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boc import instances as module
from boc.instances import instances
from boc.types import Hit, Item

WAYS = ["python"] if module._instances is None else ["compiled", "python"]
BUILT = pytest.mark.skipif(module._instances is None, reason="not built here")

texts = st.text(max_size=3)
items = st.builds(Item, texts, st.sampled_from(["image", "text"]), texts, texts, st.dictionaries(texts, st.integers()))


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@given(made=st.lists(items))
def test_they_are_what_calling_the_class_makes(way: str, made: list[Item]) -> None:
    columns = [[getattr(item, name) for item in made] for name in ("id", "modality", "content", "group", "fields")]
    with pytest.MonkeyPatch.context() as patch:
        if way == "python":
            patch.setattr(module, "_instances", None)
        found = instances(Item, *columns)
        hits = instances(Hit, found, [0.5] * len(found))
    assert found == made
    assert hits == [Hit(item, 0.5) for item in made]
    assert list(map(repr, found)) == list(map(repr, made))
    for item in found:
        assert hash(item) == hash(replace(item))
        with pytest.raises(FrozenInstanceError):
            item.id = "another"  # type: ignore[misc]


@pytest.mark.parametrize("way", WAYS)
def test_columns_of_several_lengths_are_refused(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "python":
        monkeypatch.setattr(module, "_instances", None)
    with pytest.raises(ValueError, match=r"equal length|shorter|longer"):
        instances(Hit, [Item("a", "text", "a cat")], [1.0, 2.0])


@BUILT
def test_what_is_not_a_class_with_its_columns_is_refused() -> None:
    of = module._instances.of
    for arguments in ((), (Hit,), (Hit, ("item", "score"), []), (1, ("item",), []), (Hit, ["item"], [])):
        with pytest.raises(TypeError, match="takes a class"):
            of(*arguments)
    with pytest.raises(ValueError, match="lists of equal length"):
        of(Hit, ("item", "score"), (), ())
    with pytest.raises(AttributeError):
        of(object, ("item",), [1])  # which has no attributes of its own
    with pytest.raises(TypeError, match=r"int.* makes its instances in another way"):
        of(int, ("item",), [1])


@pytest.mark.slow
@BUILT
def test_nothing_is_held_of_what_was_made() -> None:
    value = object()
    before = sys.getrefcount(value)
    found = instances(Hit, [value] * 3, [1.0] * 3)  # type: ignore[list-item]
    assert sys.getrefcount(value) == before + 3
    del found
    gc.collect()
    assert sys.getrefcount(value) == before
