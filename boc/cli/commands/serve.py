"""boc serve."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from boc.cli import options


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
    "--keep",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    metavar="FOLDER",
    help="Keep pictures that clients with the token send to POST /api/library: in FOLDER, and in "
    "the index.",
)
@click.option("--log", is_flag=True, help="Log requests on stderr, without token, query and ids.")
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
    keep: Path | None,
    log: bool,
    at: str,
    encoder: str | None,
) -> None:
    """Serve the search page of one or more indexes. It has a JSON interface; Ctrl-C ends it.

    The first NAME is at /, each of several at /index/NAME/. If the variable BOC_TOKEN is set, every
    client must give the token in it. Thumbnails are cached in boc/thumbnails in XDG_CACHE_HOME
    [default: ~/.cache].

    \b
    Examples: boc serve photos --open
              boc serve photos album
              boc serve photos --at elastic+https://USER@HOST:9200 --port 8080
              BOC_TOKEN=$(openssl rand -hex 16) boc serve photos --host 0.0.0.0 --allow-host a.org
              boc serve photos --workers 4 --log
              BOC_TOKEN=secret boc serve photos --keep .
              boc serve photos --at elastic+https://USER@HOST:9200 --api-only
    """
    from boc.errors import BocError, needing
    from boc.search.searcher import Searcher

    with needing("boc serve", "web"):
        from boc.web.app import SERVED, load_app
        from boc.web.http.server import listen, run
        from boc.web.settings import Settings
    token = os.environ.get("BOC_TOKEN")
    if token is not None and not token.strip():
        raise BocError("BOC_TOKEN is empty; set it to a token that is hard to guess, or unset it")
    if api_only and browse:
        raise click.UsageError(
            "--api-only serves no page that --open could open; leave one of them out",
        )
    if keep is not None and token is None:
        raise BocError("pictures are kept of clients that have the token only; set BOC_TOKEN")
    names = tuple(dict.fromkeys(names))
    settings = Settings(
        names[0],
        at,
        host,
        hosts,
        token,
        api_only=api_only,
        workers=workers,
        keep=keep and keep.resolve(),
    )
    app: Any = "boc.web.app:load_worker"
    with listen(host, port) as sock:
        if workers == 1:
            app = load_app(
                names,
                settings,
                encoder,
                lambda spec: click.echo(f"loading the encoder {spec}", err=True),
            )
        else:
            for name in names:
                Searcher.open(name, at, encoder=encoder)
            os.environ[SERVED] = json.dumps([names, asdict(settings), encoder], default=str)
            # The processes share the cores.
            threads = (os.cpu_count() or 1) // workers
            os.environ.setdefault("OMP_NUM_THREADS", str(max(1, threads)))
        if not settings.private and token is None:
            all_may = f"everybody who reaches {host} can search and see these pictures"
            click.echo(f"note: {all_may}; set BOC_TOKEN to change that", err=True)
        if ":" in host:
            host = f"[{host}]"
        address = f"http://{host}:{sock.getsockname()[1]}/"
        shown = f"{address}api/" if api_only else address
        click.echo(f"{' '.join(names)} is at {shown}", err=True)
        # Without a screen, the tools that open pages only complain.
        screens = map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY"))
        if browse and (not sys.platform.startswith("linux") or any(screens)):
            if token is not None:
                address += f"?token={token}"
            click.launch(address)
        run(app, sock, workers, log=log)
