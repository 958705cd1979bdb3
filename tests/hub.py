"""A server that speaks as much of the protocol of the Hugging Face hub as a download needs, with
faults to order."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.helpers import Handler, serving

BLOCK = 1 << 14
LARGE = 1024
"""Files above this number of bytes are stored by their SHA-256, and served from another address."""


@dataclass(frozen=True)
class Asked:
    """A request: its method and path, the first byte that it wants of a file, and its headers."""

    method: str
    path: str
    start: int
    headers: dict[str, str]


@dataclass
class Hub:
    """Repositories by name, each of files by revision, the last of which is the branch main.

    Faults are for the next downloads of large files: ``cut`` closes a connection after so many
    bytes, and with ``dies`` the server is ``dead`` from then on, when all small files of the branch
    main are ``sent``; ``stall`` stops sending after so many bytes, and keeps the connection;
    ``damage`` changes a byte of what is sent; ``gated`` refuses all; ``extra`` are names in lists
    that are no files.
    """

    repositories: dict[str, dict[str, dict[str, bytes]]] = field(default_factory=dict)
    licence: str = "mit"
    cut: int | None = None
    dies: bool = False
    dead: bool = False
    stall: int | None = None
    damage: bool = False
    gated: bool = False
    extra: list[str] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    sent: set[str] = field(default_factory=set)
    address: str = ""

    def paths(self, start: str = "/") -> set[str]:
        return {
            each.path for each in self.asked if each.path.startswith(start) and each.method == "GET"
        }

    def small_files_are_sent(self) -> bool:
        latest = (list(files.values())[-1] for files in self.repositories.values())
        return {
            name for files in latest for name, data in files.items() if len(data) <= LARGE
        } <= self.sent

    def revision(self, name: str, asked: str) -> str | None:
        """The commit of a revision."""
        known = list(self.repositories[name])
        return known[-1] if asked == "main" else asked if asked in known else None

    def listed(self, name: str, revision: str) -> list[dict[str, Any]]:
        """The files of a repository, with names and digests as in both lists of the protocol."""
        files = [*self.repositories[name][revision].items(), *((e, b"no") for e in self.extra)]
        entries = []
        for file, data in files:
            git = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
            entry = {
                "type": "file",
                "path": file,
                "rfilename": file,
                "size": len(data),
                "oid": git,
                "blobId": git,
            }
            if len(data) > LARGE:
                digest = hashlib.sha256(data).hexdigest()
                entry["lfs"] = {
                    "oid": digest,
                    "sha256": digest,
                    "size": len(data),
                    "pointerSize": 130,
                }
            entries.append(entry)
        return entries

    def info(self, name: str, revision: str) -> dict[str, Any]:
        return {
            "id": name,
            "sha": revision,
            "cardData": {"license": self.licence},
            "siblings": self.listed(name, revision),
        }


def handler(hub: Hub) -> type[Handler]:
    class Repositories(Handler):
        def answer(self, status: int, **headers: str) -> None:
            """Send a response without a body."""
            self.send_response(status)
            for name, value in {"content-length": "0", **headers}.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()

        def do_GET(self) -> None:  # noqa: N802
            path = unquote(urlsplit(self.path).path)
            wanted = re.fullmatch(r"bytes=(\d+)-\d*", self.headers.get("Range", ""))
            start = int(wanted[1]) if wanted else 0
            headers = {key.lower(): value for key, value in self.headers.items()}
            hub.asked.append(Asked(self.command, path, start, headers))
            listing = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/(.+))?", path)
            file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
            stored = re.fullmatch(r"/stored/([0-9a-f]+)", path)
            name = listing[1] if listing else file[1] if file else ""
            if hub.dead:
                self.answer(503)
            elif stored:
                every = (
                    data
                    for known in hub.repositories.values()
                    for files in known.values()
                    for data in files.values()
                )
                self.send(
                    next(data for data in every if hashlib.sha256(data).hexdigest() == stored[1]),
                    start,
                )
            elif name not in hub.repositories:
                self.answer(404, X_Error_Code="RepoNotFound")
            elif (
                revision := hub.revision(
                    name,
                    (listing[3] if listing else file and file[2]) or "main",
                )
            ) is None:
                self.answer(404, X_Error_Code="RevisionNotFound")
            elif hub.gated:
                self.answer(403, X_Error_Code="GatedRepo")
            elif listing:
                body = (
                    hub.listed(name, revision) if listing[2] == "tree" else hub.info(name, revision)
                )
                self.send(json.dumps(body).encode(), 0)
            elif file is not None and file[3] in hub.repositories[name][revision]:
                self.file(hub.repositories[name][revision][file[3]], revision, start)
            else:
                self.answer(404, X_Error_Code="EntryNotFound")

        do_HEAD = do_GET  # noqa: N815

        def file(self, data: bytes, revision: str, start: int) -> None:
            """Send a small file, or where a large one is."""
            digest = hashlib.sha256(data).hexdigest()
            headers = {"ETag": f'"{digest}"', "X-Repo-Commit": revision}
            if len(data) > LARGE:
                # Large files are at another host.
                place = f"{hub.address.replace('127.0.0.1', 'localhost')}/stored/{digest}"
                linked = {"X-Linked-Size": str(len(data)), "X-Linked-ETag": f'"{digest}"'}
                self.answer(302, Location=place, **linked, **headers)
            elif self.command == "HEAD":
                self.answer(200, **headers, **{"content-length": str(len(data))})
            else:
                self.send(data, start, headers)

        def send(self, data: bytes, start: int, headers: dict[str, str] | None = None) -> None:
            large = self.path.startswith("/stored/")
            if large and hub.damage:
                data = data[:-1] + bytes([data[-1] ^ 1])
            self.send_response(206 if start else 200)
            for name, value in {
                **(headers or {}),
                "Content-Length": str(len(data) - start),
            }.items():
                self.send_header(name, value)
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
            hub.sent.add(self.path.rpartition("/")[2])
            if large and hub.stall is not None:
                stopped.wait(60)
            if end < len(data):
                while hub.dies and not hub.small_files_are_sent():
                    stopped.wait(0.01)
                hub.cut = None
                hub.dead = hub.dies
                self.close_connection = True

    stopped = threading.Event()
    Repositories.stopped = stopped  # type: ignore[attr-defined]
    return Repositories


@contextmanager
def running(hub: Hub) -> Iterator[Hub]:
    """The server of ``hub`` at a free port, until the block ends."""
    kind = handler(hub)
    with serving(kind) as server:
        hub.address = f"http://127.0.0.1:{server.server_port}"
        try:
            yield hub
        finally:
            kind.stopped.set()  # type: ignore[attr-defined]
