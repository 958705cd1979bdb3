"""The page as people use it: typing, pictures, keys, knobs, and addresses."""

import base64
import io
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from PIL import Image

from tests.browser.pages import ids, query_of, settle, settle_after, unfold

pytestmark = pytest.mark.slow
SENTENCE = "a red box at the left"


def test_results_follow_the_typing(visit: Any, server: str):
    page = visit(server)
    page.wait_for_selector("#results[data-shows=library]")
    page.keyboard.type("a red box")  # the box has the focus
    first = settle(page)
    page.wait_for_url("**/?q=a+red+box")
    settle_after(
        page,
        "bottom",
        lambda: page.keyboard.type(" at the bottom"),
    )
    page.wait_for_url("**/?q=a+red+box+at+the+bottom")
    page.wait_for_function(
        f"() => !{first!r}.every((id, i) => "
        "document.querySelectorAll('a.open')[i].href.includes(id))",
    )
    assert sorted(ids(page)) == sorted(first)  # all 40 fit one answer
    assert page.locator("#meter").inner_text().startswith("40 pictures")
    page.wait_for_function("() => document.querySelector('#status').textContent === '40 pictures'")


def test_late_answer_is_dropped(visit: Any, server: str):
    page = visit(server)
    kept = []
    page.wait_for_selector("#results[data-shows=library]:not([aria-busy])")
    page.route("**/api/search?*q=slow*", lambda route: kept.append(route))
    page.fill("#q", "slow")
    page.wait_for_function("() => document.querySelector('#results').classList.contains('stale')")
    page.fill("#q", SENTENCE)
    shown = settle(page)
    for route in kept:
        route.fulfill(
            json={
                "hits": [],
                "find": "image",
                "more": False,
            },
        )
    page.wait_for_timeout(100)
    assert kept
    assert ids(page) == shown
    assert not page.locator("#results.stale").count()


def test_stale_results_stay(visit: Any, server: str):
    page = visit(f"{server}?q={quote(SENTENCE)}")
    before = settle(page)
    page.route("**/api/search?*green*", lambda route: None)
    page.fill("#q", "something green")
    page.wait_for_selector("#results.stale")
    assert ids(page) == before


def picture_file(library: Path) -> str:
    return base64.b64encode((library / "images" / "007.png").read_bytes()).decode()


TRANSFER = """([selector, type, data]) => {
  const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0));
  const transfer = new DataTransfer();
  transfer.items.add(new File([bytes], "mine.png", { type: "image/png" }));
  const target = document.querySelector(selector);
  const options = { bubbles: true, cancelable: true };
  Object.assign(options, { dataTransfer: transfer, clipboardData: transfer });
  const names = type === "drop" ? ["dragenter", "dragover", "drop"] : [];
  for (const name of names) target.dispatchEvent(new DragEvent(name, options));
  if (type === "paste") target.dispatchEvent(new ClipboardEvent("paste", options));
}"""


@pytest.mark.parametrize("way", ["drop", "paste"])
def test_a_picture_finds_itself_first(
    visit: Any,
    server: str,
    library: Path,
    way: str,
):
    page = visit(f"{server}?q={quote(SENTENCE)}")
    settle(page)
    arguments = [
        "#q" if way == "paste" else "#results",
        way,
        picture_file(library),
    ]
    shown = settle_after(
        page,
        "/api/search",
        lambda: page.evaluate(TRANSFER, arguments),
    )
    assert shown[0] == "007.png"
    assert page.locator("#asked-by").inner_text() == "mine.png"
    assert page.input_value("#q") == ""
    assert "q" not in query_of(page)
    page.reload()
    assert settle(page)[0] == "007.png"
    page.go_back()
    settle(page)
    assert page.input_value("#q") == SENTENCE


def test_what_is_no_picture_is_refused_with_a_message(
    visit: Any,
    server: str,
):
    page = visit(server)
    page.wait_for_selector("#results[data-shows=library]")
    page.set_input_files(
        "#file",
        {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"no picture"},
    )
    page.wait_for_selector("#notice >> text=notes.txt is not a picture")


