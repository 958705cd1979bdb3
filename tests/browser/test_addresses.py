"""The page below the prefix of a proxy."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.browser.pages import below, settle, unfold

pytestmark = pytest.mark.slow
SENTENCE = "a red box at the left"
LOADED = (
    "() => [...document.querySelectorAll('li.hit img')].slice(0, 8).every((i) => i.complete "
    "&& i.naturalWidth)"
)


def test_page_below_a_prefix(
    visit: Any,
    servers: ExitStack,
    server: str,
    library: Path,
):
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
    page.get_by_title("Start a new search").click()
    page.wait_for_selector("#results[data-shows=library]")
    assert page.url == url
