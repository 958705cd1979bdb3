"""A server that speaks as much of the protocol of the Hugging Face hub as a download needs, with faults to order."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

BLOCK = 1 << 14


def git_digest(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


@dataclass(frozen=True)
class Asked:
    """A request: its path, the first byte that it wants of a file, its headers, and the bytes that were sent."""

    path: str
    start: int
    headers: dict[str, str]
    sent: list[int] = field(default_factory=list)


@dataclass
class Hub:
    """Repositories by name, each of files by revision. Files above 1 kB are stored by their SHA-256, as large ones are.

    Faults are for the next downloads: ``cut`` closes a connection after so many bytes of a large file, and with
    ``dies`` the server is ``dead`` from then on; ``stall`` stops sending after so many bytes, and keeps the connection;
    ``damage`` changes a byte of what is sent; ``gated`` refuses all; without ``ranges`` whole files are sent;
    ``announced`` are other sizes; ``extra`` are names in the list that are no files.
    """

    repositories: dict[str, dict[str, dict[str, bytes]]] = field(default_factory=dict)
    licence: str = "mit"
    cut: int | None = None
    dies: bool = False
    dead: bool = False
    stall: int | None = None
    damage: bool = False
    gated: bool = False
    ranges: bool = True
    announced: dict[str, int] = field(default_factory=dict)
    extra: list[str] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    address: str = ""

    def paths(self, start: str = "/") -> list[str]:
        return [each.path for each in self.asked if each.path.startswith(start)]

    def info(self, name: str, revision: str) -> dict[str, Any]:
        files = self.repositories[name][revision]
        siblings: list[dict[str, Any]] = []
        for file, data in files.items():
            size = self.announced.get(file, len(data))
            siblings.append({"rfilename": file, "size": size, "blobId": git_digest(data)})
            if len(data) > 1024:
                digest = hashlib.sha256(data).hexdigest()
                siblings[-1] |= {"lfs": {"sha256": digest, "size": size, "pointerSize": 130}}
        siblings += [{"rfilename": file, "size": 3, "blobId": git_digest(b"no\n")} for file in self.extra]
        return {"id": name, "sha": revision, "cardData": {"license": self.licence}, "siblings": siblings}

    def revision(self, name: str, asked: str) -> str | None:
        """The commit of a revision; the last one is the branch main."""
        known = list(self.repositories[name])
        return known[-1] if asked == "main" else asked if asked in known else None


def handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def refuse(self, status: int, code: str) -> None:
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.send_header("X-Error-Message", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
            start = int(wanted[1]) if wanted and hub.ranges else 0
            hub.asked.append(Asked(self.path, start, {key.lower(): value for key, value in self.headers.items()}))
            listing = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path)
            file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
            stored = re.fullmatch(r"/stored/([0-9a-f]+)", path)
            match = listing or file
            if hub.dead:
                self.refuse(503, "")
            elif stored:
                self.send(
                    next(data for data in self.all_files() if hashlib.sha256(data).hexdigest() == stored[1]), start
                )
            elif match is None or match[1] not in hub.repositories:
                self.refuse(404, "RepoNotFound")
            elif (revision := hub.revision(match[1], match[2] or "main")) is None:
                self.refuse(404, "RevisionNotFound")
            elif hub.gated:
                self.refuse(403, "GatedRepo")
            elif listing:
                self.send(json.dumps(hub.info(match[1], revision)).encode(), 0)
            else:
                assert file is not None
                data = hub.repositories[match[1]][revision].get(file[3])
                if data is None:
                    self.refuse(404, "EntryNotFound")
                elif len(data) > 1024:  # large files are elsewhere
                    self.send_response(302)
                    self.send_header("Location", f"{hub.address}/stored/{hashlib.sha256(data).hexdigest()}")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                else:
                    self.send(data, start)

        def all_files(self) -> Iterator[bytes]:
            for revisions in hub.repositories.values():
                for files in revisions.values():
                    yield from files.values()

        def send(self, data: bytes, start: int) -> None:
            large = len(data) > 1024 and self.path.startswith("/stored/")
            if large and hub.damage:
                data = data[:-1] + bytes([data[-1] ^ 1])
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(data) - start))
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
            self.end_headers()
            end = len(data)
            for limit in (hub.cut, hub.stall):
                if large and limit is not None:
                    end = min(end, start + limit)
            for block in range(start, end, BLOCK):
                self.wfile.write(data[block : min(block + BLOCK, end)])
            self.wfile.flush()
            hub.asked[-1].sent.append(end - start)
            if large and hub.stall is not None:
                stopped.wait(60)
            if end < len(data):
                hub.cut, hub.dead = None, hub.dies
                self.close_connection = True

    stopped = threading.Event()
    Handler.stopped = stopped  # type: ignore[attr-defined]
    return Handler


@contextmanager
def running(hub: Hub) -> Iterator[Hub]:
    """The server of ``hub`` at a free port, until the block ends."""
    kind = handler(hub)
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    server.daemon_threads = True
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield hub
    finally:
        kind.stopped.set()  # type: ignore[attr-defined]
        server.shutdown()
        server.server_close()
        thread.join()