def test_a_large_picture_is_sent_smaller(visit: Any, server: str):
    page = visit(server)
    noise = io.BytesIO()
    Image.effect_noise((2600, 1800), 90).save(
        noise,
        "PNG",
    )
    assert len(noise.getvalue()) > 4e6
    with page.expect_request(lambda request: request.method == "POST") as sent:
        page.set_input_files(
            "#file",
            {
                "name": "large.png",
                "mimeType": "image/png",
                "buffer": noise.getvalue(),
            },
        )
    assert len(sent.value.post_data_buffer or b"") < 4e6
    settle(page)


def test_sentences_are_listed_with_their_picture(visit: Any, server: str):
    page = visit(f"{server}?q={quote(SENTENCE)}")
    settle(page)
    settle_after(
        page,
        "find=text",
        lambda: page.get_by_label("Sentences", exact=True).check(),
    )
    assert page.locator("li.sentence-hit .sentence").first.inner_text()
    assert page.locator("li.sentence-hit img").first.is_visible()
    assert query_of(page)["find"] == ["text"]
    first = settle(page)
    page.locator("a.open").first.focus()
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.href").endswith(
        quote(first[1], safe="").replace(
            "%20",
            "+",
        ),
    )


def test_everything_can_be_done_by_keys(visit: Any, server: str):
    page = visit(server)
    focused = "() => [...document.querySelectorAll('a.open')].indexOf(document.activeElement)"
    page.keyboard.press("Tab")
    page.keyboard.press("/")
    page.keyboard.type(SENTENCE)
    page.keyboard.press("Enter")
    settle(page)
    page.keyboard.press("ArrowDown")
    assert page.evaluate(focused) == 0
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    below = page.evaluate(focused)
    x = "(i) => document.querySelectorAll('li.hit')[i].getBoundingClientRect()"
    one = page.evaluate(x, 1)
    other = page.evaluate(x, below)
    assert other["top"] > one["top"]
    assert abs(other["x"] - one["x"]) < one["width"]
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowLeft")
    assert page.evaluate(focused) == 0
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    assert page.locator("#results a.open[tabindex='0']").count() == 1
    page.keyboard.press("Enter")
    unfold(page)
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("text=2 of 40")
    page.keyboard.press("Escape")
    page.wait_for_function("() => !document.querySelector('dialog').open")
    assert page.evaluate(focused) == 1
    ids_after = settle_after(
        page,
        "like=",
        lambda: page.keyboard.press("m"),
    )
    assert len(ids_after) == 39
    assert page.evaluate(focused) == 0
    page.keyboard.press("ArrowUp")
    assert page.evaluate("document.activeElement.id") == "q"
    page.keyboard.press("Escape")
    page.wait_for_selector("#results[data-shows=library]")


def test_an_address_holds_the_whole_state(visit: Any, server: str):
    page = visit(f"{server}?k=10")
    page.fill("#q", SENTENCE)
    settle(page)
    page.get_by_role("button", name="Search settings").click()
    settle_after(
        page,
        "hybrid=rrf",
        lambda: page.get_by_label("Yes", exact=True).check(),
    )
    page.locator("a.open").nth(2).click()
    unfold(page)
    state = query_of(page)
    assert state.keys() == {"q", "k", "hybrid", "open"}
    assert state["k"] == ["10"]
    title = page.locator("dialog .figures").inner_text()
    shown = ids(page)
    page.reload()
    unfold(page)
    assert (
        page.locator("dialog .figures").inner_text(),
        ids(page)[:10],
    ) == (title, shown[:10])
    assert page.get_by_label("Yes", exact=True).is_checked()
    page.keyboard.press("Escape")
    page.wait_for_function("() => !document.querySelector('dialog').open")
    assert "open" not in query_of(page)


def test_typing_is_one_step_of_the_history(visit: Any, server: str):
    page = visit(server)
    page.fill("#q", "a red")
    settle(page)
    page.fill("#q", SENTENCE)
    page.wait_for_url("**left")
    page.go_back()
    page.wait_for_selector("#results[data-shows=library]")
    page.go_forward()
    settle(page)
    assert page.input_value("#q") == SENTENCE


def test_more_hits_come_by_scrolling_and_none_twice(visit: Any, server: str):
    page = visit(f"{server}?q={quote(SENTENCE)}&find=text&k=20")
    assert len(settle(page)) >= 20
    for _ in range(20):
        page.mouse.wheel(0, 4000)
        page.wait_for_timeout(60)
        if len(ids(page)) == 80:
            break
    found = ids(page)
    assert len(found) == len(set(found)) == 80
    assert page.locator("#meter").inner_text().startswith("80 sentences")
