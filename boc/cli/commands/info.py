"""boc info."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from boc.cli import options

if TYPE_CHECKING:
    from boc.plugins import Backend


@click.command("info")
@click.argument("name", required=False, shell_complete=options.complete_names)
@click.option(
    "--items",
    type=click.IntRange(1),
    help="Compute the bytes of an index of so many items like these.",
)
@options.at
@options.as_json
def command(name: str | None, items: int | None, at: str, as_json: bool) -> None:
    """Show what the index NAME holds and how it was made. Without NAME, list the indexes and what
    the backend supports.

    With --items it prints the bytes by part of an index of so many items like those of NAME, with
    its code. The figures are those of one copy; each replica of a server takes them once more.

    \b
    Examples: boc info photos
              boc info --at elastic+https://localhost:9200
              boc info photos --items 10000000
    """
    from boc import plugins
    from boc.manage.budgets import DRIFT
    from boc.manage.facts import index_facts, planned_sizes
    from boc.plugins import check_name

    if name is None and items is not None:
        raise click.UsageError("--items goes with an index, whose items are like those to come")
    backend = plugins.backend(at)
    if name is None:
        _place(backend, as_json=as_json)
        return
    index = backend.open(check_name(name))
    if items is not None:
        sizes = planned_sizes(index, items)
        click.echo(json.dumps({"items": items, "bytes": sizes}) if as_json else _plan(items, sizes))
        return
    facts = index_facts(index)
    if as_json:
        click.echo(json.dumps(facts, ensure_ascii=False))
        return
    counts = facts["items"]
    rounded = ", stored rounded" if facts["rounded"] else ""
    total = max(1, sum(counts.values()))
    for label, value in (
        ("items", f"{counts['image']} pictures, {counts['text']} captions"),
        ("code", facts["code"] or "none that has a name"),
        ("steps", ", ".join(facts["steps"])),
        ("terms", "; ".join([f"{facts['terms']}", *facts["faults"]])),
        ("postings", f"{facts['postings']} ({facts['postings'] / total:.1f} per item)"),
        ("vectors", f"{facts['dimensions']} x {facts['vectors']}{rounded}"),
        ("concepts", facts["concepts"] or "none"),
        (
            "metadata",
            ", ".join(f"{field}:{kind}" for field, kind in facts["fields"].items()) or "none",
        ),
        (
            "re-rank",
            f"{facts['rerank']}, {facts['rm']:g} candidates for each hit; plan {facts['plan']}",
        ),
        ("recall", _recall(facts["recall"]) + (f"; it {DRIFT}" if facts["drifted"] else "")),
        ("bytes", _bytes(facts["bytes"], total)),
        ("encoder", facts["encoder"]),
        ("weights", f"SHA-256 {facts['weights'][:16]}..."),
        ("made", f"{facts['created']} by {facts['maker']}, format {facts['format']}"),
    ):
        click.echo(f"{label:9s} {options.plain(value)}")


def _recall(recall: dict[str, Any]) -> str:
    """Say what recall the budgets were chosen for, and what they reached."""
    if "measured" not in recall:
        return (
            f"{recall['target']:g} aimed at; few items, all are compared"
            if recall
            else "budgets given by hand"
        )
    queries = f"{recall['queries']} {recall['source']}"
    low = "" if recall["measured"] >= recall["target"] else "; nothing reached it"
    return (
        f"{recall['target']:g} aimed at, {recall['measured']:.3f} ({recall['low']:.3f} to "
        f"{recall['high']:.3f}) "
        f"measured with {queries} as queries when it held {recall['items']} items{low}"
    )


def _place(backend: Backend, *, as_json: bool) -> None:
    about = backend.about()
    names = backend.names()
    if as_json:
        click.echo(json.dumps({**about, "indexes": names}, ensure_ascii=False))
        return
    for label, value in {**about, "indexes": ", ".join(names) or "none"}.items():
        click.echo(f"{label:9s} {options.plain(value)}")


def _bytes(sizes: dict[str, int], items: int) -> str:
    if not sizes:
        return "not told to this user, who lacks the right monitor"
    parts = ", ".join(f"{part} {size / items:.0f}" for part, size in sizes.items() if size)
    return f"{sum(sizes.values()) / items:.0f} per item ({parts})"


def _plan(items: int, sizes: dict[str, int]) -> str:
    rows = [(part, size) for part, size in sizes.items() if size] + [
        ("in all", sum(sizes.values())),
    ]
    return "\n".join(
        f"{part:9s} {size / 1e6:,.1f} MB, {size / items:,.0f} bytes per item" for part, size in rows
    )
