"""Define the command boc sync."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from boc.cli import options
from boc.errors import BocError

if TYPE_CHECKING:
    from boc.manage.sync import SyncReport


@click.command("sync")
@options.name
@options.sources
@click.option(
    "--missing",
    type=click.Choice(["remove", "remove-many", "keep"]),
    help="Action for items whose files are gone [default: keep items of missing or empty folders, "
    "remove others].",
)
@click.option(
    "--watch",
    "watching",
    is_flag=True,
    help="Keep running until Ctrl-C, and sync whenever files change.",
)
@options.at
@options.encoder
@options.metadata
@options.ocr
@options.exclude
@options.verbose
def command(
    name: str,
    sources: tuple[Path, ...],
    missing: str | None,
    watching: bool,
    **keywords: Any,
) -> None:
    """Bring the index NAME in line with its pictures. SOURCE is the folders or the CSV that the
    index was made from.

    Only new and changed pictures are encoded, with the encoder and the code of the index. A renamed
    or moved picture keeps its vector; a picture whose file is gone is removed. Files are compared
    by size and time, and by contents if size or time differs. An unreadable picture is not retried
    until its file changes. If the command is killed, run it again to continue. --ocr reads the
    words inside new and changed pictures, and inside pictures not yet read by OCR.

    Nothing is removed if a folder is missing or empty, as on an unmounted disk, or if more than
    half of the pictures or captions would be removed. If a subfolder is missing or empty, its
    pictures are kept and the subfolder is named; --missing remove removes these pictures. --missing
    keep keeps all items whose files are missing, such as items on a detached disk.

    With --watch, each sync that changes items prints a line, and the encoder stays loaded.

    \b
    Examples: boc sync photos ~/Pictures
              boc sync photos ~/Pictures /media/disk/DCIM --missing keep
              boc sync photos ~/Pictures --watch
              boc sync flickr captions.csv --images flickr30k-images
    """
    if not options.on_command_line("encoder"):
        keywords["encoder"] = None
    keywords["exclude"] = keywords["exclude"] or None
    keywords["keep_missing"] = {"keep": True, "remove": False}.get(missing or "")
    if not watching:
        from boc.manage.sync import sync_index

        with options.bars() as progress:
            report = sync_index(
                name,
                sources,
                remove_many=missing == "remove-many",
                progress=progress,
                **keywords,
            )
        _print(name, report)
        options.report(report.failed, report.added + report.changed + report.moved + report.same)
        return
    if missing == "remove-many":
        raise click.UsageError(
            "--missing remove-many cannot go with --watch; run a single sync, and check its result",
        )
    from boc.manage.watch import watch

    def show(news: SyncReport | BocError) -> None:
        if isinstance(news, BocError):
            options.tell(f"{name}: {options.one_line(news)}")
            return
        _print(name, news)
        options.report(news.failed, 1)

    watch(name, sources, show, **keywords)


def _print(name: str, report: SyncReport) -> None:
    counts = {
        "added": report.added,
        "changed": report.changed,
        "moved": report.moved,
        "removed": report.removed,
        "missing and kept": report.missing,
    }
    parts = [f"{count:,} {what}" for what, count in counts.items() if count]
    parts.append(f"{report.same:,} as they were")
    state = " is up to date" if report.up_to_date else ""
    click.echo(f"{name}{state}: {', '.join(parts)}")
    if report.away:
        folders = list(report.away)[: options.FEW]
        options.tell(
            f"folders away: {len(report.away)} (such as {', '.join(folders)}); their pictures are "
            "kept; mount the disk, or remove them with --missing remove",
        )
    if report.unreadable:
        options.tell(
            f"{len(report.unreadable)} pictures are not in the index, since they have no file or "
            f"could not be read before (such as {report.unreadable[0]})",
        )
