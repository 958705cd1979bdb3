"""What the browser tests share: servers to visit, and what a page shows."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import parse_qs, urlsplit
from urllib.request import urlopen

import pytest

from tests.ports import free_port
from tests.processes import start

SECRET = "a token with spaces & signs"
TAG = "<img src=x onerror=\"document.title='owned'\">"
START = 120  # seconds that a server may take to load its encoder on a busy machine


@contextmanager
def serving(
    name: str,
    home: Path,
    cache: Path,
    port: int | None = None,
    token: str | None = None,
) -> Iterator[Any]:
    """A running ``boc serve``: has ``url`` and ``process``."""
    port = port or free_port()
    environment = {"XDG_CACHE_HOME": str(cache)} | ({"BOC_TOKEN": token} if token else {})
    command = [
        "serve",
        name,
        "--at",
        f"file:{home / 'index'}",
        "--port",
        port,
    ]
    log = cache.parent / f"{name}-{port}.log"
    process = start(command, log, log, **environment)
    process.url = f"http://127.0.0.1:{port}/"
    try:
        _wait(process, log)
        yield process
    finally:
        process.kill()
        process.join()


@contextmanager
def below(prefix: str, url: str) -> Iterator[str]:
    """The address below which a proxy shows the server at ``url``: it strips ``prefix``, as proxies
    do."""
    target = urlsplit(url)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.startswith(f"{prefix}/"):
                self.pass_on()
            else:
                self.send_error(404, "outside of the prefix")

        do_POST = do_GET  # noqa: N815

        def pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            with closing(
                HTTPConnection(
                    target.hostname or "",
                    target.port,
                    timeout=START,
                ),
            ) as connection:
                connection.request(
                    self.command,
                    self.path.removeprefix(prefix),
                    body,
                    dict(self.headers),
                )
                answer = connection.getresponse()
                data = answer.read()
            with suppress(ConnectionError):  # the browser has left
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in (
                        "transfer-encoding",
                        "content-length",
                        "date",
                        "server",
                        "connection",
                    ):
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as proxy:
        thread = Thread(target=proxy.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{proxy.server_address[1]}{prefix}/"
        proxy.shutdown()
        thread.join()


def _wait(process: Any, log: Path) -> None:
    end = time.monotonic() + START
    while time.monotonic() < end and process.is_alive():
        try:
            with urlopen(process.url, timeout=5) as answer:
                if answer.status == 200:
                    return
        except HTTPError as error:
            error.close()
        except (URLError, OSError):
            pass
        time.sleep(0.1)
    pytest.fail(f"boc serve did not come up:\n{log.read_text()}")


def ids(page: Any) -> list[str]:
    """The names of the pictures, or the sentences, that the page shows, in their order."""
    return page.eval_on_selector_all(
        "#results li a.open",
        "links => links.map(a => new URL(a.href).searchParams.get('open'))",
    )


def settle(page: Any) -> list[str]:
    """Wait until the page shows the answer to what was asked last; the ids it shows."""
    page.wait_for_function("() => !document.querySelector('#results').hasAttribute('aria-busy')")
    page.wait_for_selector("#results[data-shows=hits] li a.open")
    return ids(page)


def unfold(page: Any) -> None:
    """Have the dialog say why an item was found."""
    reason = page.locator("dialog details.reason")
    reason.wait_for()
    if reason.get_attribute("open") is None:
        reason.locator("summary").first.click()
    page.wait_for_selector("dialog .terms li")


def settle_after(page: Any, address: str, act: Callable[[], Any]) -> list[str]:
    """Do what asks the server at ``address``, and wait until the page shows the answer; the ids it
    shows."""
    with page.expect_response(lambda response: address in response.url):
        act()
    page.wait_for_timeout(50)
    return settle(page)


def query_of(page: Any) -> dict[str, list[str]]:
    """The parameters in the address of a page."""
    return parse_qs(urlsplit(page.url).query)


def word(page: Any, text: str) -> Any:
    """The button that looks for a word in the picture of the dialog: not a term's of the same
    name."""
    return page.get_by_role("group", name="Words to locate").get_by_role(
        "button",
        name=text,
        exact=True,
    )
