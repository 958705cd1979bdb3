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
    help="Action for items whose files are missing [default: remove, but keep items of missing or "
    "empty folders].",
)
@click.option(
    "--watch",
    "watching",
    is_flag=True,
    help="Keep running until Ctrl-C is pressed, and sync whenever files change.",
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
    """Update the index NAME to match its pictures. SOURCE is the folders or the CSV that the index
    was built from.

    Only new and changed pictures are encoded, with the encoder and the code of the index. Renamed
    and moved pictures keep their vectors; pictures whose files are missing are removed. Files are
    compared by size and time, and by content if the size or the time differs. Unreadable pictures
    are not retried until their files change. If the command is killed, run it again to resume.
    --ocr recognises text in new and changed pictures, and in pictures not yet processed by OCR.

    The command removes no items if a folder is missing or empty, as on an unmounted disk, or if
    more than half of the pictures or captions would be removed. If a subfolder is missing or empty,
    the command keeps its pictures and prints its name; to remove these pictures, use --missing
    remove. --missing keep keeps all items whose files are missing, such as items on an unmounted
    disk.

    With --watch, the encoder stays loaded, and each sync that changes items prints a line.

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
            "--missing remove-many cannot be combined with --watch; run a single sync and check "
            "its result",
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
    parts.append(f"{report.same:,} unchanged")
    state = " is up to date" if report.up_to_date else ""
    click.echo(f"{name}{state}: {', '.join(parts)}")
    if report.away:
        folders = list(report.away)[: options.FEW]
        options.tell(
            f"missing folders: {len(report.away)} (for example {', '.join(folders)}); their "
            "pictures are kept; mount the disk, or remove the pictures with --missing remove",
        )
    if report.unreadable:
        options.tell(
            f"{len(report.unreadable)} pictures are not in the index, because their files are "
            f"missing or could not be read (for example {report.unreadable[0]})",
        )
