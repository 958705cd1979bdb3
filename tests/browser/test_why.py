"""The dialog that takes a score apart."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.browser.pages import serving, settle, unfold, word
from tests.helpers import run

pytestmark = pytest.mark.slow
SENTENCE = "a red box at the left"


@pytest.fixture
def why(visit: Any, server: str) -> Any:
    """A page with the explanation of its first hit."""
    page = visit(f"{server}?q={quote(SENTENCE)}")
    settle(page)
    page.locator("a.open").first.click()
    unfold(page)
    return page


def test_shares_sum_to_the_score(why: Any):
    rows = why.eval_on_selector_all(
        "dialog .terms li",
        "rows => rows.map(r => [Number(r.dataset.product), Number(r.dataset.share)])",
    )
    total = int(why.get_attribute("dialog .sum", "data-sum"))
    assert sum(product for product, _ in rows) == total > 0
    assert sum(share for _, share in rows) == pytest.approx(1, abs=1e-6)
    assert [product for product, _ in rows] == sorted(
        (product for product, _ in rows),
        reverse=True,
    )
    assert why.locator("dialog .total b").inner_text() == f"{total:,}"


def test_words_colour_the_regions(why: Any):
    assert why.locator("dialog .region").count() > 0
    red = word(why, "red")
    red.click()
    why.mouse.move(0, 0)
    assert red.get_attribute("aria-pressed") == "true"
    shades = why.eval_on_selector_all(
        "dialog .overlay .cell",
        "cells => cells.map(c => +c.style.getPropertyValue('--v'))",
    )
    assert len(shades) > 1
    assert min(shades) == 0 < max(shades)
    assert "word=red" in why.url
    why.reload()
    why.wait_for_selector("dialog .heated")
    red.click()
    why.mouse.move(0, 0)
    why.wait_for_selector("dialog .region")
    assert "word" not in why.url


def test_captions_and_focus(why: Any):
    assert why.locator("dialog .captions li").count() == 2
    inside = "() => document.querySelector('dialog').contains(document.activeElement)"
    for _ in range(40):
        why.keyboard.press("Tab")
        assert why.evaluate(inside) or why.evaluate("document.activeElement === document.body")
    why.get_by_role("button", name="Close").click()
    why.wait_for_function("() => !document.querySelector('dialog').open")
    assert why.evaluate("document.activeElement === document.querySelector('a.open')")


@pytest.mark.parametrize("find", ["image", "text"])
def test_an_item_is_explained_for_an_item(
    visit: Any,
    server: str,
    find: str,
):
    page = visit(f"{server}?like=003.png&find={find}")
    settle(page)
    page.locator("a.open").first.click()
    unfold(page)
    assert page.locator("dialog .asked-picture").is_visible()
    if find == "text":
        assert page.locator("dialog .weighed").count() > 1
        assert page.locator("dialog .scene img").is_visible()


def test_a_picture_is_explained_for_a_picture(
    visit: Any,
    server: str,
    library: Any,
):
    page = visit(server)
    page.set_input_files("#file", library / "images" / "004.png")
    settle(page)
    page.locator("a.open").nth(1).click()
    unfold(page)
    assert page.get_by_alt_text("The picture you searched by").is_visible()


def test_a_picture_is_written_in_words_that_search(
    library: Path,
    tmp_path: Path,
    visit: Any,
    servers: ExitStack,
):
    words = tmp_path / "words.npz"
    run(
        f"build-codebook {library}/photos.h5 -o {words} --kind words --clusters 7",
    )
    run(
        f"index written {library}/photos.h5 --code",
        f"words(codebook={words})",
        "--at",
        f"file:{tmp_path / 'index'}",
    )
    url = servers.enter_context(
        serving(
            "written",
            tmp_path,
            tmp_path / "cache",
        ),
    ).url
    page = visit(f"{url}?q={quote(SENTENCE)}")
    settle(page)
    page.locator("a.open").first.click()
    page.wait_for_selector("dialog .written a")
    first = page.locator("dialog .written a").first
    wanted = first.inner_text()
    first.click()
    page.wait_for_function("() => !document.querySelector('dialog').open")
    settle(page)
    assert page.locator("#q").input_value() == wanted
    assert f"q={wanted}" in page.url
    assert page.locator("a.open").count() > 0
