"""The JSON interface says what the library says."""

import asyncio
import io
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin

import numpy as np
import pytest
from PIL import Image

from boc.explain.score import explain
from boc.manage.build import build_index
from boc.search.queries import Query
from boc.search.searcher import Searcher
from tests.helpers import run
from tests.oracles import pairs_of_hits

pytest.importorskip("fastapi", reason="the page needs the extra web")

from fastapi.testclient import TestClient

from boc.web.app import create_app
from boc.web.http.limits import LoadLimit
from boc.web.serialize import thumb
from boc.web.settings import Settings

TEXT = "a red box at the left"


def client_of(
    searcher: Searcher,
    cache: Path,
    *,
    at: str = "file:nowhere",
    token: str | None = None,
    **options: Any,
) -> TestClient:
    settings = Settings(
        "photos",
        at,
        token=token,
        cache=cache,
        **options,
    )
    return TestClient(
        create_app(searcher, settings),
        base_url="http://127.0.0.1:8000",
        raise_server_exceptions=False,
    )


def fetch(client: TestClient, address: str, **params: Any) -> dict[str, Any]:
    answer = client.get(address, params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_an_index_of_vectors_is_served_without_an_encoder(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", np.eye(9, dtype=np.float32))
    at = f"file:{tmp_path / 'at'}"
    build_index("v", tmp_path / "v.npy", at=at)
    with client_of(Searcher.open("v", at), tmp_path / "cache", at=at) as client:
        assert fetch(client, "/api/words", q="a zzq kite") == {"unknown": []}
        assert client.get("/api/search", params={"q": "kite"}).status_code == 400


def pairs_of_json(hits: list[dict[str, Any]]) -> list[tuple[str, float]]:
    return [
        (
            hit["id"],
            pytest.approx(hit["score"], abs=1e-5),
        )
        for hit in hits
    ]


def test_info_says_what_the_index_is(client: TestClient, searcher: Searcher):
    answer = fetch(client, "/api/info")
    manifest = searcher.index.manifest
    assert answer["items"] == {"image": 40, "text": 80}
    assert (answer["name"], answer["encoder"]) == ("photos", manifest.identity.spec)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"k": 3},
        {"k": 7, "rm": 1},
        {"find": "text", "k": 9},
        {"z": 3, "k": 5},
        {"hybrid": "rrf", "find": "text", "k": 6},
    ],
    ids=str,
)
def test_a_search_finds_what_the_library_finds(
    client: TestClient,
    searcher: Searcher,
    options: dict[str, Any],
):
    answer = fetch(
        client,
        "/api/search",
        q=TEXT,
        **options,
    )
    same = {"k": 40, **options}
    wanted = searcher.search(
        TEXT,
        query_z=same.pop("z", None),
        **same,
    )
    assert pairs_of_hits(wanted) == pairs_of_json(answer["hits"])
    assert answer["find"] == options.get("find", "image") == wanted[0].item.modality
    assert answer["more"] is (
        len(wanted) == same["k"] < searcher.index.manifest.items[answer["find"]]
    )


def test_the_name_of_a_file_finds_it(tmp_path: Path, library: Path):
    at = picture_index(tmp_path, library)
    for name in ("IMG_1234.png", "2024.05.01.png"):
        Image.new("RGB", (20, 20), "red").save(tmp_path / "pictures" / name)
    run(f"sync photos {tmp_path}/pictures --at {at} --missing keep")
    client = client_of(Searcher.open("photos", at, device="cpu"), tmp_path / "cache", at=at)
    for name in ("IMG_1234", "IMG_1234.png", "img_1234.PNG"):
        assert [hit["id"] for hit in fetch(client, "/api/search", q=name)["hits"]] == [
            "IMG_1234.png",
        ]
    hits = fetch(client, "/api/search", q="2024.05.01")["hits"]
    assert [hit["id"] for hit in hits] == ["2024.05.01.png"]
    assert len(fetch(client, "/api/search", q="red 1234")["hits"]) > 1


