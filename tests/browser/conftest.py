"""A browser, servers of tiny indexes, and pages that must not complain."""

import csv
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from demo.scene import draw_gallery
from tests.browser.pages import SECRET, TAG, serving
from tests.helpers import run

pytest.importorskip("fastapi", reason="the page needs the extra web")
sync_api = pytest.importorskip("playwright.sync_api", reason="browser tests need playwright")

YEAR = 2020  # of the first scene
WIDE = {"width": 1280, "height": 800}
PHONE = {"width": 360, "height": 740}


def chromium() -> str | None:
    """The path of a browser: BOC_CHROMIUM, or what the system has."""
    return os.environ.get("BOC_CHROMIUM") or next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
        None,
    )


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    path = chromium()
    if path is None:
        pytest.skip(
            "no chromium, chromium-browser or google-chrome; install one, or name it with "
            "BOC_CHROMIUM",
        )
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(
            executable_path=path,
            args=["--no-sandbox"],
        )
        yield found
        found.close()


@pytest.fixture(scope="session")
def server(library: Path, tmp_path_factory) -> Iterator[str]:
    """The address of a server of the index ``photos`` of ``library``."""
    with serving(
        "photos",
        library,
        tmp_path_factory.mktemp("served") / "cache",
    ) as process:
        yield process.url


@pytest.fixture(scope="session")
def odd(library: Path, tmp_path_factory) -> Path:
    """A home of the index ``odd``: file names, captions and fields hold HTML, the pictures have
    many shapes, and one of them cannot be read any more."""
    home = tmp_path_factory.mktemp("odd")
    (home / "images").mkdir()
    colours = (
        "a red box",
        "green at the top",
        "something blue",
        "a yellow box left",
        "purple",
        "the bottom",
    )
    shapes = (
        (64, 64),
        (160, 60),
        (60, 160),
        (90, 60),
        (60, 90),
        (120, 80),
    )
    names = [f"{i} <b>bold & <i>{i}.png" for i in range(len(shapes))]
    with (home / "captions.csv").open(
        "w",
        newline="",
        encoding="utf-8",
    ) as handle:
        rows = csv.writer(handle)
        rows.writerow(["image", "caption"])
        for i, (name, size) in enumerate(zip(names, shapes, strict=True)):
            Image.new(
                "RGB",
                size,
                (40 * i, 90, 200 - 20 * i),
            ).save(home / "images" / name)
            rows.writerow([name, f"{colours[i]} {TAG}"])
    with (home / "fields.csv").open(
        "w",
        newline="",
        encoding="utf-8",
    ) as handle:
        rows = csv.writer(handle)
        rows.writerow(["id", "maker", "year:integer", "lens", "taken:date"])
        rows.writerows([name, TAG, 2015 + i, "", ""] for i, name in enumerate(names))
    at = f"file:{home / 'index'}"
    run(
        f"extract {home}/captions.csv -o {home}/odd.h5 --encoder tern:{library}/model",
    )
    run(
        f"index odd {home}/odd.h5 --at {at} --metadata {home}/fields.csv",
    )
    (home / "images" / names[5]).write_bytes(b"not a picture any more")
    return home


@pytest.fixture(scope="session")
def odd_server(odd: Path, tmp_path_factory) -> Iterator[str]:
    """The address of a server of ``odd`` that asks for the token ``SECRET``."""
    with serving(
        "odd",
        odd,
        tmp_path_factory.mktemp("served-odd") / "cache",
        token=SECRET,
    ) as process:
        yield process.url


@pytest.fixture(scope="session")
def scenes(tmp_path_factory) -> Iterator[Any]:
    """A server of 60 painted scenes, taken in four years: has ``url`` and ``photos``."""
    home = tmp_path_factory.mktemp("scenes")
    names = [f"{i:05}.jpg" for i in range(60)]
    for _ in draw_gallery(
        home / "photos",
        len(names),
        2,
    ):
        pass
    with (home / "dates.csv").open(
        "w",
        newline="",
        encoding="utf-8",
    ) as handle:
        rows = csv.writer(handle)
        rows.writerow(["id", "taken:date", "trip"])
        rows.writerows(
            (name, f"{YEAR + i % 4}-0{1 + i % 9}-11", ["Alps", "Coast"][i % 2])
            for i, name in enumerate(names)
        )
    at = ("--at", f"file:{home / 'index'}")
    run(
        f"extract {home}/photos/captions.csv -o {home}/photos.h5 --encoder teran:demo/model",
    )
    run(
        f"index scenes {home}/photos.h5 --rerank mrsw --metadata {home}/dates.csv",
        *at,
    )
    with serving("scenes", home, home / "cache") as process:
        process.photos = home / "photos" / "images"
        yield process


@pytest.fixture
def servers() -> Iterator[ExitStack]:
    """Where a test enters the servers it starts. They stop after the pages of ``visit`` are closed:
    a page that still loads would complain of a server that goes away."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def visit(browser: Any, servers: ExitStack) -> Iterator[Callable[..., Any]]:
    """``visit(url, **options)`` opens a page in a context of its own. No page may complain in its
    console, but of what ``expected`` names."""
    contexts = []
    complaints = []

    def opened(
        url,
        *,
        expected=None,
        dark=False,
        phone=False,
    ):
        context = browser.new_context(
            viewport=PHONE if phone else WIDE,
            has_touch=phone,
            is_mobile=phone,
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
        )
        contexts.append(context)
        context.set_default_timeout(30_000)
        page = context.new_page()

        def complain(text):
            if expected is None or expected not in text:
                complaints.append(text)

        page.on(
            "console",
            lambda said: complain(said.text) if said.type in ("error", "warning") else None,
        )
        page.on(
            "pageerror",
            lambda error: complain(str(error)),
        )
        page.goto(url)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []
