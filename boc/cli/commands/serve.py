"""boc serve."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

import click

from boc.cli import options

if TYPE_CHECKING:
    from socket import socket

    from boc.plugins import Encoder
    from boc.search.searcher import Searcher
    from boc.web.http.logs import Form
    from boc.web.settings import Settings


@click.command("serve")
@options.names
@click.option(
    "--host",
    default="127.0.0.1",
    help="Network address to listen on; 0.0.0.0 means all.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    help="Port to listen on; 0 takes a free one.",
)
@click.option(
    "--allow-host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="Another host name of requests; can be repeated.",
)
@click.option(
    "--api-only",
    is_flag=True,
    help="Serve the JSON interface under /api, without the page.",
)
@click.option("--open", "browse", is_flag=True, help="Open the page in a browser.")
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    default=1,
    help="Processes that answer; each loads the encoder.",
)
@click.option(
    "--log",
    type=click.Choice(["text", "json"]),
    help="Log each request on stderr, without token, query and ids.",
)
@click.option(
    "--install/--uninstall",
    default=None,
    help="Start it at each login of this user, from now on; or no longer.",
)
@options.at
@options.moved_encoder
def command(
    names: tuple[str, ...],
    host: str,
    port: int,
    hosts: tuple[str, ...],
    api_only: bool,
    browse: bool,
    workers: int,
    log: Form | None,
    install: bool | None,
    at: str,
    encoder: str | None,
) -> None:
    """Serve the search page of one or more indexes. It has a JSON interface; Ctrl-C ends it.

    The first NAME is at /, each of several at /index/NAME/. If the variable BOC_TOKEN is set, every
    client must give the token in it. Thumbnails are cached in boc/thumbnails in XDG_CACHE_HOME
    [default: ~/.cache].

    \b
    Examples: boc serve photos --open
              boc serve photos --open --install
              boc serve photos --uninstall
              boc serve photos album
              boc serve photos --at elastic+https://USER@HOST:9200 --port 8080
              BOC_TOKEN=$(openssl rand -hex 16) boc serve photos --host 0.0.0.0 --allow-host a.org
              boc serve photos --workers 4 --log json
              boc serve photos --at elastic+https://USER@HOST:9200 --api-only
    """
    from boc.errors import BocError, needing

    with needing("boc serve", "web"):
        from boc.web.http.server import listen
        from boc.web.http.workers import run_workers
        from boc.web.settings import Settings, default_cache

        import_module(
            "boc.web.app",
        )  # each worker imports it again; a missing package is reported here
    token = os.environ.get("BOC_TOKEN")
    if token is not None and not token.strip():
        raise BocError("BOC_TOKEN is empty; set it to a token that is hard to guess, or unset it")
    if api_only and browse:
        raise click.UsageError(
            "--api-only serves no page that --open could open; leave one of them out",
        )
    names = tuple(dict.fromkeys(names))
    if install is not None:
        from boc.cli import user_service
        from boc.search.searcher import Searcher

        if not install:
            click.echo(f"removed {user_service.uninstall(names[0])}")
            return
        for each in names:
            Searcher.open(each, at)  # what could not be served is reported here
        line = [sys.executable, *(word for word in sys.orig_argv[1:] if word != "--install")]
        path = user_service.install(
            names[0],
            line,
            "graphical-session.target" if browse else "default.target",
        )
        click.echo(
            f"{' '.join(names)} is served on port {port} now, and from each login on (by {path})",
        )
        return
    settings = Settings(names[0], at, host, hosts, token, default_cache(), api_only=api_only)
    with listen(host, port) as sock:
        address = f"http://{f'[{host}]' if ':' in host else host}:{sock.getsockname()[1]}/"

        def ready() -> None:
            if not settings.private and token is None:
                all_may = f"everybody who reaches {host} can search and see these pictures"
                click.echo(f"note: {all_may}; set BOC_TOKEN to change that", err=True)
            click.echo(f"{' '.join(names)} is at {address}{'api/' if api_only else ''}", err=True)
            if browse and _has_screen():
                click.launch(address if token is None else f"{address}?token={token}")

        try:
            if workers == 1:
                _answer(ready, True, names, settings, encoder, log, sock)
            else:
                run_workers(workers, _answer, names, settings, encoder, log, sock, ready=ready)
        except KeyboardInterrupt:
            raise SystemExit(128 + signal.SIGINT) from None


def _answer(
    ready: Callable[[], None],
    first: bool,
    names: Sequence[str],
    settings: Settings,
    encoder: str | None,
    log: Form | None,
    sock: socket,
) -> None:
    """Load the indexes and answer requests at ``sock`` in this process; the ``first`` process
    reports what it loads."""
    from boc.search.searcher import Searcher
    from boc.web.app import create_app
    from boc.web.http.server import run

    searchers = {name: Searcher.open(name, settings.at, encoder=encoder) for name in names}
    app = create_app(searchers[names[0]], settings, searchers)
    _load_encoders(searchers.values(), announce=first)
    ready()
    run(app, sock, log)


def _load_encoders(searchers: Iterable[Searcher], *, announce: bool) -> None:
    """Load the encoder of each index, once where several have the same, and search once by it."""
    loaded: dict[str, Encoder] = {}
    for searcher in searchers:
        identity = searcher.index.manifest.identity
        if identity.digest in loaded:
            searcher.encoder = loaded[identity.digest]
        else:
            if announce:
                click.echo(f"loading the encoder {identity.spec}", err=True)
            loaded[identity.digest] = searcher.encoder
        searcher.warm()


def _has_screen() -> bool:
    """Return whether there is a screen for a browser; without one the tools that open pages only
    complain."""
    return not sys.platform.startswith("linux") or any(
        map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")),
    )
