"""Facets of the JSON interface."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from boc.search.searcher import Searcher
from boc.types import FOR_PROGRAMS, Item
from tests.helpers import run

pytest.importorskip("fastapi", reason="the page needs the extra web")

from fastapi.testclient import TestClient

from boc.inputs.metadata import holds, parse_filter
from boc.web.facets import facets
from boc.web.live_index import LibrarySnapshot
from tests.boc.web.test_api import TEXT


@pytest.fixture(scope="module")
def searcher(library: Path, tmp_path_factory) -> Searcher:
    """An index with a keyword, a number, a date, a measure, and a field without values."""
    home = tmp_path_factory.mktemp("facets")
    cameras = ("=odd", "canon|best", "pixel")
    lines = [
        f"{i:03d}.png,{cameras[i % 3]},{2000 + i % 2},{2020 + i % 4}-"
        f"05-{1 + i % 28:02d},{1000 + i},"
        for i in range(40)
    ]
    header = "id,camera,year:integer,taken:date,bytes:integer,lens"
    (home / "fields.csv").write_text(
        f"{header}\n" + "\n".join(lines) + "\n",
        encoding="utf-8",
    )
    at = f"file:{home / 'index'}"
    run(
        f"index photos {library}/photos.h5 --at {at} --metadata {home}/fields.csv",
    )
    return Searcher.open("photos", at, device="cpu")


def test_info_fields_and_facets(client: TestClient, searcher: Searcher):
    answer = client.get("/api/info").json()
    held = {name for item in searcher.index.items() for name in item.fields}
    types = searcher.index.manifest.fields
    assert {"lens", "gps_latitude"} <= types.keys() - held
    assert answer["fields"] == {
        name: kind for name, kind in types.items() if kind == "text" or name in held - FOR_PROGRAMS
    }
    assert (
        {"camera", "year", "taken"}
        <= set(answer["facets"])
        <= set(answer["fields"]) - {"bytes", "name", "ocr"}
    )
    counted = client.get(
        "/api/facets",
        params={"q": TEXT},
    ).json()["facets"]
    divided = {facet["field"] for facet in counted if len(facet["values"]) > 1}
    assert divided == set(answer["facets"])


def test_facets_of_a_library(client: TestClient, searcher: Searcher):
    for filters in ([], ["year=2001"]):
        found = client.get("/api/facets", params={"filter": filters}).json()
        shown = client.get("/api/library", params={"filter": filters, "k": 100}).json()["hits"]
        assert found["hits"] == len(shown) > 0
        year = next(facet for facet in found["facets"] if facet["field"] == "year")
        held = Counter(hit["fields"]["year"] for hit in shown)
        assert {int(each["value"]): each["count"] for each in year["values"]} == held


@pytest.mark.parametrize("size", [1, 7, 100])
def test_pages_of_a_library_are_its_pictures_in_order(client: TestClient, size: int):
    answer = client.get("/api/library", params={"k": 100}).json()
    pages = [
        client.get("/api/library", params={"skip": skip, "k": size}).json()["hits"]
        for skip in range(0, answer["pictures"], size)
    ]
    assert [hit for page in pages for hit in page] == answer["hits"]
    assert len(answer["hits"]) == answer["pictures"] > 1


def test_the_filter_of_a_facet_finds_a_value_with_a_bar(searcher: Searcher) -> None:
    item = Item("x", "image", "x", fields={"camera": "a|b"})
    (facet,) = facets(LibrarySnapshot(searcher), [item])["facets"]
    assert facet["values"][0]["filters"] == [r"camera=a\|b"]


class Emptied(dict[Any, Any]):
    """Kept orders that another thread empties at once, as it does for filters of its own."""

    def __setitem__(self, *_: Any) -> None:
        self.clear()


def test_an_order_is_answered_though_it_is_no_longer_kept(searcher: Searcher) -> None:
    snapshot = LibrarySnapshot(searcher)
    order = snapshot.by_date()
    snapshot.orders = Emptied()
    assert snapshot.by_date() == order


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"filter": ["year=2001"]},
        {"hybrid": "rrf"},
    ],
)
def test_facet_counts(client: TestClient, searcher: Searcher, more: dict[str, Any]):
    answer = client.get(
        "/api/facets",
        params={"q": TEXT, **more},
    )
    found = answer.json()
    sure = client.get(
        "/api/search",
        params={"q": TEXT, "k": 100, **more},
    ).json()["hits"]
    assert found["hits"] == len(sure)
    assert {"camera", "year", "taken"} <= {facet["field"] for facet in found["facets"]}
    for facet in found["facets"]:
        assert facet["values"]
        for value in facet["values"]:
            filters = [
                parse_filter(
                    each,
                    searcher.index.manifest.fields,
                )
                for each in value["filters"]
            ]
            assert value["count"] == sum(
                all(holds(one, hit["fields"]) for one in filters) for hit in sure
            )
    camera = next(facet for facet in found["facets"] if facet["field"] == "camera")
    held = [hit["fields"]["camera"] for hit in sure]
    cameras = Counter(one for each in held for one in ([each] if isinstance(each, str) else each))
    assert {value["value"]: value["count"] for value in camera["values"]} == cameras


def test_facets_of_a_picture_are_those_of_its_hits(
    client: TestClient,
    searcher: Searcher,
    library: Path,
):
    data = (library / "images" / "005.png").read_bytes()
    answer = client.post(
        "/api/facets",
        files={"image": ("any.png", data)},
        params={"filter": "year=2001"},
    )
    found = answer.json()
    hits = client.post(
        "/api/search",
        files={"image": ("any.png", data)},
        params={"k": 100, "filter": "year=2001"},
    ).json()
    sure = hits["hits"]
    assert found["hits"] == len(sure)
    years = next(facet for facet in found["facets"] if facet["field"] == "year")
    assert [(value["value"], value["count"]) for value in years["values"]] == [("2001", len(sure))]
    assert (
        client.post(
            "/api/facets",
            files={"image": ("any.png", b"no picture")},
        ).status_code
        == 415
    )
