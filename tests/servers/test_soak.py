"""Mixed traffic at `boc serve` while its index changes: no request fails, no item is lost, doubled
or wrong.

``BOC_SOAK_MINUTES=60 pytest tests/servers/test_soak.py`` is an hour of it. Clients search, look at
hits and ask why; some send pictures, and some read slowly. Meanwhile, in turns, a tenth of the
pictures leaves the table, comes back (``boc sync``), and the whole index is replaced. A search
server that has the index is killed every ten minutes, and started again; while it is away, 503 is
right, as 429 always is. Beside it a second index takes items and loses some, and is compared with a
ledger: an edit that the crash cut off is repeated.
"""

import http.client
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np
import pytest

from boc import plugins
from boc.codecs import SurrogateCodec
from boc.errors import BackendError
from boc.search.searcher import Searcher
from boc.types import Embeddings, Item, Rows
from boc.vectors import Floats
from tests.servers import Server
from tests.servers.fixtures import address

MINUTES = float(os.environ.get("BOC_SOAK_MINUTES", 0))
SECONDS, CHANGE, CLIENTS, RATE = (60 * MINUTES, 450, 20, 1) if MINUTES else (10, 1, 10, 20)
WEIGHTS = {
    "search": 40,
    "thumb": 30,
    "similar": 8,
    "explain": 6,
    "item": 6,
    "facets": 5,
    "page": 3,
    "probe": 2,
}


class Client(threading.Thread):
    """Asks now and then, until the event is set. ``kind`` is upload, slow or mixed."""

    def __init__(self, url: str, library: Path, kind: str, end: threading.Event) -> None:
        super().__init__(daemon=True)
        rows = (library / "captions.csv").read_text(encoding="utf-8").splitlines()[1:]
        self._sentences = [row.split(",")[1] for row in rows]
        # Every tenth picture leaves the index at times.
        self._pictures = sorted((library / "images").iterdir())[1::10]
        self._kind = kind
        self._end = end
        self._host = urlsplit(url).netloc
        self.answered = set[str]()
        self.errors: list[str] = []

    def run(self) -> None:
        while not self._end.wait(random.expovariate(RATE / CLIENTS)):
            kind, *request = self._request()
            connection = http.client.HTTPConnection(self._host, timeout=60)
            try:
                connection.request(*request)
                answer = connection.getresponse()
                body = b""
                while part := answer.read(2048):
                    body += part
                    time.sleep(0.05 if kind == "slow" else 0)
                status = answer.status
            except (OSError, http.client.HTTPException) as error:
                status = 0
                body = repr(error).encode()
            connection.close()
            self.answered.add(kind)
            if status not in (200, 429, 503):
                self.errors.append(f"{status} at {request[1]}: {body[:300]!r}")

    def _request(self) -> tuple[Any, ...]:
        """Return the kind, method, path, body and headers of the next request."""
        sentence = random.choice(self._sentences)
        file = random.choice(self._pictures)
        text = quote(sentence)
        item = quote(file.name)
        k = random.choice((10, 40))
        part = quote(sentence[: random.randint(1, len(sentence))])
        kind = self._kind
        if kind == "mixed":
            (kind,) = random.choices(list(WEIGHTS), list(WEIGHTS.values()))
        path = {
            "upload": f"/api/search?k={k}",
            "slow": f"/api/search?q={text}&k=400",
            "search": f"/api/search?q={part}&k={k}",
            "thumb": f"/api/thumb/{item}",
            "similar": f"/api/search?like={item}&k={k}",
            "explain": f"/api/explain/{item}?q={text}",
            "item": f"/api/item/{item}",
            "facets": f"/api/facets?q={text}",
            "page": random.choice(("/", "/static/app.js", "/static/style.css")),
            "probe": random.choice(("/readyz", "/metrics", "/api/info")),
        }[kind]
        if kind != "upload":
            return kind, "GET", path
        head = '--x\r\nContent-Disposition: form-data; name="image"; filename="any.png"\r\n\r\n'
        body = head.encode() + file.read_bytes() + b"\r\n--x--\r\n"
        return kind, "POST", path, body, {"Content-Type": "multipart/form-data; boundary=x"}


