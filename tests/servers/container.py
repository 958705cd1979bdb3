"""The same servers as containers of the vendors' official images."""

from __future__ import annotations

import functools
import subprocess
import time
import uuid
from typing import Any

from tests.ports import free_port

from .catalogue import Kind
from .errors import StartError
from .server import PATIENCE_S, ask, healthy

PLAIN = {
    "elasticsearch": {"xpack.security.enabled": "false", "ES_JAVA_OPTS": "-Xms1g -Xmx1g"},
    "opensearch": {
        "DISABLE_SECURITY_PLUGIN": "true",
        "DISABLE_INSTALL_DEMO_CONFIG": "true",
        "OPENSEARCH_JAVA_OPTS": "-Xms1g -Xmx1g",
    },
}


@functools.cache
def docker() -> bool:
    """Whether a Docker daemon answers."""
    try:
        return subprocess.run(["docker", "info"], capture_output=True, check=False, timeout=30).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


class Container:
    """A container of ``kind`` on a port of loopback, without security; removed with its data at the end."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.name = f"boc-tests-{uuid.uuid4().hex[:12]}"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._watchdog: subprocess.Popen[bytes] | None = None

    def start(self) -> Container:
        """Start it, fetching its image if need be, and wait until it answers."""
        options = [f"--env={key}={value}" for key, value in PLAIN[self.kind.engine].items()]
        options += ["--env=discovery.type=single-node", f"--publish=127.0.0.1:{self.port}:9200"]
        _docker("run", "--detach", "--name", self.name, *options, self.kind.image)
        # Its input ends when this process does, by whatever cause.
        self._watchdog = subprocess.Popen(
            ["sh", "-c", 'read _; docker rm --force --volumes "$1"', "watchdog", self.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.wait()
        return self

    def wait(self) -> None:
        """Wait until health is yellow or green; ``StartError`` ends with the tail of the log."""
        deadline = time.monotonic() + PATIENCE_S
        while not healthy(self.request):
            if time.monotonic() > deadline:
                raise StartError(f"{self.kind.image} did not answer:\n{_docker('logs', '--tail=30', self.name)}")

    def request(self, method: str, path: str, body: object = None) -> Any:
        """The parsed JSON answer of one request."""
        return ask(self.url, method, path, body)

    def kill(self) -> None:
        """End it with SIGKILL; the data stays."""
        _docker("kill", self.name)

    def restart(self) -> None:
        """Start it again on the same data and port."""
        _docker("restart", self.name)
        self.wait()

    def stop(self) -> None:
        """Remove it and its data."""
        if self._watchdog is not None:
            self._watchdog.communicate()
            self._watchdog = None

    def __enter__(self) -> Container:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _docker(*arguments: str) -> str:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise StartError(f"docker {arguments[0]}: {done.stderr.strip()}")
    return done.stdout + done.stderr
