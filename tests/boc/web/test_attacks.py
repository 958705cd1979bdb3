"""What strangers may try: nothing of the disk gets out, nothing takes the server down, every
refusal says why."""

import csv
import io
import json
import re
import struct
import threading
import time
import zlib
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from PIL import Image

from boc.search.searcher import Searcher
from tests.boc.inputs.test_images import png
from tests.boc.web.test_api import TEXT, client_of
from tests.helpers import run

pytest.importorskip("fastapi", reason="the page needs the extra web")

from fastapi import FastAPI
from fastapi.testclient import TestClient

from boc.web.http.auth import HEADERS

SECRET = "correct horse"
UPLOAD = 50_000
TRAVERSALS = [
    "../../../../etc/passwd",
    "..%2f..%2f..%2fetc%2fpasswd",
    "%2e%2e/%2e%2e/etc/passwd",
    "%2fetc%2fpasswd",
    "000.png%00.jpg",
    "000.png%2f..%2f001.png",
    "images/000.png",
    "%ff%fe",
    "a" * 5000,
]


@pytest.fixture(scope="module")
def client(searcher: Searcher, tmp_path_factory) -> TestClient:
    return client_of(
        searcher,
        tmp_path_factory.mktemp("cache"),
        upload=UPLOAD,
        pixels=1_000_000,
    )


@pytest.fixture(scope="module")
def locked(searcher: Searcher, tmp_path_factory) -> TestClient:
    return client_of(searcher, tmp_path_factory.mktemp("cache"), token=SECRET)


def assert_refused(answer: Any, status: int, said: str = "") -> None:
    """An error of this kind: one line of JSON that no browser takes for anything else."""
    assert answer.status_code == status, answer.text[:300]
    assert answer.headers["content-type"] == "application/json"
    for name, value in HEADERS.items():
        assert answer.headers[name] == value
    found = answer.json()
    assert set(found) == {"error"}
    assert "\n" not in found["error"]
    assert re.search(said, found["error"]), found["error"]


def picture(**options: Any) -> bytes:
    buffer = io.BytesIO()
    noise = np.random.default_rng(0).integers(
        0,
        256,
        (40, 40, 3),
        np.uint8,
    )
    Image.fromarray(noise).save(buffer, "PNG", **options)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "route",
    ["thumb", "item", "explain"],
)
def test_ids_are_looked_up_and_never_opened(client: TestClient, route: str) -> None:
    for id in TRAVERSALS:
        answer = client.get(f"/api/{route}/{id}" + ("?q=dog" if route == "explain" else ""))
        assert_refused(answer, 404)
        assert "root:" not in answer.text


def test_static_files_are_those_of_the_page(client: TestClient) -> None:
    for path in (
        "../app.py",
        "..%2fapp.py",
        "%2e%2e/settings.py",
        "/etc/passwd",
        "%2fetc%2fpasswd",
        "",
    ):
        assert_refused(client.get(f"/static/{path}"), 404)


@pytest.mark.slow
@pytest.mark.parametrize("route", ["search", "explain/000.png"])
@pytest.mark.parametrize(
    ("data", "status", "said"),
    [
        (b"", 400, "empty"),
        (b"\0", 415, "not a picture"),
        (
            b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>",
            415,
            "not a picture",
        ),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", 415, "not a picture"),
        (picture()[:100], 400, "cannot be read"),
        (
            png(8, 8, zlib.compress(b"\0" * 3)),
            400,
            "cannot be read",
        ),
        (
            png(3000, 3000, zlib.compress(b"\0" * 1000)),
            413,
            "3000 x 3000 pixels, but the limit is 1,000,000",
        ),
        (
            png(30_000, 30_000, zlib.compress(b"\0" * 1000)),
            413,
            "pixels, but the limit is 1,000,000",
        ),
        (png(0, 0), 415, "not a picture"),
        (picture() + b"\0" * UPLOAD * 2, 413, "limit is 50,000"),
    ],
    ids=lambda value: None if not isinstance(value, bytes) else repr(value[:12]),
)
def test_uploads_wrong_or_too_large(
    client: TestClient,
    route: str,
    data: bytes,
    status: int,
    said: str,
) -> None:
    assert_refused(
        client.post(
            f"/api/{route}",
            files={"image": ("x.png\r\nX-Evil: 1", data, "image/png")},
        ),
        status,
        said,
    )
    assert (
        client.get(
            "/api/search",
            params={"q": TEXT},
        ).status_code
        == 200
    )