def boc(*words: object) -> None:
    command = [sys.executable, "-c", "from boc.cli import main; main()", *map(str, words)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr


def changes(library: Path, work: Path, at: str) -> Callable[[], None]:
    """Make the index ``soak``, and return what changes it, one step a call."""
    table = library / "captions.csv"
    images = library / "images"
    features = library / "photos.h5"
    head, *rows = table.read_text(encoding="utf-8").splitlines(keepends=True)
    first = sorted(path.name for path in images.iterdir())[::10]
    fewer = work / "fewer.csv"
    fewer.write_text(
        "".join([head, *(row for row in rows if row.split(",")[0] not in first)]),
        encoding="utf-8",
    )
    syncs = [("sync", "soak", each, "--images", images, "--at", at) for each in (fewer, table)]
    steps = cycle([("index", "soak", features, "--replace", "--at", at), *syncs])
    boc(*next(steps))
    return lambda: boc(*next(steps))


def repeat(
    action: Callable[[], None],
    seconds: float,
    end: threading.Event,
    errors: list[str],
) -> threading.Thread:
    """Do ``action`` every so many seconds, until the event is set."""

    def run():
        while not end.wait(seconds):
            try:
                action()
            except AssertionError as error:
                errors.append(str(error))

    return threading.Thread(target=run, daemon=True)


class Ledger(threading.Thread):
    """Puts items into the index ``ledger`` and deletes some, and compares it with what it put and
    deleted."""

    def __init__(self, library: Path, at: str, end: threading.Event) -> None:
        super().__init__(daemon=True)
        boc("index", "ledger", library / "photos.h5", "--at", at)
        self._at = at
        self._end = end
        self._random = np.random.default_rng(7)
        self._backend = plugins.backend(at)
        index = self._backend.open("ledger")
        self._codec = SurrogateCodec.restore(index.manifest.codec, index.arrays())
        self._shape = (6, index.manifest.identity.dim)
        self._others = {item.id for item in index.items()}
        self._held: dict[str, Floats] = {}
        self.edits = 0
        self.errors: list[str] = []

    def run(self) -> None:
        while not self._end.wait(SECONDS / 800):
            new = self._random.standard_normal(self._shape, np.float32)
            new /= np.linalg.norm(new, axis=1, keepdims=True)
            # The index stores float16: the codes are made of the same numbers.
            new = new.astype(np.float16).astype(np.float32)
            names = [f"{self.edits}-{i}" for i in range(len(new))]
            old = list(self._held)[: 6 if len(self._held) > 600 else 3]
            while not self._edit(names, new, old):
                pass
            for id in old:
                del self._held[id]
            self._held |= zip(names, new, strict=True)
            self.edits += 1
            if self.edits % 10 == 0:
                self.check()

    def _edit(self, names: list[str], new: Floats, old: list[str]) -> bool:
        try:
            with self._backend.edit("ledger") as editor:
                items = [Item(name, "image", f"{name}.png") for name in names]
                editor.put(Rows(items, self._codec.encode_documents(Embeddings("image", new)), new))
                editor.delete(old)
                editor.commit("ledger")
        except BackendError:
            return self._end.wait(1)
        return True

    def check(self) -> None:
        """Compare the index with the ledger: ids, and the nearest item of the vector of one of
        them."""
        try:
            searcher = Searcher.open("ledger", self._at)
            ids = [item.id for item in searcher.index.items()]
            chosen = self._random.choice(list(self._held))
            query = Embeddings("image", self._held[chosen][None])
            hits = searcher.search_vectors(query, k=10, find="image")[0]
        except BackendError:
            return
        wanted = sorted([*self._others, *self._held])
        if sorted(ids) != wanted:
            self.errors.append(f"{len(ids)} items, {len(set(ids))} ids, of {len(wanted)}")
        if hits[0].item.id != chosen or abs(hits[0].score - 1) > 1e-3:
            self.errors.append(f"{chosen}: {hits[0]}")


def serve(name: str, at: str) -> tuple[subprocess.Popen[str], str]:
    """Start `boc serve` on a free port; return it and its address."""
    words = ["serve", name, "--at", at, "--port", "0"]
    command = [sys.executable, "-c", "from boc.cli import main; main()", *words]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    for line in server.stderr:
        if " is at http://" in line:
            return server, line.split(" is at ")[1].strip()
    raise AssertionError("the server did not start")


def crash(node: Server) -> None:
    node.kill()
    node.start()


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 900)
@pytest.mark.filterwarnings("ignore::boc.errors.BocWarning")
@pytest.mark.parametrize("kind", [None, *(["opensearch-3"] if MINUTES else [])])
def test_soak_has_no_errors(
    kind: str | None,
    own: Callable[[Server], Server],
    library: Path,
    tmp_path: Path,
    monkeypatch,
):
    pytest.importorskip("fastapi")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    node = own(Server(kind, tmp_path, heap="512m")) if kind else None
    at = address(node, replicas=0) if node else f"file:{tmp_path / 'index'}"
    change = changes(library, tmp_path, at)
    errors = list[str]()
    end = threading.Event()
    ledger = Ledger(library, at, end)
    with ExitStack() as stack:
        server, url = serve("soak", at)
        stack.enter_context(server)
        stack.callback(server.terminate)
        threading.Thread(target=server.stderr.read, daemon=True).start()
        kinds = ["upload", "slow", *["mixed"] * 8]
        crowd = [Client(url, library, kinds[i % 10], end) for i in range(CLIENTS)]
        threads = [*crowd, ledger, repeat(change, CHANGE, end, errors)]
        if node is not None:
            threads.append(repeat(lambda: crash(node), 4 * CHANGE / 3, end, errors))
        for thread in threads:
            thread.start()
        time.sleep(SECONDS)
        end.set()
        for thread in threads:
            thread.join()
        assert [error for client in crowd for error in client.errors] == []
        ledger.check()
        change()
        boc("verify", "ledger", "--at", at)
        boc("verify", "soak", "--at", at)
    assert ledger.errors == []
    # A change may find no server.
    assert node or errors == []
    kinds_answered = {kind for client in crowd for kind in client.answered}
    assert kinds_answered >= {"search", "thumb", "upload", "slow"}
