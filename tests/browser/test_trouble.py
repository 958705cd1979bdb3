"""Servers that go away, tokens, nothing to show, and texts that look like HTML."""

from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.browser.pages import SECRET, TAG, ids, serving, settle, unfold
from tests.ports import free_port

pytestmark = pytest.mark.slow
NETWORK = "Failed to load resource"
BOXES = (
    "all => all.map((e) => e.getBoundingClientRect()).map(({ x, y, width, height }) => [x, "
    "y, width, height])"
)


def test_server_dies(visit: Any, library: Path, tmp_path: Path):
    port = free_port()
    with serving("photos", library, tmp_path / "cache", port) as process:
        page = visit(f"{process.url}?q=red", expected=NETWORK)
        before = settle(page)
        process.kill()
        process.join()
        page.fill("#q", "something blue at the right")
        page.wait_for_selector("#notice >> text=The server does not respond")
        page.wait_for_selector("#notice >> text=Trying again in")
        assert ids(page) == before
        assert page.locator("#results.stale").count() == 1
    with serving("photos", library, tmp_path / "cache", port):
        page.wait_for_selector("#notice", state="hidden")
        assert settle(page) != before
        assert page.locator("#results.stale").count() == 0


def test_a_server_that_dies_under_an_explanation(visit: Any, server: str):
    page = visit(f"{server}?q=red", expected=NETWORK)
    settle(page)
    page.route("**/api/explain/**", lambda route: route.abort())
    page.locator("a.open").first.click()
    page.get_by_text("Why was it found?").click()
    page.wait_for_selector("dialog >> text=The server does not respond")
    page.unroute("**/api/explain/**")
    page.get_by_role("button", name="Try again").click()
    unfold(page)


def test_a_refusal_says_what_to_do(visit: Any, server: str):
    page = visit(f"{server}?q=red&filter=year%3E2000", expected=NETWORK)
    page.wait_for_selector("#results >> text=no metadata field 'year'")


def test_a_busy_server_is_asked_again(visit: Any, server: str):
    page = visit(server, expected=NETWORK)
    busy = {
        "status": 429,
        "json": {"error": "too many at once; ask again"},
        "headers": {"Retry-After": "1"},
    }
    page.route(
        "**/api/search*",
        lambda route: route.fulfill(**busy),
        times=1,
    )
    page.fill("#q", "red")
    page.wait_for_selector("#notice >> text=too many at once")
    assert len(settle(page)) == 40
    page.wait_for_selector("#notice", state="hidden")


def signed_in(visit: Any, address: str, query: str = "", **options: Any) -> Any:
    page = visit(f"{address}{query}", expected=NETWORK, **options)
    page.get_by_label("Token").fill(SECRET)
    page.get_by_role("button", name="Open").click()
    return page


def test_the_token_is_asked_for(visit: Any, odd_server: str):
    page = visit(f"{odd_server}?q=red", expected=NETWORK)
    page.get_by_label("Token").fill("wrong")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=Wrong token")
    page.get_by_label("Token").fill(SECRET)
    page.keyboard.press("Enter")
    assert len(settle(page)) == 6
    assert page.evaluate("document.cookie") == ""  # not for scripts
    assert SECRET not in page.url
    page.wait_for_function("() => [...document.images].some((image) => image.naturalWidth)")
    page.reload()
    assert len(settle(page)) == 6


def test_html_is_shown_as_text(visit: Any, odd_server: str):
    page = signed_in(visit, odd_server, f"?q={quote(f'something blue {TAG}')}&find=text")
    settle(page)
    page.on("dialog", lambda _: pytest.fail("a script of the index ran"))
    assert TAG in page.locator(".sentence").first.inner_text()
    page.locator("a.open").first.click()
    page.wait_for_selector("dialog .fields >> text=onerror")
    page.keyboard.press("Escape")
    page.get_by_label("Pictures", exact=True).check()
    page.wait_for_selector("li.hit")
    settle(page)
    page.locator("a.open").nth(1).click()
    page.wait_for_selector("dialog .captions >> text=onerror")
    assert "<b>bold" in page.locator("dialog h2").inner_text()
    page.get_by_role("link", name="More like this").click()
    page.wait_for_selector("#asked-by >> text=<b>bold")
    assert page.locator("#results b, #results i, dialog .fields img, .captions img").count() == 0
    assert "owned" not in page.title()
    assert page.locator("img[src$='/x'], img[src='x']").count() == 0


def test_filters_are_added_and_removed(visit: Any, odd_server: str):
    page = signed_in(visit, odd_server, "?q=red")
    settle(page)
    page.fill("#q", "year>=2018 red")
    page.wait_for_function("() => document.querySelectorAll('li.hit').length === 3")
    assert page.locator(".chip").inner_text() == "year ≥ 2018"
    assert "filter=year%3E%3D2018" in page.url
    page.fill("#q", "red year>2090")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=Nothing found")
    page.get_by_role("button", name="Remove the filters").click()
    page.wait_for_function("() => document.querySelectorAll('li.hit').length === 6")
    assert not page.locator(".chip").count()


def test_a_picture_that_is_gone_has_its_name(visit: Any, odd_server: str):
    page = signed_in(visit, odd_server, "?q=red")
    settle(page)
    page.wait_for_selector(".broken >> text=5 <b>bold")


def test_rows_are_of_equal_height_and_fill_the_page(
    visit: Any,
    odd_server: str,
):
    page = signed_in(visit, odd_server, "?q=red", phone=True)
    settle(page)
    for width in (360, 520, 1200):
        page.set_viewport_size({"width": width, "height": 740})
        page.wait_for_timeout(100)
        places, [[left, _, wide, _]] = (
            page.locator(name).evaluate_all(BOXES) for name in ("li.hit", ".hits")
        )
        rows = {}
        for place in places:
            rows.setdefault(place[1], []).append(place)
        assert all(len({height for *_, height in row}) == 1 for row in rows.values())
        for row, after in pairwise(rows.values()):
            if (
                after[0][1] - row[0][1] - row[0][3] > 20
            ):  # the line is between them, where a row need not be full
                continue
            assert row[0][0] == pytest.approx(left, abs=1)
            assert row[-1][0] + row[-1][2] == pytest.approx(left + wide, abs=1)


def test_an_empty_index_says_how_to_fill_it(visit: Any, server: str):
    page = visit("about:blank")

    def emptied(route):
        route.fulfill(
            json={
                **route.fetch().json(),
                "items": {"image": 0, "text": 0},
            },
        )

    page.route("**/api/info", emptied)
    page.goto(server)
    page.wait_for_selector("text=This index is empty")
    assert page.locator("text=boc index photos").is_visible()
