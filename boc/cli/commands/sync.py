"""boc sync."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from boc.cli import options
from boc.errors import BocError
from boc.inputs.ocr import check_installed

if TYPE_CHECKING:
    from boc.synchronise.sync import SyncReport


PARENT = "BOC_PARENT_PROCESS"
"""The variable with the id of the process that a watch ends with, if it was started beside the page."""


@click.command("sync")
@options.name
@options.sources
@click.option("--keep-missing", is_flag=True, help="Keep items whose files are gone, such as those of a detached disk.")
@click.option("--remove-many", is_flag=True, help="Remove missing items even if they are more than half of the index.")
@click.option("--watch", "watching", is_flag=True, help="Keep running, and sync whenever files change, until Ctrl-C.")
@options.at
@options.encoder
@options.metadata
@options.ocr
@options.device
@options.as_json
def command(
    name: str,
    sources: tuple[Path, ...],
    ids: Path | None,
    images: Path | None,
    keep_missing: bool,
    remove_many: bool,
    watching: bool,
    at: str,
    encoder: str | None,
    metadata: Path | None,
    ocr: bool,
    device: str,
    as_json: bool,
) -> None:
    """Bring the index NAME in line with SOURCE, the folders of pictures or the CSV that it was made from.

    Only new and changed pictures are encoded, with the encoder and the code of the index. A picture that was renamed or
    moved keeps its vector, and one that is gone is removed. Files are compared by size and time, and by their contents
    where these differ. A picture that cannot be read is not tried again until its file changes. After a kill, the same
    command continues. --ocr reads the words inside new and changed pictures, and inside those of which the index does
    not hold them yet.

    Nothing is removed if a folder is missing or empty, like that of an unmounted disk, or if more than half of the
    index would be removed.

    With --watch a line is printed for each sync that changed something, and the encoder stays loaded.

    \b
    Examples: boc sync photos ~/Pictures
              boc sync photos ~/Pictures /media/disk/DCIM --keep-missing
              boc sync photos ~/Pictures --watch
              boc sync flickr captions.csv --images flickr30k-images
    """
    keywords: dict[str, Any] = {
        "at": at,
        "encoder": encoder if options.given("encoder") else None,
        "metadata": metadata,
        "ids": ids,
        "images": images,
        "keep_missing": keep_missing,
        "ocr": ocr,
        "device": device,
    }
    if not watching:
        bring(name, sources, as_json=as_json, remove_many=remove_many, **keywords)
        return
    if remove_many:
        raise click.UsageError("--remove-many is for one sync, which somebody looks at; leave out --watch")
    from boc.synchronise.watch import watch

    parent = os.environ.get(PARENT)

    def told(news: SyncReport | BocError) -> None:
        if isinstance(news, BocError):
            click.echo(f"{name}: {news}", err=True)
            return
        tell(name, news, as_json=as_json)
        for _, reason in news.failed:
            click.echo(f"left out: {options.plain(reason)}", err=True)

    watch(name, sources, told, stop=lambda: parent is not None and str(os.getppid()) != parent, **keywords)


@contextmanager
def beside(
    name: str, folders: Sequence[Path], at: str, encoder: str | None, device: str, *, ocr: bool = False
) -> Iterator[None]:
    """A process that keeps an index in line while the block runs; its messages go to stderr."""
    if not folders:
        yield
        return
    if find_spec("watchfiles") is None:
        raise BocError("--sync needs the package watchfiles; install it with: pip install 'boc[watch]'")
    if ocr:
        check_installed()
    command = [sys.executable, "-c", "from boc.cli import main; main()", "sync", name, *map(str, folders)]
    command += ["--watch", "--device", device]
    command += [*(["--encoder", encoder] if encoder else []), *(["--ocr"] if ocr else [])]
    process = subprocess.Popen(
        command,
        env={**os.environ, "BOC_AT": at, PARENT: str(os.getpid())},
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr.fileno(),
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def bring(name: str, sources: tuple[Path, ...], *, as_json: bool = False, **keywords: Any) -> None:
    """Sync an index with progress bars, and print what was done."""
    from boc.synchronise.sync import sync_index

    with options.bars() as progress:
        report = sync_index(name, sources, progress=progress, **keywords)
    tell(name, report, as_json=as_json)
    options.report(report.failed)


def tell(name: str, report: SyncReport, *, as_json: bool = False) -> None:
    """Print what a sync did."""
    click.echo(json.dumps({"name": name, **asdict(report)}) if as_json else f"{name}{sentence(report)}")
    if report.unreadable:
        click.echo(
            f"{len(report.unreadable)} pictures are not in the index, since they have no file or could not be read "
            f"before (such as {options.plain(report.unreadable[0])})",
            err=True,
        )


def sentence(report: SyncReport) -> str:
    """What a sync did, behind the name of the index."""
    counts = {
        "added": report.added,
        "changed": report.changed,
        "moved": report.moved,
        "removed": report.removed,
        "missing and kept": report.kept,
        "read for words": report.read,
    }
    told = [f"{count:,} {what}" for what, count in counts.items() if count]
    told.append(f"{report.same:,} as they were")
    return f"{' is up to date' if report.up_to_date else ''}: {', '.join(told)}"