def test_hit_fields(client: TestClient, searcher: Searcher):
    picture = fetch(
        client,
        "/api/search",
        q=TEXT,
        k=1,
    )["hits"][0]
    assert picture["content"] == picture["id"] == picture["group"]
    assert (picture["width"], picture["height"]) == (64, 64)
    assert picture["thumb"] == f"api/thumb/{picture['id']}"
    sentence = fetch(
        client,
        "/api/search",
        q=TEXT,
        k=1,
        find="text",
    )["hits"][0]
    assert sentence["content"] == searcher.index.find([sentence["id"]])[0].content
    assert (sentence["width"], sentence["height"]) == (None, None)
    assert sentence["thumb"] == f"api/thumb/{sentence['group']}"
    assert client.get(sentence["thumb"]).headers["content-type"] == "image/jpeg"


def test_search_by_upload(client: TestClient, searcher: Searcher, library: Path):
    path = library / "images" / "011.png"
    for _ in range(2):  # the second time it is known
        answer = client.post(
            "/api/search?k=5&find=image",
            files={"image": ("../../any name.png", path.read_bytes())},
        )
        assert answer.status_code == 200, answer.text
        assert pairs_of_hits(searcher.search(image=path, k=5)) == pairs_of_json(
            answer.json()["hits"],
        )
        assert answer.json()["hits"][0]["id"] == "011.png"


def test_an_explanation_is_that_of_the_library(client: TestClient, searcher: Searcher):
    id = searcher.search(TEXT, k=1, rm=1, query_z=5)[0].id
    answer = fetch(client, f"/api/explain/{id}", q=TEXT)
    wanted = explain(searcher, id, TEXT, labelled=3)
    assert answer["score"] == wanted.score > 0
    assert [term["words"] for term in answer["terms"][:3]] == [
        list(match.label.words) for match in wanted.matches[:3] if match.label is not None
    ]
    assert [[e["id"] for e in term["examples"]] for term in answer["terms"][:3]] == [
        [e.id for e in match.label.examples]
        for match in wanted.matches[:3]
        if match.label is not None
    ]
    assert answer["query_parts"]["names"] == TEXT.split()
    assert np.array(answer["item_parts"]["boxes"]) == pytest.approx(
        wanted.item_parts.boxes,
        abs=1e-5,
    )
    assert answer["item_parts"]["weights"] == pytest.approx(wanted.weights, abs=1e-4)
    assert np.array(answer["alignment"]) == pytest.approx(wanted.alignment, abs=1e-4)
    assert (answer["weighed_by"], answer["missing"]) == (wanted.weighed_by, None)


def test_items_and_pictures_are_explained_too(
    client: TestClient,
    searcher: Searcher,
    library: Path,
):
    liked = fetch(client, "/api/explain/012.png", like="007.png")
    item = searcher.index.terms(["012.png"]).astype(np.int64)
    assert (
        liked["score"]
        == (searcher.codec.encode_queries(searcher.embeddings("007.png")) @ item.T).sum()
    )
    assert liked["query_parts"]["boxes"]
    sent = client.post(
        "/api/explain/012.png",
        files={
            "image": (
                "x.png",
                (library / "images" / "007.png").read_bytes(),
            ),
        },
    ).json()
    assert sent["query_parts"]
    assert sent["score"] == pytest.approx(liked["score"], rel=0.01)
    assert client.get("/api/explain/012.png").status_code == 400
    assert (
        client.get(
            "/api/explain/012.png",
            params={"q": TEXT, "like": "007.png"},
        ).status_code
        == 400
    )


def test_captions_of_an_item(client: TestClient):
    answer = fetch(client, "/api/item/003.png")
    assert answer["captions"] == ["a yellow box at the left", "left: something yellow"]
    assert "score" not in answer
    assert fetch(client, "/api/item/003.png%231")["captions"] == [
        "a yellow box at the left",
    ]
    assert answer["words"] == []  # this code has none


def test_words_of_an_item(library: Path, tmp_path: Path):
    words = tmp_path / "words.npz"
    at = f"file:{tmp_path / 'written'}"
    run(
        f"build-codebook {library}/photos.h5 -o {words} --kind words --clusters 7",
    )
    run(
        f"index written {library}/photos.h5 --code",
        f"words(codebook={words})",
        "--at",
        at,
    )
    searcher = Searcher.open("written", at, device="cpu")
    terms = searcher.index.terms(["003.png"])
    known = {
        searcher.codec.words[term]: n
        for term, n in zip(
            terms.indices.tolist(),
            terms.data.tolist(),
            strict=True,
        )
    }
    with client_of(searcher, tmp_path) as client:
        answer = fetch(client, "/api/item/003.png")["words"]
        assert {entry["word"]: entry["frequency"] for entry in answer} == known != {}
        assert [entry["frequency"] for entry in answer] == sorted(known.values(), reverse=True)
        assert (
            fetch(
                client,
                "/api/item/003.png%231",
            )["words"]
            == []
        )


