"""Sizes of pictures come from fields or files, and nobody waits long for them."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from boc.types import Item
from boc.web.pictures import sizes
from boc.web.pictures.sizes import Sizes


def picture(path: Path, **fields: object) -> Item:
    return Item(path.name, "image", str(path), path.name, fields)


def test_sizes_are_those_of_the_files_in_the_order_asked(tmp_path: Path) -> None:
    wanted: dict[str, tuple[int, int] | None] = {f"{i}.png": (3 + i, 40 - i) for i in range(20)}
    for name, size in wanted.items():
        Image.new("L", size or (1, 1)).save(tmp_path / name)
    (tmp_path / "bad.png").write_bytes(b"no picture")
    wanted |= {"bad.png": None, "missing.png": None}
    items = [picture(tmp_path / name) for name in [*reversed(wanted), *wanted]]
    expected = [wanted[item.id] for item in items]
    read = Sizes()
    for _ in range(2):
        assert read.of(items, patience=None) == expected
    assert read.of([Item("s", "text", "a sentence")], patience=None) == [None]
    assert read.of([]) == []


def test_a_changed_picture_has_its_new_size(tmp_path: Path) -> None:
    read, path = Sizes(), tmp_path / "a.bmp"
    for size in ((5, 6), (7, 80)):
        Image.new("L", size).save(path)
        assert read.of([picture(path)], patience=None) == [size]


@given(width=st.integers(-2, 5) | st.none() | st.just("5"), height=st.integers(-2, 5) | st.none())
def test_fields_tell_a_size_if_both_are_numbers_above_0(width: object, height: object) -> None:
    item = picture(Path("missing.png"), width=width, height=height)
    told = isinstance(width, int) and isinstance(height, int) and width > 0 and height > 0
    assert Sizes().of([item], patience=None) == [(width, height) if told else None]


def test_a_file_that_does_not_answer_is_waited_for_by_nobody_and_known_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.new("L", (9, 8)).save(tmp_path / "slow.png")
    gate, begun = threading.Event(), threading.Event()
    real = sizes.image_size

    def slow(path: Path) -> tuple[int, int]:
        begun.set()
        gate.wait()
        return real(path)

    monkeypatch.setattr(sizes, "image_size", slow)
    read, items = Sizes(), [picture(tmp_path / "slow.png"), picture(tmp_path / "x.png", width=3, height=4)]
    try:
        assert read.of(items) == [None, (3, 4)]
        begun.wait()
    finally:
        gate.set()
    assert read.of(items, patience=None) == [(9, 8), (3, 4)]
