"""What people come to do, each with the clicks that it takes; `--log-cli-level INFO` prints them
with the seconds."""

import logging
from collections.abc import Iterator
from time import perf_counter
from typing import Any
from urllib.parse import quote

import pytest

from tests.browser.conftest import YEAR
from tests.browser.pages import ids, query_of, settle, settle_after

pytestmark = pytest.mark.slow
LOG = logging.getLogger(__name__)
SENTENCE = "a green ball"
FIRST = "00000.jpg"


class Hand:
    """A user at a page, whose clicks are counted."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.clicks = 0
        self.begun = perf_counter()

    def click(self, target: Any, **options: Any) -> None:
        self.clicks += 1
        (self.page.locator(target) if isinstance(target, str) else target).click(
            **options,
        )

    def asks(self, text: str) -> list[str]:
        """Type what is asked; the ids of the answer."""
        return settle_after(
            self.page,
            "/api/search",
            lambda: (
                self.page.fill("#q", text),
                self.page.keyboard.press("Enter"),
            ),
        )


@pytest.fixture
def hand(visit: Any, scenes: Any, request) -> Iterator[Hand]:
    page = visit(scenes.url)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.wait_for_selector("#results[data-shows=library]")
    user = Hand(page)
    yield user
    LOG.info(
        "%s: %d clicks, %.1f s",
        request.node.name,
        user.clicks,
        perf_counter() - user.begun,
    )


def years(page: Any, shown: list[str]) -> set[int]:
    return {YEAR + int(each[:5]) % 4 for each in shown}


def test_find_a_picture_of_a_year_and_save_the_original(hand: Hand, scenes: Any):
    page = hand.page
    shown = hand.asks(f"{SENTENCE} year:{YEAR}")
    assert shown[0] == FIRST
    assert years(page, shown) == {YEAR}
    assert page.input_value("#q").strip() == SENTENCE
    hand.click(page.locator("a.open").first)
    with page.expect_download() as saved:
        hand.click(page.get_by_role("link", name="Save the original"))
    assert saved.value.suggested_filename == FIRST
    assert saved.value.path().read_bytes() == (scenes.photos / FIRST).read_bytes()
    assert hand.clicks == 2


def test_take_a_filter_away(hand: Hand):
    page = hand.page
    narrow = hand.asks(f"{SENTENCE} year:{YEAR} trip:alps")
    assert page.locator(".chip").all_inner_texts() == [f"taken {YEAR}", "trip is Alps"]
    wide = settle_after(
        page,
        "/api/search",
        lambda: hand.click(
            page.get_by_role(
                "button",
                name=f"Remove taken {YEAR}",
            ),
        ),
    )
    assert set(narrow) < set(wide)
    assert years(page, wide) == {YEAR, YEAR + 2}  # those of the Alps
    assert hand.clicks == 1


def test_complete_a_filter(hand: Hand):
    page = hand.page
    page.fill("#q", "tri")
    offered = "() => [...document.querySelectorAll('#complete option')].map((each) => each.value)"
    assert page.evaluate(offered) == ["trip:"]
    page.fill("#q", "trip:co")
    assert page.evaluate(offered) == ["trip:Coast "]
    page.fill("#q", "trip:Coast ")
    page.wait_for_selector("text=30 pictures, newest first")
    assert page.locator(".chip").all_inner_texts() == ["trip is Coast"]


def test_more_like_this_in_a_new_tab(hand: Hand):
    page = hand.page
    hand.asks(SENTENCE)
    page.locator("li.hit").first.hover()
    with page.context.expect_page() as tab:
        hand.click(
            page.locator("a.like").first,
            modifiers=["ControlOrMeta"],
        )
    shown = settle(tab.value)
    assert query_of(tab.value) == {"like": [FIRST]}
    assert FIRST not in shown
    assert hand.clicks == 1


def test_reload_keeps_the_place_and_back_closes_the_picture(hand: Hand):
    page = hand.page
    hand.asks(SENTENCE)
    page.mouse.wheel(0, 700)
    page.wait_for_function("() => scrollY === 700")
    page.reload()
    settle(page)
    page.wait_for_function("() => scrollY === 700")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "q"
    assert page.evaluate("scrollY") == 700
    settle_after(
        page,
        "/api/search",
        lambda: (
            page.keyboard.type("a red boat"),
            page.keyboard.press("Enter"),
        ),
    )
    page.go_back()
    page.wait_for_function("() => scrollY === 700")
    assert page.input_value("#q") == SENTENCE
    hand.click(page.locator("li.hit").nth(30))
    page.wait_for_selector("dialog .fields")
    page.go_back()
    page.wait_for_function("() => !document.querySelector('dialog').open")
    assert page.evaluate("scrollY") > 0
    assert page.input_value("#q") == SENTENCE
    assert hand.clicks == 1


def test_settings_are_shown_and_hidden(hand: Hand):
    page = hand.page
    hand.asks(SENTENCE)
    hand.click(page.get_by_role("button", name="Search settings"))
    assert page.locator("#panel").is_visible()
    page.focus("#q")
    page.keyboard.press("Escape")
    assert page.locator("#panel").is_hidden()
    assert page.input_value("#q") == SENTENCE
    assert hand.clicks == 1


def test_an_unknown_word_is_named_and_put_right(hand: Hand):
    page = hand.page
    hand.asks("a gren kite with a submarien")
    page.wait_for_selector(
        "#meter >> text=“gren”, “submarien” are unknown to this library and its model",
    )
    settle_after(
        page,
        "/api/search",
        lambda: hand.click(
            page.get_by_role(
                "button",
                name="a green kite with a submarien",
            ),
        ),
    )
    assert page.input_value("#q") == "a green kite with a submarien"
    assert hand.clicks == 1


def test_what_looks_like_a_filter_is_told(visit: Any, scenes: Any):
    page = visit(scenes.url, expected="Failed to load resource")
    hand = Hand(page)
    hand.asks("a kite camera:canon")
    page.wait_for_selector("#meter >> text=“camera:” is not a filter here; use taken")
    page.fill("#q", "a kite year:20 ")
    page.wait_for_selector("text=Taken is of type date, but '20' is not; use an ISO 8601 date")
    page.get_by_role("button", name="Remove taken is 20").click()
    hand.asks(f"a kite {YEAR}")
    shown = settle_after(
        page,
        "/api/search",
        lambda: hand.click(
            page.get_by_role(
                "button",
                name=f"a kite year:{YEAR}",
            ),
        ),
    )
    assert years(page, shown) == {YEAR}
    assert page.input_value("#q") == "a kite"
    assert hand.clicks == 1


def test_search_by_a_picture_of_ones_own(hand: Hand, scenes: Any):
    page = hand.page
    with page.expect_file_chooser() as chooser:
        hand.click(page.get_by_role("button", name="Search by a picture"))
    shown = settle_after(
        page,
        "/api/search",
        lambda: chooser.value.set_files(scenes.photos / FIRST),
    )
    assert shown[0] == FIRST
    page.reload()
    assert settle(page) == shown
    page.go_back()
    page.wait_for_selector("text=60 pictures, newest first")
    page.go_forward()
    assert settle(page) == shown
    page.get_by_title("Start a new search").click()
    page.wait_for_selector("text=60 pictures, newest first")
    assert hand.clicks == 1


def test_a_finger_goes_to_the_next_picture(visit: Any, scenes: Any):
    page = visit(f"{scenes.url}?q={quote(SENTENCE)}", phone=True)
    shown = settle(page)
    page.locator("a.open").first.tap()
    page.wait_for_selector("dialog .fields")
    touch = page.context.new_cdp_session(page)
    for kind, x in (
        ("touchStart", 300),
        ("touchMove", 180),
        ("touchEnd", None),
    ):
        points = [] if x is None else [{"x": x, "y": 300}]
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    page.wait_for_url(f"**open={quote(shown[1])}*")


def test_a_long_press_selects(visit: Any, scenes: Any):
    page = visit(f"{scenes.url}?q={quote(SENTENCE)}", phone=True)
    settle(page)
    opacity = "() => getComputedStyle(document.querySelector('.hit .select')).opacity"
    assert page.evaluate(opacity) == "0"
    touch = page.context.new_cdp_session(page)
    box = page.locator("a.open").nth(1).bounding_box()
    points = [{"x": box["x"] + 30, "y": box["y"] + 30}]
    touch.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": points})
    page.wait_for_selector("text=1 selected")
    touch.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    page.locator("a.open").nth(2).tap()
    page.wait_for_selector("text=2 selected")
    page.wait_for_function(f"() => ({opacity})() === '1'")
    page.keyboard.press("Escape")
    assert page.locator("#selection").is_hidden()
    page.locator("a.open").first.tap()
    page.wait_for_selector("dialog .fields")
    page.reload()
    place = "document.querySelector('dialog .place')?.textContent"
    page.wait_for_function(f"() => /^1 of [1-9]/.test({place})")
    page.get_by_title("Next").click()
    page.wait_for_function(f"() => /^2 of /.test({place})")


def test_a_library_is_narrowed_before_any_search(hand: Hand):
    page = hand.page
    hand.click(page.locator("details.facet summary", has_text="trip"))
    page.wait_for_selector("details[open] >> text=among the newest 60 pictures")
    hand.click(page.locator(".facet-value", has_text="Alps"))
    page.wait_for_selector("text=30 pictures, newest first")
    assert hand.clicks == 2


def test_of_many_pictures_those_near_the_screen_are_there(
    visit: Any,
    scenes: Any,
):
    """Hundreds of pictures by date: few in the page at a time, the right ones, with their places
    said."""
    page = visit("about:blank")
    many = 3000

    def library(route):
        query = dict(each.split("=") for each in route.request.url.partition("?")[2].split("&"))
        skip = int(query["skip"])
        k = int(query["k"])
        fields = [{"taken": f"{2023 - i // 400}-0{9 - i % 400 // 50}-11"} for i in range(many)]
        hits = [
            {
                "id": f"{i}",
                "modality": "image",
                "content": f"{i}",
                "group": "",
                "fields": fields[i],
                "width": 3,
                "height": 2,
            }
            | {"thumb": f"api/thumb/{FIRST}"}
            for i in range(skip, min(many, skip + k))
        ]
        route.fulfill(json={"pictures": many, "hits": hits})

    page.route("**/api/library?*", library)
    page.goto(scenes.url)
    page.wait_for_selector("#results[data-shows=library]")
    last = page.locator(f"li[data-at='{many - 1}']")
    while not last.count():
        page.mouse.wheel(0, 20_000)
        page.evaluate("() => new Promise(requestAnimationFrame)")
        shown = [int(each) for each in ids(page)]
        assert shown == list(range(shown[0], shown[0] + len(shown)))
        assert len(shown) < 300
    assert last.get_attribute("aria-posinset") == last.get_attribute("aria-setsize") == f"{many}"
    last.locator("a.open").focus()
    page.keyboard.press("Home")
    page.wait_for_function(
        "() => scrollY < 400 && document.activeElement.closest('li').dataset.at === '0'",
    )
    assert page.locator("li.line").first.inner_text() == "September 2023"