@pytest.mark.parametrize(
    "address",
    ["/api/item/", "/api/thumb/", "/api/explain/"],
    ids=lambda a: a.split("/")[2],
)
def test_an_unknown_id_is_named(client: TestClient, address: str):
    answer = client.get(
        f"{address}strange%20one",
        params={"q": TEXT} if "explain" in address else {},
    )
    assert answer.status_code == 404
    assert "'strange one'" in answer.json()["error"]


@pytest.mark.parametrize(
    "side",
    [240, 480, 960],
)
def test_thumbnails_are_small_jpegs_kept_on_disk(
    client: TestClient,
    tmp_path: Path,
    side: int,
):
    first = client.get(f"/api/thumb/005.png?side={side}")
    assert first.headers["content-type"] == "image/jpeg"
    assert Image.open(io.BytesIO(first.content)).size == (64, 64)
    kept = list(tmp_path.glob("*/*.jpg"))
    assert [path.read_bytes() for path in kept] == [first.content]
    assert first.headers["cache-control"] == "private, no-cache"
    again = client.get(
        f"/api/thumb/005.png?side={side}",
        headers={"If-None-Match": first.headers["etag"]},
    )
    assert (again.status_code, again.content) == (304, b"")
    kept[0].write_bytes(b"from the disk")
    assert client.get(f"/api/thumb/005.png?side={side}").content == b"from the disk"


def picture_index(folder: Path, library: Path) -> str:
    """An index over pictures of many shapes, one of them damaged and one gone after indexing."""
    images = folder / "pictures" / "in a folder"
    images.mkdir(parents=True)
    for name, size in (
        ("wide.png", (900, 300)),
        ("tall.png", (90, 300)),
        ("gone.png", (50, 50)),
        ("bad.png", (9, 9)),
    ):
        Image.new("RGB", size, "orange").save(images / name)
    turned = Image.new("RGB", (400, 200), "teal")
    exif = turned.getexif()
    exif[0x0112] = 6
    turned.save(images / "turned.jpg", exif=exif)
    at = f"file:{folder / 'index'}"
    run(
        f"index photos {folder}/pictures --encoder tern:{library}/model --at {at}",
    )
    (images / "gone.png").unlink()
    (images / "bad.png").write_bytes(b"\x89PNG\r\n\x1a\n damaged")
    return at


@pytest.mark.slow
def test_thumbnails_of_odd_pictures(tmp_path: Path, library: Path):
    at = picture_index(tmp_path, library)
    client = client_of(Searcher.open("photos", at, device="cpu"), tmp_path / "cache", at=at)
    found = {
        h["content"]: h
        for h in fetch(
            client,
            "/api/search",
            q="red",
        )["hits"]
    }
    for name, size, small in (
        ("wide.png", (900, 300), (480, 160)),
        ("tall.png", (90, 300), (90, 300)),
        ("turned.jpg", (200, 400), (200, 400)),
    ):
        hit = found[name]
        assert hit["id"] == f"in a folder/{name}"
        assert (hit["width"], hit["height"]) == size
        assert Image.open(io.BytesIO(client.get(f"{hit['thumb']}?side=480").content)).size == small
    for name, side in (("gone.png", 50), ("bad.png", 9)):
        assert (
            found[name]["width"],
            found[name]["height"],
        ) == (side, side)  # as it was indexed
        answer = client.get(found[name]["thumb"])
        assert answer.status_code == 404
        assert name in answer.json()["error"]
        assert str(tmp_path) not in answer.text
        why = client.get(
            f"/api/explain/{found[name]['id']}",
            params={"q": "red"},
        ).json()
        assert name in why["missing"]
        assert str(tmp_path) not in why["missing"]
        assert why["terms"]