def test_a_picture_may_be_as_large_as_the_limits(searcher: Searcher, tmp_path: Path) -> None:
    data = picture()
    height, width, _ = np.asarray(Image.open(io.BytesIO(data))).shape
    for upload in (len(data) - 1, len(data)):
        for pixels in (width * height - 1, width * height):
            client = client_of(searcher, tmp_path, upload=upload, pixels=pixels)
            answer = client.post("/api/search", files={"image": ("x.png", data)})
            allowed = upload == len(data) and pixels == width * height
            assert answer.status_code == (200 if allowed else 413)


def test_decompression_bombs(client: TestClient) -> None:
    rows = zlib.compress(
        b"\0" * (1 + 3 * 60_000) * 100,
        9,
    )
    assert len(rows) < UPLOAD
    assert_refused(
        client.post(
            "/api/search",
            files={"image": ("x.png", png(60_000, 60_000, rows))},
        ),
        413,
        "pixels",
    )
    whole = picture()
    bomb = b"zTXt" + b"a\0\0" + zlib.compress(b"x" * 20_000_000, 9)  # text beside the picture
    chunk = struct.pack(">I", len(bomb) - 4) + bomb + struct.pack(">I", zlib.crc32(bomb))
    assert len(chunk) < UPLOAD
    assert_refused(
        client.post(
            "/api/search",
            files={"image": ("x.png", whole[:33] + chunk + whole[33:])},
        ),
        400,
        "cannot be read",
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    ["application/json", "application/x-www-form-urlencoded", "text/plain", ""],
)
def test_bodies_of_other_kinds_are_refused(client: TestClient, kind: str) -> None:
    assert_refused(
        client.post(
            "/api/search",
            content=b'{"image": "x"}',
            headers={"content-type": kind},
        ),
        415,
        "multipart",
    )


def test_broken_forms_are_refused(client: TestClient) -> None:
    broken = {"content-type": "multipart/form-data; boundary=x"}
    assert_refused(
        client.post("/api/search", content=b"--x\r\nnonsense", headers=broken),
        400,
    )
    assert_refused(
        client.post(
            "/api/search",
            content=b"--x",
            headers={"content-type": "multipart/form-data"},
        ),
        400,
    )
    assert_refused(
        client.post(
            "/api/search",
            files={"other": ("x.png", picture())},
        ),
        400,
        "image",
    )
    assert_refused(
        client.post(
            "/api/search",
            data={"image": "no file"},
            files={"x": b""},
        ),
        400,
        "image",
    )


def test_body_without_length(client: TestClient) -> None:
    sent = 0

    def endless():
        nonlocal sent
        for _ in range(1000):
            sent += 10_000
            yield b"x" * 10_000

    headers = {"content-type": "multipart/form-data; boundary=x"}
    assert_refused(
        client.post(
            "/api/search",
            content=endless(),
            headers=headers,
        ),
        413,
        "50,000",
    )
    wrong = {**headers, "content-length": "99999999999999999999"}
    assert_refused(
        client.post("/api/search", content=b"x", headers=wrong),
        413,
    )


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"q": ""}, "empty"),
        ({}, "no wanted part"),
        ({"q": "-snow"}, "no wanted part, only unwanted parts"),
        ({"q": "x", "weight": "1"}, "^unknown parameter 'weight'"),
        ({"q": "x", "unlike": [""]}, "^unlike"),
        ({"like": ["003.png"] * 65}, "^like: "),
        ({"q": "x" * 1001}, "^the sentence has 1,001 characters; shorten it to 1,000$"),
        *[({"q": "x", "k": k}, "^k: ") for k in ("0", "1001", "nan", "", "9" * 400)],
        *[({"q": "x", "rm": rm}, "^rm: ") for rm in ("nan", "1e309", "0.5", "9999")],
        *[({"q": "x", "z": z}, "^z: ") for z in ("0", "1.5")],
        ({"q": "x", "find": "video"}, "^find: "),
        ({"q": "x", "rerank": "cosine"}, "^rerank: "),
        ({"q": "x", "rerank": "mrsw"}, "no concept sets"),
        ({"q": "x", "hybrid": "both"}, "^hybrid: "),
        ({"q": "x", "filter": "secret=1"}, "no metadata field 'secret'"),
        ({"q": "x", "filter": "nonsense"}, "not a filter"),
        ({"q": "x", "sort": "secret"}, "sorted by 'secret'"),
        ({"q": "x", "filter": ["a=1"] * 17}, "16"),
    ],
)
def test_numbers_and_names_out_of_range_are_refused(
    client: TestClient,
    params: dict[str, Any],
    said: str,
) -> None:
    assert_refused(
        client.get("/api/search", params=params),
        400,
        said,
    )


