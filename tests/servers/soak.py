"""Hours of mixed traffic at `boc serve`, whose index changes: errors, latency, memory, open files.

    python -m tests.servers.soak captions.csv --encoder tern:model --minutes 60
    python -m tests.servers.soak captions.csv --encoder tern:model --minutes 20 --server opensearch-3

The pictures are in ``images/`` beside the table of captions. Their index is in a temporary folder, or on a search
server that is started for it. Clients search, look at hits and ask why at a steady rate; some send pictures, and some
read slowly. Meanwhile, in turns, a tenth of the pictures leaves the table, comes back (``boc sync``), and the whole
index is replaced. The search server is killed now and then, and started again.

A row has the requests that ended in some minutes. ``refused`` are answered with 429, ``away`` with 503, as they are to
be while the search server is away; ``errors`` are broken connections and all other answers. Percentiles are over those
with an answer, without those of slow clients. ``memory_mb`` is that of the process of ``boc serve`` at the end of these
minutes, ``own_mb`` without mapped files; ``cpu_s`` are its processor seconds so far. The rows of the whole time tell
each kind of request.
"""

from __future__ import annotations

import csv
import http.client
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import click
import numpy as np

from bench.race.engine import status_of
from bench.race.servers import SCHEMES, start_server
from bench.report.rows import Writer
from bench.speed.serve_speed import start

NAME = "boc-bench-soak"
BOC = (sys.executable, "-c", "from boc.cli import main; main()")
COLUMNS = [
    "minutes", "kind", "requests", "errors", "refused", "away", "p50_ms", "p99_ms", "memory_mb", "own_mb", "files",
    "threads", "cpu_s", "changes", "restarts",
]  # fmt: skip
ROWS = 10  # of equal parts of the time
LEAVING = 10  # one picture in so many leaves the index, and comes back
SHARE = 10  # one client in so many sends pictures, and another one reads slowly
WEIGHTS = {"search": 40, "thumb": 30, "similar": 8, "explain": 6, "item": 6, "facets": 5, "page": 3, "probe": 2}
PATIENCE = 60.0  # seconds until a client gives up
PIECE, PAUSE = 2048, 0.05  # bytes that a slow client reads at a time, and seconds between
GOOD, REFUSED, AWAY = (200, 304), 429, 503
SHOWN = 20  # errors of a client that are shown
DOWN = 3.0  # seconds that a search server is down, beside those of its start


class Asked(NamedTuple):
    """One request. ``status`` 0 is a broken connection."""

    kind: str
    status: int
    ms: float


class Library(NamedTuple):
    """Sentences to ask for, and the ids and files of pictures that never leave the index."""

    sentences: Sequence[str]
    pictures: Sequence[tuple[str, Path]]