def test_terms_of_a_changed_item(
    searcher: Searcher,
    library: Path,
    tmp_path: Path,
    monkeypatch,
):
    """The picture is another by now, and would be encoded as other terms."""
    other = searcher.index.find(["001.png"])[0]
    find = searcher.index.find
    monkeypatch.setattr(
        searcher.index,
        "find",
        lambda ids: [replace(item, content=other.content) for item in find(ids)],
    )
    answer = fetch(
        client_of(searcher, tmp_path),
        "/api/explain/012.png",
        q=TEXT,
    )
    stored, others = (searcher.index.terms([id]).toarray()[0] for id in ("012.png", "001.png"))
    assert all(term["item"] == stored[term["term"]] for term in answer["terms"])
    assert any(term["item"] != others[term["term"]] for term in answer["terms"])


def test_addresses_of_the_page(client: TestClient):
    for linked in re.findall('(?:href|src)="([^"#]+)"', client.get("/").text):
        assert client.get(linked).status_code == 200, linked


def test_the_cache_keeps_within_its_room(searcher: Searcher, tmp_path: Path):
    client = client_of(searcher, tmp_path, cache_bytes=20_000)
    for i in range(40):
        assert client.get(f"/api/thumb/{i:03d}.png").status_code == 200
        assert sum(path.stat().st_size for path in tmp_path.glob("*/*")) <= 20_000
    assert list(tmp_path.glob("*/*.jpg"))
    assert not list(tmp_path.glob("*/*.tmp"))


def test_thumbnails_without_cache(searcher: Searcher, tmp_path: Path):
    (tmp_path / "file").write_text("in the way")
    client = client_of(searcher, tmp_path / "file" / "cache")
    assert client.get("/api/thumb/001.png").headers["content-type"] == "image/jpeg"


@pytest.mark.slow
def test_index_replaced_while_serving(library: Path, tmp_path: Path):
    at = f"file:{tmp_path / 'index'}"

    def edit(command, *more):
        run(command, "photos", *more, "--at", at)

    edit("index", library / "photos.h5")
    client = client_of(
        Searcher.open("photos", at, device="cpu"),
        tmp_path / "cache",
        at=at,
        look_every=0.0,
    )

    def pictures():
        answer = client.get("/api/info")
        info = answer.json()
        assert answer.status_code == (503 if "error" in info else 200)
        return info.get("error") or info["items"]["image"]

    def wait_for(wanted):
        while not wanted(pictures()):
            time.sleep(0.05)

    assert pictures() == 40
    edit("delete", *(f"{i:03d}.png" for i in range(30)))
    wait_for(lambda found: found == 10)
    assert (
        len(
            fetch(
                client,
                "/api/search",
                q=TEXT,
            )["hits"],
        )
        == 10
    )
    edit("delete", "--all")
    wait_for(lambda found: "no index 'photos'" in str(found))
    assert (
        client.get(
            "/api/search",
            params={"q": TEXT},
        ).headers["retry-after"]
        == "1"
    )
    assert client.get("/openapi.json").status_code == 200
    edit("index", library / "photos.h5")
    wait_for(lambda found: found == 40)
    assert (
        len(
            fetch(
                client,
                "/api/search",
                q=TEXT,
            )["hits"],
        )
        == 40
    )


@pytest.mark.parametrize(
    "path",
    ["/", "/docs", "/api/info", "/api/search?q=red", "/api/thumb/005.png", "/api/none", "/x"],
)
def test_head_says_what_get_does_without_a_body(client: TestClient, path: str):
    get = client.get(path)
    head = client.head(path)
    assert head.status_code == get.status_code
    assert head.content == b""
    for name in ("content-type", "cache-control", "etag", "x-frame-options"):
        assert head.headers.get(name) == get.headers.get(name)


@pytest.mark.parametrize(
    "id",
    ["./a.png", "../b/a.png", "a.png", "x//a.png", "/a.png", "x/../a.png", "a?b#c%2F.png"],
)
def test_thumbnail_address(id: str):
    address = thumb(id)
    assert urljoin("http://host/root/", address) == f"http://host/root/{address}"
    assert unquote(address) == f"api/thumb/{id}"