@pytest.mark.parametrize(
    "q",
    [
        "\0",
        "\ud800".encode("utf-8", "surrogatepass"),
        "💥" * 1000,
        "' OR 1=1",
        "[SEP]" * 200,
    ],
)
def test_odd_sentences(client: TestClient, q: Any) -> None:
    answer = client.get("/api/search", params={"q": q})
    assert answer.status_code in (200, 400)
    assert answer.headers["content-type"] == "application/json"


NASTY = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>\u2028&amp;"


def test_html_in_captions_and_names_stays_text(library: Path, tmp_path: Path) -> None:
    """It goes out as JSON, which browsers are told not to sniff, or is no part of an answer."""
    images = tmp_path / "<b>folder"
    at = f"file:{tmp_path / 'index'}"
    images.mkdir()
    (images / "<i>.png").write_bytes(picture())
    for name, columns, row in (
        ("t.csv", ["image", "caption"], NASTY),
        ("fields.csv", ["id", "tag"], NASTY),
    ):
        with (images / name).open(
            "w",
            newline="",
            encoding="utf-8",
        ) as handle:
            csv.writer(handle).writerows([columns, ["<i>.png", row]])
    run(
        f"index nasty {images}/t.csv --encoder tern:{library}/model --at {at} --metadata "
        f"{images}/fields.csv",
    )
    client = client_of(
        Searcher.open("nasty", at, device="cpu"),
        tmp_path / "cache",
    )
    query = quote(NASTY)
    for address in (
        "/api/item/<i>.png",
        "/api/item/%3Ci%3E.png%230",
        f"/api/search?q={query}",
        "/api/search?q=a",
    ):
        answer = client.get(address)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "<b>folder" not in answer.text
        assert NASTY in json.dumps(
            answer.json(),
            ensure_ascii=False,
        ).replace(
            '\\"',
            '"',
        )
    shown = client.get("/api/item/<i>.png").json()
    assert shown["content"] == "<i>.png"
    assert shown["thumb"] == "api/thumb/%3Ci%3E.png"
    assert client.get(shown["thumb"]).headers["content-type"] == "image/jpeg"
    settings = client.get("/")
    assert "<script>alert" not in settings.text


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "",
        "localhost@evil.example",
        "[::1",
        "localhost:x",
    ],
)
def test_other_names_of_this_machine_are_refused(client: TestClient, host: str) -> None:
    for address in ("/", "/api/info", "/static/app.js"):
        assert_refused(
            client.get(address, headers={"host": host}),
            400,
            "allow-host",
        )


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:1", "127.0.0.1:8000", "[::1]:8000", "LOCALHOST:8000"],
)
def test_this_machine_is_let_in(client: TestClient, host: str) -> None:
    assert (
        client.get(
            "/api/info",
            headers={"host": host},
        ).status_code
        == 200
    )


