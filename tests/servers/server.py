"""A server process of our own, on loopback: start, stop, kill, restart on the same data and
port."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import time
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit
from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

from tests.ports import free_port

from . import launch
from .catalogue import KINDS, Kind
from .errors import RequestError, StartError
from .fetch import fetch

PATIENCE_S = 300  # a start takes 10 to 25 s on an idle machine


def ask(
    url: str,
    method: str,
    path: str,
    body: object = None,
    *,
    tls: ssl.SSLContext | None = None,
) -> Any:
    """Return the parsed JSON answer of one request, user and password from the URL;
    ``RequestError`` if it is an error.

    Bytes are sent as they are.
    """
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    address = f"{parts.scheme}://{host}{parts.path.rstrip('/')}/{path.lstrip('/')}"
    request = Request(address, method=method, headers={"Content-Type": "application/json"})
    if parts.username:
        secret = b64encode(f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode())
        request.add_header("Authorization", f"Basic {secret.decode()}")
    if body is not None:
        request.data = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        with build_opener(ProxyHandler({}), HTTPSHandler(context=tls)).open(
            request,
            timeout=30,
        ) as answer:
            return json.loads(answer.read() or b"null")
    except HTTPError as error:
        with error:
            raise RequestError(error.code, error.read().decode(errors="replace")) from None


def healthy(request: Callable[[str, str], Any], nodes: int = 1) -> bool:
    """Return whether a server has ``nodes`` nodes and health yellow or green; waits for it at most
    two seconds."""
    wanted = f"wait_for_status=yellow&wait_for_nodes=>={nodes}&timeout=2s"
    try:
        return not request("GET", f"_cluster/health?{wanted}")["timed_out"]
    except (OSError, HTTPException, ValueError):  # ValueError: an answer cut short
        time.sleep(0.2)
        return False


def _wait_closed(port: int) -> None:
    """Wait until nobody listens: the node may outlive its launcher by a moment, and holds its data
    so long."""
    for _ in range(100):
        with socket.socket() as s:
            if s.connect_ex(("127.0.0.1", port)) != 0:
                return
        time.sleep(0.1)


class Server:
    """One node that this process started.

    Parameters
    ----------
    kind : str
        A name in ``KINDS``.
    folder : Path
        Its configuration, ``data/`` and ``log.txt``; what is there already is used.
    settings : mapping, optional
        Settings of the server, beside or instead of the default ones: one node, no security.
    heap : str, default="1g"
        Size of the Java heap.
    port : int, default=0
        HTTP port; 0 takes a free one.
    optimise : bool, default=False
        Let Java optimise its code: a start takes twice the time, searches run faster. For
        benchmarks.
    under : sequence of str, optional
        What its command line begins with, such as ``("nice", "-n", "10")``.

    Attributes
    ----------
    url : str
        ``http://127.0.0.1:PORT``.
    transport : str
        ``127.0.0.1:PORT`` for other nodes.

    The node dies with this Python process, however that ends. Starting raises ``UnavailableError``
    if it cannot be had on this machine and ``StartError`` if it does not come up.
    """

    def __init__(
        self,
        kind: str,
        folder: Path,
        *,
        settings: Mapping[str, Any] | None = None,
        heap: str = "1g",
        port: int = 0,
        optimise: bool = False,
        under: Sequence[str] = (),
    ) -> None:
        self.under = under
        self.kind: Kind = KINDS[kind]
        self.folder = folder.resolve()
        self.java = launch.options(self.folder, heap, optimise)
        self.port = port or free_port()
        transport = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.transport = f"127.0.0.1:{transport}"
        self.settings = {
            "cluster.name": f"boc-{self.port}",
            "node.name": f"node-{self.port}",
            "path.data": str(self.folder / "data"),
            "path.logs": str(self.folder / "logs"),
            "path.repo": [str(self.folder / "snapshots")],
            "network.host": "127.0.0.1",
            "http.port": self.port,
            "transport.port": transport,
            "cluster.routing.allocation.disk.threshold_enabled": False,
            "discovery.type": "single-node",
        }
        if self.kind.engine == "elasticsearch":
            self.settings["xpack.security.enabled"] = False
        self.settings |= settings or {}
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None

    @property
    def home(self) -> Path:
        """Where the server lies; fetched if it is not there."""
        return fetch(self.kind)

    @property
    def pid(self) -> int:
        """Process id; that of Elasticsearch's launcher, whose child is the node."""
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def running(self) -> bool:
        """True if the process is there."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> Server:
        """Start the process and wait until it answers."""
        self.spawn()
        self.wait()
        return self

    def spawn(self) -> None:
        """Start the process; ``wait`` is for its answer."""
        launch.configure(self.kind, self.home, self.folder, self.settings, self.java)
        with (self.folder / "log.txt").open("ab") as log:
            self._process = subprocess.Popen(
                [*self.under, *launch.command(self.kind, self.home, self.folder, self.java)],
                env=launch.environment(self.kind, self.home, self.folder),
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        # Its input ends when this process does, by whatever cause.
        self._watchdog = subprocess.Popen(
            ["sh", "-c", 'read _; kill -KILL "-$1"', "watchdog", str(self.pid)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def wait(self, nodes: int = 1) -> None:
        """Wait until it answers with ``nodes`` nodes and health yellow or green; otherwise kill it:
        ``StartError``."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and self.running:
            if healthy(self.request, nodes):
                return
        what = "did not answer in time" if self.running else "died"
        self.kill()
        log = (self.folder / "log.txt").read_text(encoding="utf-8", errors="replace")
        raise StartError(
            f"{self.kind.name} {what}; the end of {self.folder / 'log.txt'}:\n{log[-3000:]}",
        )

    def request(self, method: str, path: str, body: object = None) -> Any:
        """Return the parsed JSON answer of one request to this node."""
        return ask(self.url, method, path, body)

    def stop(self) -> None:
        """End it as an administrator would (SIGTERM); the data stays."""
        if self._process is not None and self.running:
            os.kill(self.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=30)
        self.kill()

    def kill(self) -> None:
        """End it with SIGKILL, as a crash would; the data stays."""
        if self._process is None or self._watchdog is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        self._watchdog.kill()
        self._watchdog.communicate()
        self._process = None
        _wait_closed(self.port)

    def pause(self) -> None:
        """Stop it where it is (SIGSTOP), as a machine does that swaps or hangs; ``resume`` lets it
        go on."""
        os.killpg(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on after ``pause``."""
        os.killpg(self.pid, signal.SIGCONT)

    def restart(self) -> None:
        """Stop it if it runs, and start it again on the same data and port."""
        self.stop()
        self.start()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
