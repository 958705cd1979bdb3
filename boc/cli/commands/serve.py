"""Define the command boc serve."""

import gc
import os
from pathlib import Path

import click

from boc.cli import options


@click.command("serve")
@options.name
@click.option(
    "--host",
    default="127.0.0.1",
    help="Network address to listen on; 0.0.0.0 means all addresses.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    help="Port to listen on; 0 means any free port.",
)
@click.option(
    "--allow-host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="Additional host name to accept in requests; can be repeated.",
)
@click.option("--open", "browse", is_flag=True, help="Open the page in a browser.")
@click.option(
    "--keep",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    metavar="FOLDER",
    help="Folder for pictures that clients with the token upload to POST /api/library; the "
    "pictures are added to the index.",
)
@click.option(
    "--log",
    is_flag=True,
    help="Log requests to stderr, without tokens, queries and ids.",
)
@options.at
@options.moved_encoder
def command(
    name: str,
    host: str,
    port: int,
    hosts: tuple[str, ...],
    browse: bool,
    keep: Path | None,
    log: bool,
    at: str,
    encoder: str | None,
) -> None:
    """Serve the search page of the index NAME. The server also provides a JSON interface. Press
    Ctrl-C to stop the server.

    If the environment variable BOC_TOKEN is set, every client must send its value as a token.
    Thumbnails are cached in XDG_CACHE_HOME/boc/thumbnails [default: ~/.cache/boc/thumbnails].

    \b
    Examples: boc serve photos --open
              boc serve photos --at elastic+https://USER@HOST:9200 --port 8080
              BOC_TOKEN=$(openssl rand -hex 16) boc serve photos --host 0.0.0.0 --allow-host a.org
              BOC_TOKEN=secret boc serve photos --keep .
    """
    # Requests share the cores. A matrix product on several threads would wait for busy cores and
    # use up to twice the processor time.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from boc.errors import BocError, needing
    from boc.search.searcher import Searcher

    with needing("boc serve", "web"):
        from boc.web.app import create_app
        from boc.web.http.server import configure_logging, listen, return_memory, run
        from boc.web.settings import LOOPBACK, Settings
    token = os.environ.get("BOC_TOKEN")
    if token is not None and not token.strip():
        raise BocError("BOC_TOKEN is empty; set it to a token that is hard to guess, or unset it")
    if keep is not None and token is None:
        raise BocError("--keep accepts pictures only from clients with a token; set BOC_TOKEN")
    settings = Settings(name, at, host, hosts, token, keep=keep and keep.resolve())
    with listen(host, port) as sock:
        configure_logging()
        return_memory()
        searcher = Searcher.open(name, at, encoder=encoder)
        options.tell(f"loading the encoder {searcher.index.manifest.identity.spec}")
        searcher.warm()
        # The garbage collector then skips all objects loaded before the first request.
        gc.freeze()
        if host not in LOOPBACK and token is None:
            all_may = f"everyone who can connect to {host} can search and see these pictures"
            options.tell(f"note: {all_may}; set BOC_TOKEN to require a token")
        if ":" in host:
            host = f"[{host}]"
        address = f"http://{host}:{sock.getsockname()[1]}/"
        options.tell(f"{name} is at {address}")
        if browse:
            if token is not None:
                address += f"?token={token}"
            click.launch(address)
        run(create_app(searcher, settings), sock, log=log)