def test_hosts_that_were_named_are_let_in(searcher: Searcher, tmp_path: Path) -> None:
    client = client_of(
        searcher,
        tmp_path,
        host="0.0.0.0",
        hosts=("pictures.example",),
    )
    for host, status in (
        ("pictures.example", 200),
        ("192.0.2.7:8000", 200),
        ("other.example", 400),
    ):
        assert (
            client.get(
                "/api/info",
                headers={"host": host},
            ).status_code
            == status
        )


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "http://127.0.0.1:9999"},
        {"origin": "null"},
        {"sec-fetch-site": "same-site"},
    ],
    ids=str,
)
def test_pages_of_other_origins_get_nothing(client: TestClient, headers: dict[str, str]) -> None:
    assert_refused(
        client.post("/api/search", files={"image": ("x.png", picture())}, headers=headers),
        403,
    )
    assert_refused(
        client.get(
            "/api/search",
            params={"q": TEXT},
            headers=headers,
        ),
        403,
    )
    assert "access-control-allow-origin" not in client.get("/api/info").headers


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "http://127.0.0.1:8000", "sec-fetch-site": "same-origin"},
        {"sec-fetch-site": "none"},
    ],
)
def test_our_own_page_gets_everything(client: TestClient, headers: dict[str, str]) -> None:
    assert (
        client.post(
            "/api/search",
            files={"image": ("x.png", picture())},
            headers=headers,
        ).status_code
        == 200
    )
    assert (
        client.get(
            "/",
            headers={"sec-fetch-site": "cross-site"},
        ).status_code
        == 200
    )  # a link to it


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": f"Bearer {SECRET[:-1]}"},
        {"authorization": f"Basic {SECRET}"},
        {"authorization": "Bearer pässword".encode()},
        {"cookie": f"boc_8000={SECRET}"},
        {"cookie": "boc_8000=\x01;;;=;"},
    ],
    ids=str,
)
def test_token_is_required(locked: TestClient, headers: dict[str, Any]) -> None:
    for address in (
        "/api/info",
        "/api/thumb/000.png",
        "/api/search?q=x",
        "/openapi.json",
        "/api/nothing",
    ):
        answer = locked.get(address, headers=headers)
        assert_refused(answer, 401, "token")
        assert answer.headers["www-authenticate"] == "Bearer"
    assert_refused(
        locked.post(
            "/api/search",
            files={"image": ("x.png", picture())},
            headers=headers,
        ),
        401,
    )
    assert locked.get("/", headers=headers).status_code == 200


def test_the_token_opens_by_header_and_by_cookie(searcher: Searcher, tmp_path: Path) -> None:
    client = client_of(searcher, tmp_path, token=SECRET)
    assert (
        client.get(
            "/api/info",
            headers={"authorization": f"Bearer {SECRET}"},
        ).status_code
        == 200
    )
    assert_refused(client.get("/?token=wrong"), 401)
    assert not client.cookies
    entered = client.get(
        "/",
        params={"token": SECRET, "q": "a dog & a cat"},
        follow_redirects=False,
    )
    assert entered.status_code == 303
    assert entered.headers["location"] == "./?q=a+dog+%26+a+cat"
    cookie = entered.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert SECRET not in cookie
    assert client.get("/api/info").status_code == 200


def test_a_session_can_be_ended(searcher: Searcher, tmp_path: Path) -> None:
    """For good, in every process of this start, and alone; the page has a button for it."""
    client, other = (
        client_of(
            searcher,
            tmp_path / "cache",
            token=SECRET,
        )
        for _ in range(2)
    )
    process = TestClient(client.app, base_url=client.base_url)
    for each in (client, process):
        assert "api/logout" in each.get("/", params={"token": SECRET}).text
    ticket = dict(client.cookies)
    assert_refused(
        client.post("/api/logout", headers={"origin": "http://evil.example"}),
        403,
    )
    assert client.get("/api/info").status_code == 200
    left = client.post("/api/logout", follow_redirects=False)
    assert (
        left.status_code,
        left.headers["location"],
    ) == (303, "../")
    assert not client.cookies
    client.cookies.update(ticket)
    assert_refused(client.get("/api/info"), 401)
    assert process.get("/api/info").status_code == 200
    assert_refused(other.post("/api/logout"), 401)


def test_ended_session_stays_ended_after_other_logouts(
    searcher: Searcher,
    tmp_path: Path,
) -> None:
    """The marks of ended sessions outlive the logouts of other sessions."""
    first = client_of(searcher, tmp_path, token=SECRET)
    second = TestClient(first.app, base_url=first.base_url)
    tickets = []
    for client in (first, second):
        client.get("/", params={"token": SECRET})
        tickets.append(dict(client.cookies))
        client.post("/api/logout", follow_redirects=False)
    for client, ticket in zip((first, second), tickets, strict=True):
        client.cookies.update(ticket)
        assert_refused(client.get("/api/info"), 401)


