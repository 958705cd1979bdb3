"""The contact sheet: whatever a caption or a name holds, one page that needs no other file."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from PIL import Image

from boc.cli.contact_sheet import write_sheet
from boc.types import Hit, Item


class Page(HTMLParser):
    """Tags with their attributes, in order, and all text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in {"meta", "img"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in {"style", "title"}:
            self.text += data

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


def page(path: Path) -> Page:
    found = Page(path.read_text(encoding="utf-8"))
    assert found.open == []
    return found


@pytest.fixture
def dog(tmp_path: Path) -> Path:
    Image.new("RGB", (40, 30), "red").save(tmp_path / "dog.png")
    return tmp_path / "dog.png"


def test_page_is_complete_and_self_contained(tmp_path: Path, dog: Path):
    hits = [
        Hit(
            Item("dog.png", "image", str(dog), "dog.png"),
            0.9,
        ),
        Hit(Item("x#0", "text", "a cat", "x"), 0.25),
    ]
    write_sheet(
        tmp_path / "a.html",
        [
            ("first", hits),
            ("second", hits[::-1]),
            ("third", []),
        ],
    )
    found = page(tmp_path / "a.html")
    assert [found.count(tag) for tag in ("h1", "ol", "li", "img")] == [3, 3, 4, 2]
    words = found.text.split()
    assert [w for w in words if w in {"first", "second", "third"}] == ["first", "second", "third"]
    assert re.findall(r"0\.\d{3}", found.text) == ["0.900", "0.250", "0.250", "0.900"]
    assert "a cat" in found.text
    addresses = [
        str(a[name]) for _, a in found.tags for name in ("src", "href", "srcset") if name in a
    ]
    assert all(address.startswith("data:image/jpeg;base64,") for address in addresses)
    assert {"link", "script", "iframe"}.isdisjoint(tag for tag, _ in found.tags)
    text = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert "http" not in text.replace("http-equiv", "")
    assert "url(" not in text


@settings(max_examples=30)
@given(
    text=st.text(
        st.sampled_from("<>&\"'/=- a;#x0"),
        min_size=1,
        max_size=12,
    ),
)
def test_any_text_comes_back_from_the_page(
    tmp_path_factory,
    text: str,
):
    path = tmp_path_factory.getbasetemp() / "any.html"
    write_sheet(
        path,
        [
            (
                f"1{text}1",
                [Hit(Item(f"2{text}2", "text", f"3{text}3", ""), 1.0)],
            ),
        ],
    )
    for number in "123":
        assert f"{number}{text}{number}" in page(path).text


def test_missing_picture_is_named(tmp_path: Path, dog: Path):
    gone = str(tmp_path / "gone <1>.png")
    hits = [
        Hit(Item("gone", "image", gone, "gone"), 1.0),
        Hit(
            Item("dog", "image", str(dog), "dog"),
            0.5,
        ),
    ]
    write_sheet(tmp_path / "a.html", [("a dog", hits)])
    found = page(tmp_path / "a.html")
    assert f"{gone}: cannot be read" in found.text
    assert (found.count("li"), found.count("img")) == (2, 1)
