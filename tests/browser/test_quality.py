"""Figures of the page: accessibility, layout shift, bytes, width."""

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest

from tests.browser.pages import settle, unfold, word

pytestmark = pytest.mark.slow
SENTENCE = "a red box at the left"
SHIFT = 0.02  # a tenth is what the web calls good
REQUESTS, BYTES = 25, 60_000  # of a first visit: page, style, scripts, icon and what the index holds
SHIFTS = """
window.shifted = 0;
new PerformanceObserver((list) => { for (const entry of list.getEntries()) window.shifted += entry.value; })
  .observe({ type: "layout-shift", buffered: true });
"""


def serious(page: Any) -> list[str]:
    """What axe finds that keeps people out."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    return [
        f"{each['id']}: {node['html'][:160]} {node['failureSummary']}"
        for each in found
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("phone", [False, True], ids=["wide", "phone"])
def test_accessibility(visit: Callable[..., Any], server: str, dark: bool, phone: bool) -> None:
    pytest.importorskip("axe_playwright_python")
    page = visit(server, dark=dark, phone=phone)
    page.wait_for_selector("#results[data-shows=library]")
    found = serious(page)
    page.fill("#q", SENTENCE)
    settle(page)
    page.get_by_role("button", name="Settings of the search").click()
    page.get_by_label("Add scores").check()
    page.wait_for_timeout(100)
    settle(page)
    found += serious(page)
    page.get_by_label("No", exact=True).check()
    page.get_by_label("Sentences", exact=True).check()
    page.wait_for_selector(".sentence-hit")
    settle(page)
    found += serious(page)
    page.get_by_label("Pictures", exact=True).check()
    page.wait_for_selector("li.hit")
    settle(page)
    page.locator("a.open").first.click()
    unfold(page)
    for summary in page.locator("dialog .reasons summary").all():
        summary.click()
    found += serious(page)
    word(page, "red").click()
    assert found + serious(page) == []


@pytest.mark.parametrize("query", ["", f"?q={quote(SENTENCE)}", f"?q={quote(SENTENCE)}&find=text"])
def test_nothing_moves_while_it_loads(visit: Callable[..., Any], server: str, query: str) -> None:
    page = visit("about:blank")
    page.add_init_script(SHIFTS)
    page.goto(f"{server}{query}")
    if query:
        settle(page)
        page.wait_for_function("() => [...document.images].slice(0, 12).every((image) => image.complete)")
    page.wait_for_timeout(300)
    assert page.evaluate("window.shifted") < SHIFT
    page.fill("#q", "something blue")
    settle(page)
    page.wait_for_timeout(300)
    assert page.evaluate("window.shifted") < SHIFT


def test_a_first_visit_is_small(visit: Callable[..., Any], server: str) -> None:
    page = visit(server)
    page.wait_for_selector("#results[data-shows=library]")
    page.wait_for_load_state("networkidle")
    sent = page.evaluate(
        "() => [...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]"
        ".map((entry) => [entry.name, entry.transferSize])"
    )
    sent = [(name, size) for name, size in sent if "/api/thumb/" not in name]
    assert all(name.startswith(server) for name, _ in sent)
    assert len(sent) <= REQUESTS
    assert sum(size for _, size in sent) < BYTES


@pytest.mark.parametrize("query", ["", "?q=red", "?q=red&find=text", "?q=red&open=001.png"])
def test_a_narrow_screen_scrolls_one_way(visit: Callable[..., Any], server: str, query: str) -> None:
    page = visit(f"{server}{query}", phone=True)
    if "open" in query:
        unfold(page)
        assert page.locator(".why-body").evaluate("body => body.scrollWidth - body.clientWidth") <= 0
    elif query:
        settle(page)
        page.get_by_role("button", name="Settings of the search").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
