"""``python -m tests.servers``: fetch and start search servers by hand."""

import signal
import sys
import tempfile
from pathlib import Path

import click

from . import KINDS, MismatchError, Server, StartError, UnavailableError
from .fetch import cache, fetch, place
from .fixtures import foreign_server


@click.group()
def main() -> None:
    """Search servers for the tests, kept in BOC_SERVERS (~/.cache/boc-servers)."""


@main.command(name="fetch")
@click.argument("names", nargs=-1, type=click.Choice(list(KINDS)), metavar="[KIND]...")
def get(names: tuple[str, ...]) -> None:
    """Fetch these kinds through Maven; without names, all that the tests use and no address stands
    for."""
    failed = False
    for name in names or KINDS:
        kind = KINDS[name]
        try:
            if place(kind).exists() or (not names and foreign_server(kind)):
                continue
            click.echo(
                f"fetching {name} {kind.version} ({kind.megabytes} MB) into {cache()}",
                err=True,
            )
            fetch(kind)
        except (UnavailableError, MismatchError) as error:
            click.echo(f"{name}: {error}", err=True)
            failed = True
    sys.exit(failed)


@main.command()
@click.argument("name", type=click.Choice(list(KINDS)), metavar="KIND")
@click.option("--port", default=9200, show_default=True, help="HTTP port on 127.0.0.1.")
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="Its folder; by default a new one.",
)
@click.option("--heap", default="1g", show_default=True, help="Size of the Java heap.")
def start(name: str, port: int, data: Path | None, heap: str) -> None:
    """Start a server in the foreground, fetched if need be; prints its address when it answers.
    Ctrl-C stops it."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    server = Server(
        name,
        data or Path(tempfile.mkdtemp(prefix=f"{name}-")),
        heap=heap,
        port=port,
        optimise=True,
    )
    try:
        with server.start():
            click.echo(server.url)
            signal.pause()
    except KeyboardInterrupt:
        server.stop()
    except (UnavailableError, MismatchError, StartError) as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
