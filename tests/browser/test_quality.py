"""Figures of the page: accessibility, layout shift, bytes, width."""

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest

from tests.browser.pages import settle, unfold, word

pytestmark = pytest.mark.slow
SENTENCE = "a red box at the left"
SHIFT = 0.02  # a tenth is what the web calls good
# of a first visit: page, style, scripts, icon and what the index holds
REQUESTS = 25
BYTES = 60_000
SHIFTS = """
window.shifted = 0;
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) window.shifted += entry.value;
})
  .observe({ type: "layout-shift", buffered: true });
"""


def violations(page: Any) -> list[str]:
    """What axe finds."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    return [
        f"{each['id']}: {node['html'][:160]} {node['failureSummary']}"
        for each in found
        for node in each["nodes"]
    ]


def explain(page: Any) -> None:
    page.locator("a.open").first.click()
    unfold(page)
    for summary in page.locator("dialog .reasons summary").all():
        summary.click()
    word(page, "red").click()


def facet(page: Any) -> None:
    page.locator(
        "details.facet",
        has_text="taken",
    ).locator("summary").click()
    page.wait_for_selector("details[open] .facet-value")


def select(page: Any) -> None:
    page.locator("a.open").first.focus()
    page.keyboard.press("x")
    page.wait_for_selector("text=1 selected")


def empty(page: Any) -> None:
    page.route(
        "**/api/info",
        lambda r: r.fulfill(
            json={
                **r.fetch().json(),
                "items": {"image": 0, "text": 0},
            },
        ),
        times=1,
    )
    page.reload()
    page.wait_for_selector("text=This index is empty")


def away(page: Any) -> None:
    page.route(
        "**/api/search*",
        lambda route: route.abort(),
        times=1,
    )
    page.fill("#q", "blue")
    page.wait_for_selector("#notice >> text=does not respond")


def upload(page: Any) -> None:
    picture = page.locator("li.hit img").first.screenshot()
    page.set_input_files(
        "#file",
        {"name": "mine.png", "mimeType": "image/png", "buffer": picture},
    )
    page.wait_for_selector("#asked-by img")
    settle(page)


def settings(page: Any) -> None:
    page.get_by_role("button", name="Search settings").click()


ASKED = f"?q={quote(SENTENCE)}"
STATES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "start": ("", lambda page: None),
    "results": (ASKED, settle),
    "sentences": (f"{ASKED}&find=text", settle),
    "unknown words": (
        "?q=a+gren+submarien",
        lambda page: page.wait_for_selector("#meter >> text=Did you mean"),
    ),
    "picture": (
        ASKED,
        lambda page: (
            page.locator("a.open").first.click(),
            page.wait_for_selector("dialog .fields"),
        ),
    ),
    "why": (ASKED, explain),
    "facets": (f"{ASKED}&filter=trip%3DAlps", facet),
    "selection": (ASKED, select),
    "alike": ("?like=00001.jpg&unlike=00003.jpg", settle),
    "nothing": (
        f"{ASKED}&filter=trip%3Dnone",
        lambda page: page.wait_for_selector("text=Nothing found"),
    ),
    "refused": (
        f"{ASKED}&filter=none%3E1",
        lambda page: page.wait_for_selector("text=The search failed"),
    ),
    "upload": ("", upload),
    "empty": ("", empty),
    "error": ("", away),
    "settings": (f"{ASKED}&hybrid=rrf", settings),
}


@pytest.mark.parametrize(
    "way",
    ["wide", "dark", "phone", "zoom"],
)
def test_accessibility(visit: Any, scenes: Any, way: str):
    pytest.importorskip("axe_playwright_python")
    page = visit(
        "about:blank",
        dark=way == "dark",
        phone=way == "phone",
        expected="Failed to load resource",
    )
    found = []
    if way == "zoom":  # 200 %
        page.set_viewport_size({"width": 640, "height": 400})
    for name, (query, act) in STATES.items():
        page.goto(f"{scenes.url}{query}")
        page.wait_for_selector("#results li, #results .message")
        act(page)
        found += [f"{name}: {each}" for each in violations(page)]
    assert found == []


@pytest.mark.parametrize(
    "query",
    ["", f"?q={quote(SENTENCE)}", f"?q={quote(SENTENCE)}&find=text"],
)
def test_nothing_moves_while_it_loads(visit: Any, server: str, query: str):
    page = visit("about:blank")
    page.add_init_script(SHIFTS)
    page.goto(f"{server}{query}")
    if query:
        settle(page)
        page.wait_for_function(
            "() => [...document.images].slice(0, 12).every((image) => image.complete)",
        )
    page.wait_for_timeout(300)
    assert page.evaluate("window.shifted") < SHIFT
    page.fill("#q", "something blue")
    settle(page)
    page.wait_for_timeout(300)
    assert page.evaluate("window.shifted") < SHIFT


def test_a_first_visit_is_small(visit: Any, server: str):
    page = visit(server)
    page.wait_for_selector("#results[data-shows=library]")
    page.wait_for_load_state("networkidle")
    sent = page.evaluate(
        "() => [...performance.getEntriesByType('navigation'), "
        "...performance.getEntriesByType('resource')]"
        ".map((entry) => [entry.name, entry.transferSize])",
    )
    sent = [(name, size) for name, size in sent if "/api/thumb/" not in name]
    assert all(name.startswith(server) for name, _ in sent)
    assert len(sent) <= REQUESTS
    assert sum(size for _, size in sent) < BYTES


@pytest.mark.parametrize(
    "query",
    ["", "?q=red", "?q=red&find=text", "?q=red&open=001.png"],
)
def test_a_narrow_screen_scrolls_one_way(
    visit: Any,
    server: str,
    query: str,
):
    page = visit(f"{server}{query}", phone=True)
    if "open" in query:
        unfold(page)
        assert (
            page.locator(".why-body").evaluate("body => body.scrollWidth - body.clientWidth") <= 0
        )
    elif query:
        settle(page)
        page.get_by_role("button", name="Search settings").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
