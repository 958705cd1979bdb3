"""Whatever is asked of a server, it answers, and not with a fault of its own; and it keeps no
memory and no descriptor of it.

BOC_REQUESTS sets how many requests are made (default 1500).
"""

import http.client
import os
import random
from pathlib import Path
from urllib.parse import quote

import pytest

pytest.importorskip("fastapi", reason="the page needs the extra web")

from tests.boc.web.test_serve import get, serving

REQUESTS = int(os.environ.get("BOC_REQUESTS", "1500"))
# A connection that is being closed and a file opened at first use are no leak.
MOST_DESCRIPTORS = 8
METHODS = ("GET", "GET", "GET", "GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "X")
PREFIXES = ("/api/", "/api/", "/api/", "/index/photos/api/", "/index/x/api/", "/static/", "/")
ROUTES = (
    "search",
    "explain/",
    "item/",
    "thumb/",
    "picture/",
    "library",
    "words",
    "facets",
    "info",
    "logout",
    "",
)
NAMES = (
    "q",
    "k",
    "rm",
    "z",
    "find",
    "like",
    "unlike",
    "filter",
    "hybrid",
    "rerank",
    "side",
    "weight",
    "sort",
    "collapse",
    "pick",
    "skip",
    "token",
    "x",
)
VALUES = (
    "000.png",
    "000.png#0",
    "a red box -blue",
    "-a " * 300,
    "image",
    "rrf",
    "240",
    "1",
    "0",
    "-1",
    "1e308",
    "nan",
    "true",
    "-modified",
    "size>100",
    "size>=" + " " * 500 + "x",
    "taken<>2020",
    "modified=2020-13",
    "folder==<",
    "../../etc/passwd",
    "\ud800",
    "\0",
    "%",
    "x" * 900,
    "zzq " * 240,
    "[" * 500,
    "\U0001f415",
)
HEADERS = ("host", "origin", "authorization", "cookie", "if-none-match", "range", "content-type")
HEAD_VALUES = (
    "http://[",
    "null",
    "a@b",
    "[::1",
    "localhost",
    "127.0.0.1",
    "*",
    "Bearer x",
    "boc=1.2.3",
    '"x"',
    "bytes=0-1",
    "multipart/form-data; boundary=x",
    "\xff",
    "x" * 4000,
)
BODIES = (
    b"",
    b"x",
    b"--x",
    b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\nno\r\n--x--\r\n',
)


def text(rng: random.Random) -> str:
    if rng.random() < 0.8:
        return rng.choice(VALUES)
    return "".join(chr(rng.choice((rng.randrange(128), rng.randrange(0x3000)))) for _ in range(9))


def coded(value: str) -> str:
    return quote(value.encode("utf-8", "surrogatepass"), safe=".")


def ask(connection: http.client.HTTPConnection, rng: random.Random) -> tuple[int, str]:
    """Make a request; return the status of its answer, and what was asked."""
    path = rng.choice(PREFIXES) + rng.choice(ROUTES)
    if path.endswith("/") or rng.random() < 0.05:
        path += coded(text(rng))
    pairs = [(rng.choice(NAMES), text(rng)) for _ in range(rng.randrange(4))]
    address = f"{path}?{'&'.join(f'{name}={coded(value)}' for name, value in pairs)}"
    method = rng.choice(METHODS)
    if method == "X":
        method = f"M{rng.randrange(10**6)}"
    body = b""
    headers = {}
    if rng.random() < 0.3:
        headers = {rng.choice(HEADERS): rng.choice(HEAD_VALUES) for _ in range(2)}
    if method not in ("GET", "HEAD"):
        body = rng.choice(BODIES)
        headers.setdefault("content-type", "multipart/form-data; boundary=x")
    connection.putrequest(method, address, skip_host="host" in headers)
    for name, value in headers.items():
        connection.putheader(name, value.encode("latin-1"))
    connection.putheader("content-length", str(len(body)))
    connection.endheaders(body)
    answer = connection.getresponse()
    answer.read()
    if answer.will_close:
        connection.close()
    return answer.status, f"{method} {address} {headers}"


def resources(pid: int | None) -> tuple[int, int]:
    """Return the descriptors of a process, and its resident memory in MB."""
    home = Path(f"/proc/{pid}")
    pages = int((home / "statm").read_text().split()[1])
    return len(list((home / "fd").iterdir())), pages * os.sysconf("SC_PAGESIZE") >> 20


@pytest.mark.slow
def test_a_server_survives_any_request(library: Path, tmp_path: Path):
    log = tmp_path / "log"
    with serving(log, "photos", "--at", f"file:{library / 'index'}") as (process, port, _):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        for number in range(600):
            ask(connection, random.Random(-number))
        connection.close()
        get(port, "/metrics")
        before = resources(process.pid)
        statuses = {}
        for number in range(REQUESTS):
            status, asked = ask(connection, random.Random(number))
            assert status < 500, asked
            statuses[status] = statuses.get(status, 0) + 1
        connection.close()
        measurements = get(port, "/metrics")[1].decode()
        after = resources(process.pid)
    (tmp_path / "told").write_text(f"{statuses} {before} {after} {len(measurements)}")
    assert {200, 400, 404, 405} <= statuses.keys()
    assert after[0] - before[0] <= MOST_DESCRIPTORS
    assert after[1] - before[1] <= 20
    assert len(measurements) < 60_000
    assert 'method="M' not in measurements
    assert "Traceback" not in log.read_text()
