"""Facets, the selection, and questions of several items, on the page."""

from typing import Any
from urllib.parse import parse_qs, quote, urlsplit
from zipfile import ZipFile

import pytest

from tests.browser.pages import SECRET, query_of, settle, settle_after
from tests.browser.test_quality import violations

pytestmark = pytest.mark.slow
SENTENCE = "a red box at the left"


def test_selection_actions(visit: Any, server: str):
    page = visit(f"{server}?q={quote(SENTENCE)}")
    shown = settle(page)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator("a.open").first.focus()
    page.keyboard.press("x")
    page.keyboard.press("ArrowRight")
    page.locator("li.hit").nth(1).get_by_role(
        "button",
        name="Select",
    ).click()
    bar = page.get_by_role("region", name="Selected")
    assert "2 selected" in bar.inner_text()
    bar.get_by_role("button", name="Copy paths").click()
    page.wait_for_function(
        "() => /2 paths copied/.test(document.querySelector('#status').textContent)",
    )
    assert page.evaluate("navigator.clipboard.readText()").split("\n") == shown[:2]
    with page.expect_download() as sent:
        bar.get_by_role("button", name="Save").click()
    assert ZipFile(sent.value.path()).namelist() == shown[:2]
    ids_after = settle_after(
        page,
        "/api/s",
        bar.get_by_role("button", name="More like these").click,
    )
    assert query_of(page)["like"] == shown[:2]
    assert query_of(page)["q"] == [SENTENCE]
    assert not set(ids_after) & set(shown[:2])
    assert bar.is_hidden()
    page.locator("li.hit").first.get_by_role(
        "button",
        name="Select",
    ).click()
    settle_after(
        page,
        "/api/s",
        bar.get_by_role("button", name="Less like these").click,
    )
    assert query_of(page)["unlike"] == ids_after[:1]
    assert "like 2 items, unlike" in page.locator("#asked-by").inner_text()
    page.locator("a.open").first.click()
    page.get_by_role("button", name="Less like this").click()
    page.wait_for_url("**unlike=*&unlike=*")
    page.reload()
    settle(page)
    assert len(query_of(page)["unlike"]) == 2
    page.get_by_role("button", name="Clear the search").click()
    page.wait_for_selector("#results[data-shows=library]")


def test_facets_narrow_the_search(visit: Any, odd_server: str):
    page = visit(f"{odd_server}?token={quote(SECRET)}", expected="404")
    page.fill("#q", "a red box")
    before = settle(page)
    offered = page.locator("details.facet summary").all_text_contents()
    assert "year" in offered
    assert not {"lens", "taken", "camera", "gps_latitude"} & set(offered)
    assert "maker" not in offered  # all have the same one
    page.locator(
        "details.facet",
        has_text="year",
    ).locator("summary").click()
    value = page.locator("details[open] .facet-value").first
    value.wait_for()
    year = value.locator("span").inner_text()
    assert violations(page) == []
    ids_after = settle_after(page, "/api/s", value.click)
    assert query_of(page)["filter"] == [f"year={year}"]
    assert 0 < len(ids_after) < len(before)
    page.wait_for_function("() => document.querySelector('.facet-value[aria-pressed=true]')")
    settle_after(page, "/api/s", page.locator(".facet-value[aria-pressed=true]").click)
    assert "filter" not in query_of(page)
    page.keyboard.press("Escape")
    assert not page.locator("details.facet[open]").count()
    page.locator(
        "details.facet",
        has_text="year",
    ).locator("summary").click()
    page.wait_for_selector("details[open] .facet-value")
    page.locator("#meter").click()
    assert not page.locator("details.facet[open]").count()


def test_hits_are_ordered_by_date_with_the_keyboard(visit: Any, server: str):
    page = visit("about:blank")
    sorts = []

    def described(route: Any) -> None:
        info = route.fetch().json()
        route.fulfill(
            json={
                **info,
                "fields": {**info["fields"], "taken": "date"},
            },
        )

    def dated(route: Any) -> None:
        query = parse_qs(urlsplit(route.request.url).query)
        sorts.append(query.pop("sort", [""])[0])
        answer = route.fetch(
            url=f"{server}api/search?q=red&k={query['k'][0]}",
        ).json()
        for i, hit in enumerate(answer["hits"]):
            hit["fields"]["taken"] = f"20{i % 10}0-01-01T00:00:00"
        if sorts[-1]:
            answer["hits"].sort(
                key=lambda hit: hit["fields"]["taken"],
                reverse=sorts[-1].startswith("-"),
            )
        route.fulfill(json=answer)

    page.route("**/api/info", described)
    page.route("**/api/search?*", dated)
    page.goto(f"{server}?q=red")
    best = settle(page)
    order = page.get_by_label("Sort order")
    assert order.input_value() == ""
    order.focus()
    newest = settle_after(
        page,
        "/api/s",
        lambda: page.keyboard.press("ArrowDown"),
    )
    assert query_of(page)["sort"] == ["-taken"]
    assert newest[:4] == best[9::10]  # the last year first
    assert set(newest) == set(best)
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Sort order"
    assert violations(page) == []
    oldest = settle_after(
        page,
        "/api/s",
        lambda: page.keyboard.press("ArrowDown"),
    )
    assert oldest[:4] == best[::10]
    page.reload()
    assert settle(page) == oldest
    assert order.input_value() == "taken"
    page.go_back()
    page.wait_for_url("**sort=-taken*")
    settle_after(page, "/api/s", lambda: order.select_option(""))
    assert "sort" not in query_of(page)
    assert sorts[:2] == ["", "-taken"]


def test_years_of_dates_narrow_the_search(visit: Any, server: str):
    page = visit("about:blank")
    facet = {
        "field": "taken",
        "values": [
            {
                "value": f"{year}",
                "filters": [f"taken>={year}-01-01", f"taken<{year + 1}-01-01"],
                "count": 3,
            }
            for year in (2021, 2020)
        ],
    }

    def described(route: Any) -> None:
        route.fulfill(
            json={
                **route.fetch().json(),
                "fields": {"taken": "date"},
                "facets": {"taken": ["2021"]},
            },
        )

    page.route("**/api/info", described)
    page.route(
        "**/api/facets?*",
        lambda route: route.fulfill(
            json={"hits": 9, "facets": [facet]},
        ),
    )
    page.route(
        "**/api/search?*filter*",
        lambda route: route.fulfill(json={**EMPTY}),
    )
    page.goto(f"{server}?q=red")
    settle(page)
    page.locator("details.facet summary").click()
    page.locator(".facet-value", has_text="2021").click()
    page.wait_for_url("**filter=taken*")
    assert query_of(page)["filter"] == facet["values"][0]["filters"]


EMPTY = {
    "hits": [],
    "find": "image",
    "more": False,
}


def test_near_duplicates_are_a_setting(visit: Any, server: str):
    page = visit(f"{server}?q=red")
    settle(page)
    page.get_by_role("button", name="Search settings").click()
    settle_after(page, "/api/s", page.get_by_label("Grouped").check)
    assert query_of(page)["collapse"] == ["true"]
    page.reload()
    settle(page)
    assert page.get_by_label("Grouped").is_checked()