def test_thumbnails_of_odd_ids(library: Path, tmp_path: Path):
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv" / "t.csv").write_text(
        "image,caption\n./a.png,red\na.png,blue\n../csv/b.png,green\n",
    )
    for name, colour in (("a", "red"), ("b", "blue")):
        Image.new("RGB", (20, 20), colour).save(tmp_path / "csv" / f"{name}.png")
    at = f"file:{tmp_path / 'index'}"
    run(
        f"index odd {tmp_path}/csv/t.csv --encoder tern:{library}/model --at {at}",
    )
    client = client_of(
        Searcher.open("odd", at, device="cpu"),
        tmp_path / "cache",
        at=at,
    )
    hits = client.get("/api/search?q=red").json()["hits"]
    assert {hit["id"] for hit in hits} == {"./a.png", "a.png", "../csv/b.png"}
    for hit in hits:
        answer = client.get(hit["thumb"])
        assert answer.status_code == 200, hit
        red, _, blue = Image.open(io.BytesIO(answer.content)).getpixel((9, 9))
        assert (blue > red) == ("b.png" in hit["id"])


def test_slow_client(library: Path):
    """The place of a request is free before its answer is sent."""
    settings = Settings("photos", "file:nowhere", active=1, waiting=0)
    order = []

    async def app(scope, receive, send):
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [],
            },
        )
        await send({"type": "http.response.body", "body": b"x"})

    crowd = LoadLimit(app, settings)

    async def ask(name, wait):
        async def send(message):
            if message["type"] == "http.response.start":
                order.append(f"{name} {message['status']}")
                if wait is not None:
                    await wait.wait()

        await crowd(
            {
                "type": "http",
                "path": "/api/info",
                "query_string": b"",
                "method": "GET",
                "headers": [],
            },
            None,
            send,
        )  # type: ignore[arg-type]

    async def both():
        gate = asyncio.Event()
        slow = asyncio.create_task(ask("slow", gate))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await ask("quick", None)
        gate.set()
        await slow

    with ThreadPoolExecutor(1) as pool:  # this thread may have the event loop of a browser
        pool.submit(asyncio.run, both()).result()
    assert sorted(order) == ["quick 200", "slow 200"]


def test_long_searches_never_delay_a_short_search():
    """Any number of long searches occupies other places than a page of hits."""
    gates: dict[str, asyncio.Event] = {}

    async def app(scope, receive, send):
        if scope["query_string"] != b"q=red&k=40":
            await gates["long"].wait()

    async def all_at_once():
        gates["long"] = asyncio.Event()
        crowd = LoadLimit(app, Settings("photos", "file:nowhere", active=1))

        def ask(query: bytes):
            scope = {"type": "http", "path": "/api/search", "query_string": query, "method": "GET"}
            return asyncio.create_task(crowd(scope, None, None))

        long = [ask(query) for query in (b"k=41", b"hybrid=rrf", b"collapse=true", b"k=1000") * 9]
        await asyncio.sleep(0)
        await ask(b"q=red&k=40")
        assert not any(each.done() for each in long)
        gates["long"].set()
        await asyncio.gather(*long)

    with ThreadPoolExecutor(1) as pool:  # this thread may have the event loop of a browser
        pool.submit(asyncio.run, asyncio.wait_for(all_at_once(), 60)).result()


def test_search_of_several_parts(client: TestClient, searcher: Searcher, library: Path):
    asked = {
        "q": f'{TEXT} -green -"a blue box"',
        "like": ["003.png", "004.png"],
        "unlike": "005.png",
    }
    found = fetch(
        client,
        "/api/search",
        k=6,
        **asked,
    )
    minus = ["green", "a blue box"]
    query = Query.of(
        TEXT,
        minus=minus,
        like=["003.png", "004.png"],
        unlike=["005.png"],
    )
    assert pairs_of_json(found["hits"]) == pairs_of_hits(searcher.search_query(query, k=6))
    path = library / "images" / "011.png"
    answer = client.post(
        "/api/search",
        params={"q": TEXT, "k": 5},
        files={"image": ("a.png", path.read_bytes())},
    )
    assert pairs_of_json(answer.json()["hits"]) == pairs_of_hits(
        searcher.search_query(
            Query.of(TEXT, images=[path]),
            k=5,
        ),
    )
