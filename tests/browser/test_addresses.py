"""The page below the prefix of a proxy, and several indexes in one page."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.browser.pages import below, serving, settle, unfold
from tests.helpers import run

pytestmark = pytest.mark.slow
SENTENCE = "a red box at the left"
LOADED = (
    "() => [...document.querySelectorAll('li.hit img')].slice(0, 8).every((i) => i.complete "
    "&& i.naturalWidth)"
)


def test_page_below_a_prefix(
    visit: Callable[..., Any],
    servers: ExitStack,
    server: str,
    library: Path,
) -> None:
    url = servers.enter_context(below("/my/pictures", server))
    page = visit(f"{url}?q={quote(SENTENCE)}")
    settle(page)
    page.wait_for_function(LOADED)
    page.locator("a.open").first.click()
    unfold(page)
    page.wait_for_function("() => document.querySelector('dialog .scene img').naturalWidth > 0")
    page.keyboard.press("Escape")
    page.set_input_files("#file", library / "images" / "007.png")
    page.wait_for_function("() => document.querySelector('a.open')?.href.includes('007.png')")
    page.locator("li.hit").first.hover()
    page.locator("a.like").first.click()
    page.wait_for_url("**?like=007.png")
    settle(page)
    assert page.locator("#asked-by img").evaluate(
        "image => image.complete && image.naturalWidth > 0",
    )
    assert page.url.startswith(url)
    page.get_by_title("Start again").click()
    page.wait_for_selector("#results[data-shows=library]")
    assert page.url == url


def test_several_indexes_are_beside_each_other(
    visit: Callable[..., Any],
    servers: ExitStack,
    library: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    home = tmp_path_factory.mktemp("several")
    for name, without in (
        ("photos", range(35, 40)),
        ("album", range(8, 40)),
    ):
        run("index", name, library / "photos.h5", "--at", f"file:{home / 'index'}")
        run(
            "delete",
            name,
            *(f"{i:03d}.png" for i in without),
            "--at",
            f"file:{home / 'index'}",
        )
    process = servers.enter_context(
        serving(
            "photos",
            home,
            home / "cache",
            others=["album"],
        ),
    )
    url = servers.enter_context(below("/all", process.url))
    page = visit(f"{url}?q={quote(SENTENCE)}&k=10")
    assert len(settle(page)) > 8
    links = page.get_by_role(
        "navigation",
        name="Indexes",
    ).get_by_role("link")
    assert links.all_inner_texts() == ["photos", "album"]
    assert links.nth(0).get_attribute("aria-current") == "page"
    links.nth(1).focus()
    page.keyboard.press("Enter")
    page.wait_for_url(f"{url}index/album/?q=a+red+box+at+the+left")
    assert len(settle(page)) == 8
    page.wait_for_function(LOADED)
    assert page.title().endswith("album \u00b7 boc")
    page.go_back()
    assert len(settle(page)) > 8
    page.locator("li.hit").first.hover()
    page.locator("a.like").first.click()
    page.wait_for_url("**like=*")
    assert links.nth(1).evaluate("link => link.search") == ""  # ids are those of one index
