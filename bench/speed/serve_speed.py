"""Latency of `boc serve` per keystroke, by stage, for one client and for many at once.

    python -m bench.speed.serve_speed NAME

Captions of the index are typed letter by letter, each letter one request, by one client; then by ``--clients`` at once.
With ``--workers 1 --workers 2 --rounds 3`` servers of one and of two processes take turns, three times each.
Every row: milliseconds of ``stage`` at the 50th, 95th and 99th percentile over ``requests``. ``client`` is what the
client waits, ``total`` what the server says of itself, ``other`` what of that is in no stage. Run it on a quiet
machine: server and clients share its cores.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any
from urllib.parse import quote, urlsplit

import click
import numpy as np

from bench.report.rows import Writer
from boc import plugins

PARTS = ("encode", "code", "postings", "rerank", "content")
SPREAD = 97  # captions are taken this far apart, where there are so many
COLUMNS = ["workers", "clients", "stage", "requests", "errors", "per_s", "p50_ms", "p95_ms", "p99_ms"]


class Client(threading.Thread):
    """A client that types sentences letter by letter over its own connection, and waits for each answer."""

    def __init__(self, address: str, sentences: Sequence[str], options: str) -> None:
        super().__init__(daemon=True)
        self._place = urlsplit(address).netloc
        self._sentences = sentences
        self._options = options
        self.took: defaultdict[str, list[float]] = defaultdict(list)
        self.errors: list[str] = []

    def run(self) -> None:
        connection = http.client.HTTPConnection(self._place, timeout=120)
        for sentence in self._sentences:
            for end in range(1, len(sentence) + 1):
                if sentence[:end].strip():
                    self._ask(connection, sentence[:end])
        connection.close()

    def _ask(self, connection: http.client.HTTPConnection, text: str) -> None:
        start = time.perf_counter()
        try:
            connection.request("GET", f"/api/search?q={quote(text)}{self._options}")
            answer = connection.getresponse()
            body = answer.read()
        except OSError as error:
            self.errors.append(str(error))
            connection.close()
            return
        if answer.status != 200:
            self.errors.append(f"{answer.status}: {body[:200]!r}")
            return
        self.took["client"].append(1000 * (time.perf_counter() - start))
        stages = json.loads(body)["stages"]
        for part in PARTS:
            self.took[part].append(stages[f"{part}_ms"] or 0.0)
        self.took["total"].append(stages["total_ms"])
        self.took["other"].append(stages["total_ms"] - sum(stages[f"{part}_ms"] or 0.0 for part in PARTS))


def captions(name: str, at: str, count: int) -> list[str]:
    """Return captions of the index, spread over it."""
    items = plugins.backend(at).open(name).items()
    texts = list(islice((item.content for item in items if item.modality == "text"), count * SPREAD))
    if len(texts) < count:
        raise click.UsageError(f"{name} holds fewer than {count} captions; type fewer sentences")
    return texts[:: len(texts) // count][:count]


def measure(address: str, shares: Sequence[Sequence[str]], options: str) -> tuple[list[Client], float]:
    """Let all clients type their shares at once; return the finished clients, and the seconds."""
    clients = [Client(address, share, options) for share in shares]
    start = time.perf_counter()
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    return clients, time.perf_counter() - start


def write(out: Writer, workers: int, clients: Sequence[Client], seconds: float) -> None:
    """Write the rows of one measurement."""
    errors = [error for client in clients for error in client.errors]
    for error in errors[:5]:
        click.echo(error, err=True)
    for stage in ("client", "total", *PARTS, "other"):
        took = np.array([ms for client in clients for ms in client.took[stage]])
        points = [f"{point:.2f}" for point in np.percentile(took, [50, 95, 99])]
        out.write(workers, len(clients), stage, len(took), len(errors), f"{len(took) / seconds:.1f}", *points)


@contextmanager
def serving(name: str, at: str, more: Sequence[str]) -> Iterator[str]:
    """Yield the address of a server on a free port."""
    server, address = start(name, at, more)
    try:
        yield address
    finally:
        server.terminate()
        with suppress(subprocess.TimeoutExpired):
            server.wait(20)


def start(name: str, at: str, more: Sequence[str]) -> tuple[subprocess.Popen[str], str]:
    """Start a server on a free port; return it and its address."""
    command = [sys.executable, "-c", "from boc.cli import main; main()", "serve", name, "--at", at, "--port", "0"]
    server = subprocess.Popen([*command, *more], stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    for line in server.stderr:
        if " is at http://" in line:
            return server, line.split(" is at ")[1].strip()
        click.echo(line.rstrip(), err=True)
    raise click.ClickException("the server did not start")


@click.command()
@click.argument("name")
@click.option("--at", default="file:boc-data", show_default=True)
@click.option("--encoder", help="Where the encoder is, if it has moved.")
@click.option("--sentences", type=click.IntRange(1), default=8, show_default=True, help="Typed by one client.")
@click.option("--clients", type=click.IntRange(1), default=20, show_default=True, help="At once, a sentence each.")
@click.option("--k", type=click.IntRange(1), default=40, show_default=True)
@click.option("--workers", type=click.IntRange(1), multiple=True, default=[1], show_default=True, help="Of the server.")
@click.option("--rounds", type=click.IntRange(1), default=1, show_default=True)
def main(
    name: str, at: str, encoder: str | None, sentences: int, clients: int, k: int, workers: tuple[int, ...], rounds: int
) -> None:
    """Write percentiles of each stage, for one client and for many."""
    texts = captions(name, at, 1 + sentences + clients)
    typed, shares = texts[: 1 + sentences], [[text] for text in texts[1 + sentences :]]
    more = ["--encoder", encoder] if encoder else []
    settings: dict[str, Any] = {"name": name, "sentences": sentences, "clients": clients, "k": k}
    with Writer(sys.stdout, __file__, settings, COLUMNS, extras=["torch", "fastapi", "uvicorn"]) as out:
        for count in workers * rounds:
            with serving(name, at, [*more, "--workers", str(count)]) as address:
                measure(address, [typed[:1]], f"&k={k}")  # warm
                write(out, count, *measure(address, [typed[1:]], f"&k={k}"))
                write(out, count, *measure(address, shares, f"&k={k}"))


if __name__ == "__main__":
    main()
