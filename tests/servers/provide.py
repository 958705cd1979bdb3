"""Gets a server for tests that only ask it things: at an address that is given, or a process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .catalogue import Kind
from .errors import UnavailableError
from .fetch import place
from .server import Server, ask


@dataclass(frozen=True)
class Given:
    """A server that somebody else runs."""

    kind: Kind
    url: str

    def request(self, method: str, path: str, body: object = None) -> Any:
        """The parsed JSON answer of one request."""
        return ask(self.url, method, path, body)


def given(kind: Kind) -> Given | None:
    """The first address in BOC_TEST_ELASTICSEARCH or BOC_TEST_OPENSEARCH where a version of ``kind`` answers."""
    variable = f"BOC_TEST_{kind.engine.upper()}"
    for url in filter(None, os.environ.get(variable, "").split(",")):
        try:
            nodes = ask(url.strip(), "GET", "_nodes/_local?filter_path=nodes.*.version")["nodes"]
        except OSError as error:
            raise UnavailableError(f"{variable} names {url}, which does not answer: {error}") from error
        version = next(iter(nodes.values()))["version"]
        if f"{version}.".startswith(kind.name.split("-")[1] + "."):
            return Given(kind, url.strip())
    return None


@contextmanager
def provide(kind: Kind, folder: Path) -> Iterator[Given | Server]:
    """``kind``, answering; nothing is fetched through Maven: ``UnavailableError`` says how it would be."""
    address = given(kind)
    if address is not None:
        yield address
        return
    fetched(kind)
    with Server(kind.name, folder) as server:
        yield server.start()


def fetched(kind: Kind) -> None:
    """``UnavailableError`` unless ``kind`` lies in the cache."""
    if not place(kind).exists():
        raise UnavailableError(
            f"{kind.name} is not here; python -m tests.servers fetch {kind.name} fetches it ({kind.megabytes} MB), "
            "make test-servers all kinds"
        )