class Client(threading.Thread):
    """Asks now and then, until the event is set, over one connection as long as that is open."""

    def __init__(
        self, address: str, library: Library, kind: str, pause: float, seed: int, end: threading.Event
    ) -> None:
        super().__init__(daemon=True)
        self._host, self._library, self._kind, self._pause = urlsplit(address).netloc, library, kind, pause
        self._random, self._end = random.Random(seed), end
        self._connection: http.client.HTTPConnection | None = None
        self.asked: list[Asked] = []

    def run(self) -> None:
        while not self._end.wait(self._random.expovariate(1 / self._pause)):
            kind, method, path, body, headers = self._question()
            begun = time.perf_counter()
            try:
                status, said = self._ask(method, path, body, headers)
            except (OSError, http.client.HTTPException) as error:
                status, said = 0, repr(error)
                self._close()
            self.asked.append(Asked(kind, status, 1000 * (time.perf_counter() - begun)))
            if is_error(status) and sum(is_error(each.status) for each in self.asked) <= SHOWN:
                tell(f"{status} at {path}: {said[:300]}")
        self._close()

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _ask(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> tuple[int, str]:
        """Status, and what was said if that is an error. A connection that the server has closed is opened again."""
        while True:
            fresh = self._connection is None
            connection = self._connection = self._connection or http.client.HTTPConnection(self._host, timeout=PATIENCE)
            try:
                connection.request(method, path, body, headers)
                answer = connection.getresponse()
                break
            except ConnectionError:
                self._close()
                if fresh:
                    raise
        data = b""
        while part := answer.read(PIECE):
            data += part
            time.sleep(PAUSE if self._kind == "slow" else 0)
        return answer.status, data.decode(errors="replace") if answer.status not in GOOD else ""

    def _question(self) -> tuple[str, str, str, bytes | None, dict[str, str]]:
        """Kind, method, path, body and headers of the next request."""
        draw = self._random
        text, (id, file) = draw.choice(self._library.sentences), draw.choice(self._library.pictures)
        sentence, item, k = quote(text), quote(id), draw.choice((10, 40))
        if self._kind == "upload":
            return self._kind, "POST", f"/api/search?k={k}", *form(file)
        if self._kind == "slow":
            return self._kind, "GET", f"/api/search?q={sentence}&k=400", None, {}
        kind = draw.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        path = {
            "search": f"/api/search?q={quote(text[: draw.randint(1, len(text))])}&k={k}",
            "thumb": f"/api/thumb/{item}",
            "similar": f"/api/similar/{item}?k={k}",
            "explain": f"/api/explain/{item}?q={sentence}",
            "item": f"/api/item/{item}",
            "facets": f"/api/facets?q={sentence}",
            "page": draw.choice(("/", "/static/app.js", "/static/style.css")),
            "probe": draw.choice(("/readyz", "/metrics", "/api/info")),
        }[kind]
        return kind, "GET", path, None, {}


def form(file: Path) -> tuple[bytes, dict[str, str]]:
    """Body and headers that send a picture."""
    head = f'--x\r\nContent-Disposition: form-data; name="image"; filename="{file.name}"\r\n\r\n'
    return head.encode() + file.read_bytes() + b"\r\n--x--\r\n", {"Content-Type": "multipart/form-data; boundary=x"}


class Changes:
    """The index, and the commands that change it in turns. Each runs in a process of its own."""

    def __init__(self, table: Path, work: Path, at: str) -> None:
        with table.open(encoding="utf-8", newline="") as file:
            head, *rows = csv.reader(file)
        pictures = list(dict.fromkeys(row[0] for row in rows))
        leaving = set(pictures[::LEAVING])
        images = table.parent / "images"
        self.library = Library(
            list(dict.fromkeys(row[1].strip() for row in rows if row[1].strip())),
            [(id, images / id) for id in pictures if id not in leaving],
        )
        every, fewer, features = (work / name for name in ("all.csv", "fewer.csv", "all.h5"))
        for path, kept in ((every, rows), (fewer, [row for row in rows if row[0] not in leaving])):
            with path.open("w", encoding="utf-8", newline="") as file:
                csv.writer(file).writerows([head, *kept])
        sources, place = ("--images", images), ("--at", at)
        self._extract = ("extract", every, *sources, "-o", features)
        self._index = ("index", NAME, features, *place)
        syncs = [("sync", NAME, path, *sources, *place) for path in (fewer, every)]
        self._steps = cycle([*syncs, (*self._index, "--replace")])

    def make(self, encoder: str) -> None:
        """The index, for the first time. An error ends the benchmark."""
        if not (run(*self._extract, "--encoder", encoder) and run(*self._index)):
            raise click.ClickException("the index could not be made; see above")

    def next(self) -> None:
        """Make the next change; report one that fails."""
        run(*next(self._steps))


def run(*words: object) -> bool:
    """Run a command of boc; whether it ended well."""
    done = subprocess.run([*BOC, *map(str, words)], capture_output=True, text=True, check=False)
    if done.returncode:
        tell(f"boc {words[0]} ended with {done.returncode}: {done.stderr[-1000:]}")
    return not done.returncode


def tell(line: str) -> None:
    click.echo(f"{time.strftime('%H:%M:%S')} {line}", err=True)


def is_error(status: int) -> bool:
    return status not in (*GOOD, REFUSED, AWAY)


def counted(asked: Sequence[Asked]) -> tuple[object, ...]:
    """Requests, errors, refused, away, and percentiles of the milliseconds of those that were answered."""
    statuses = [each.status for each in asked]
    took = [each.ms for each in asked if each.status in GOOD]
    points = [f"{point:.1f}" for point in np.percentile(took, [50, 99])] if took else [None, None]
    return len(asked), sum(map(is_error, statuses)), statuses.count(REFUSED), statuses.count(AWAY), *points


def quick(asked: Sequence[Asked]) -> list[Asked]:
    """All requests but those of slow clients, which wait for themselves."""
    return [each for each in asked if each.kind != "slow"]


def state(process: int) -> tuple[object, ...]:
    """Megabytes of memory, those without files, open files, threads, and processor seconds of a process."""
    memory, own = (round(status_of(process, key) / 1e6) for key in ("VmRSS", "RssAnon"))
    home = Path(f"/proc/{process}")
    user, system = (home / "stat").read_text().rpartition(")")[2].split()[11:13]
    seconds = (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    files, threads = (len(list((home / part).iterdir())) for part in ("fd", "task"))
    return memory, own, files, threads, round(seconds, 1)


class Repeated(threading.Thread):
    """Does something every so many seconds, until the event is set."""

    def __init__(self, seconds: float, end: threading.Event, action: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._seconds, self._end, self._action = seconds, end, action
        self.count = 0

    def run(self) -> None:
        while not self._end.wait(self._seconds):
            self._action()
            self.count += 1


@click.command()
@click.argument("table", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--encoder", required=True, help="Encoder of the pictures and of the queries.")
@click.option("--server", "kind", metavar="KIND", help="Keep the index on a search server of tests/servers.")
@click.option("--minutes", type=click.FloatRange(0, min_open=True), default=60.0, show_default=True)
@click.option("--rate", type=click.FloatRange(0, min_open=True), default=5.0, show_default=True, help="Requests per s.")
@click.option("--clients", type=click.IntRange(SHARE), default=50, show_default=True)
@click.option("--change", type=float, default=180.0, show_default=True, help="Seconds between changes of the index.")
@click.option("--restart", type=float, default=240.0, show_default=True, help="Seconds between restarts of the server.")
@click.option("--heap", default="512m", show_default=True, help="Of the search server.")
def main(
    table: Path,
    encoder: str,
    kind: str | None,
    minutes: float,
    rate: float,
    clients: int,
    change: float,
    restart: float,
    heap: str,
) -> None:
    """CSV on stdout: what the clients got in each tenth of the time, and in all of it."""
    settings = click.get_current_context().params
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="boc-soak-")))
        node = stack.enter_context(start_server(kind, work, heap)) if kind else None
        at = f"{SCHEMES[node.kind.engine]}+{node.url}?replicas=0" if node else f"file:{work / 'index'}"
        changes = Changes(table.resolve(), work, at)
        changes.make(encoder)
        os.environ["XDG_CACHE_HOME"] = str(work / "cache")
        server, address = start(NAME, at, [])
        stack.callback(server.wait)
        stack.callback(server.terminate)
        threading.Thread(target=echo, args=(server.stderr,), daemon=True).start()
        end = threading.Event()
        stack.callback(end.set)
        kinds = ["upload", "slow"] * (clients // SHARE)
        kinds += ["mixed"] * (clients - len(kinds))
        asking = [Client(address, changes.library, each, clients / rate, i, end) for i, each in enumerate(kinds)]
        changing = Repeated(change, end, changes.next)
        restarting = Repeated(restart, end, lambda: restart_node(node))
        threads = [*asking, changing, *([restarting] if node else [])]
        for thread in threads:
            thread.start()
        with Writer(sys.stdout, __file__, settings, COLUMNS, extras=["torch", "fastapi", "uvicorn"]) as out:

            def write(told: str, kind: str, asked: Sequence[Asked]) -> None:
                out.write(told, kind, *counted(asked), *state(server.pid), changing.count, restarting.count)

            for part in range(ROWS):
                seen = [len(each.asked) for each in asking]
                time.sleep(60 * minutes / ROWS)
                new = [asked for each, old in zip(asking, seen, strict=True) for asked in each.asked[old:]]
                write(f"{minutes * part / ROWS:g}-{minutes * (part + 1) / ROWS:g}", "all", quick(new))
            end.set()
            for thread in threads:  # a change that is under way writes into the folder
                thread.join()
            everything = [asked for each in asking for asked in each.asked]
            write(f"0-{minutes:g}", "all", quick(everything))
            for kind in (*WEIGHTS, "upload", "slow"):
                write(f"0-{minutes:g}", kind, [asked for asked in everything if asked.kind == kind])


def restart_node(node: Any) -> None:
    """Kill a search server, and start it again on the same data."""
    node.kill()
    time.sleep(DOWN)
    node.start()


def echo(stream: Iterable[str]) -> None:
    """Show what the server says."""
    for line in stream:
        tell(f"server: {line.rstrip()}")


if __name__ == "__main__":
    main()