def test_a_cookie_opens_one_start_of_one_port_for_a_time(
    searcher: Searcher,
    tmp_path: Path,
    monkeypatch,
) -> None:
    def opened(client, cookie):
        return (
            client.get(
                "/api/info",
                headers={"cookie": cookie},
            ).status_code
            == 200
        )

    client, restarted = (client_of(searcher, tmp_path, token=SECRET) for _ in range(2))
    entered = client.get(
        "/",
        params={"token": SECRET},
        follow_redirects=False,
    )
    cookie = entered.headers["set-cookie"].partition(";")[0]
    name, _, ticket = cookie.partition("=")
    end, number, signature = ticket.split(".")
    client.cookies.clear()
    assert opened(client, cookie)
    assert not opened(restarted, cookie)
    other = TestClient(client.app, base_url="http://127.0.0.1:8001")
    for stranger in (cookie, f"boc_8001={ticket}"):
        assert not opened(other, stranger)
    numbers = (f"{int(end) + 1}.{number}", f"x.{number}", f"{end}.{'0' * 16}", end)
    for forged in (
        "",
        ".",
        end,
        "9" * 99,
        f"{end}.{number}.{signature[:-1]}x",
        *(f"{n}.{signature}" for n in numbers),
    ):
        assert not opened(client, f"{name}={forged}")
    monkeypatch.setattr("boc.web.http.auth.time", lambda: int(end) - 1)
    assert opened(client, cookie)
    monkeypatch.setattr("boc.web.http.auth.time", lambda: int(end))
    assert not opened(client, cookie)


def test_two_lengths_are_refused(client: TestClient) -> None:
    lengths = {"content-length": "3", "transfer-encoding": "chunked"}
    for method in ("POST", "GET"):
        answer = client.request(
            method,
            "/api/search",
            headers=lengths,
            content=b"abc",
        )
        assert_refused(answer, 400, "the request has both Content-Length and Transfer-Encoding")
        assert answer.headers["connection"] == "close"


@pytest.mark.slow
def test_token_below_a_prefix(searcher: Searcher, tmp_path: Path) -> None:
    """As where the page is a part of another application."""
    whole = FastAPI()
    whole.mount(
        "/pictures",
        client_of(searcher, tmp_path, token=SECRET).app,
    )
    client = TestClient(whole, base_url="http://127.0.0.1:8000")
    for address in (
        "/pictures/api/info",
        f"/pictures/api/search?q={TEXT}",
        "/pictures/api/thumb/000.png",
    ):
        assert_refused(client.get(address), 401, "token")
        assert (
            client.get(
                address,
                headers={"authorization": f"Bearer {SECRET}"},
            ).status_code
            == 200
        )
    entered = client.get(
        "/pictures/",
        params={"token": SECRET},
        follow_redirects=False,
    )
    assert entered.headers["location"] == "./"


def test_other_methods_and_addresses_are_refused(client: TestClient) -> None:
    for method in ("PUT", "DELETE", "PATCH", "TRACE", "OPTIONS"):
        for address in ("/", "/api/search", "/api/item/000.png"):
            assert_refused(client.request(method, address), 405)
    for address in ("/api/info", "/static/app.js"):
        assert_refused(client.post(address), 405)
    for address in ("/api/nothing", "/nothing", "/api", "/api/", "/.git/config", "/redoc"):
        assert_refused(client.get(address), 404)


@pytest.mark.slow
def test_load_limit(searcher: Searcher, tmp_path: Path, monkeypatch) -> None:
    client = client_of(searcher, tmp_path, active=2, waiting=3)
    let_go = threading.Event()
    encode = searcher.encoder.encode_texts

    def slow(texts):
        assert let_go.wait(300)
        return encode(texts)

    monkeypatch.setattr(searcher.encoder, "encode_texts", slow)
    found = []

    def ask(i):
        found.append(
            client.get(
                "/api/search",
                params={"q": f"number {i}"},
            ),
        )

    with client:
        asking = [threading.Thread(target=ask, args=(i,)) for i in range(12)]
        for each in asking:
            each.start()
        while len(found) < 7:
            time.sleep(0.05)
        for answer in found:
            assert_refused(answer, 429, "again")
            assert answer.headers["retry-after"] == "1"
        assert (
            client.get("/api/thumb/000.png").status_code == 200
        )  # pictures have a queue of their own
        let_go.set()
        for each in asking:
            each.join()
        assert [answer.status_code for answer in found[7:]] == [200] * 5
        assert client.get("/api/info").status_code == 200
