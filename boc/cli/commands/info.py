"""boc info."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from boc.cli import options

if TYPE_CHECKING:
    from boc.plugins import Backend

UNITS = ("bytes", "kB", "MB", "GB", "TB")


@click.command("info")
@click.argument("names", metavar="[NAME|FILE...]", nargs=-1, shell_complete=options.complete_names)
@click.option("--items", type=click.IntRange(1), help="Compute the bytes of an index of so many items like these.")
@options.at
@options.as_json
def command(names: tuple[str, ...], items: int | None, at: str, as_json: bool) -> None:
    """Show what the index NAME holds and how it was made; without NAME, list the indexes and what the backend supports.

    With --items it prints the bytes by part of an index of so many items: with the code of the index NAME, or, for
    feature files, with the default code, of which a sample is loaded into a temporary folder. The figures are those of
    one copy; each replica of a server takes them once more.

    \b
    Examples: boc info photos
              boc info --at elastic+https://localhost:9200
              boc info photos.h5 --items 10000000
    """
    from boc import plugins
    from boc.codecs import code_of
    from boc.inputs.features import SUFFIXES
    from boc.plugins import check_name

    files = [Path(name) for name in names if Path(name).suffix.lower() in SUFFIXES]
    if len(names) > 1 and len(files) < len(names):
        raise click.UsageError("give one index, or feature files only")
    if bool(files) > (items is not None) or bool(items) > bool(names):
        raise click.UsageError("--items goes with an index or feature files, and feature files go with --items")
    backend = plugins.backend(at)
    if not names:
        _place(backend, as_json=as_json)
        return
    if items is not None:
        from boc.indexes.sizes import planned_sizes, sampled_sizes

        sizes = sampled_sizes(files, items) if files else planned_sizes(backend.open(check_name(names[0])), items)
        click.echo(json.dumps({"items": items, "bytes": sizes}) if as_json else _plan(items, sizes))
        return
    index = backend.open(check_name(names[0]))
    manifest = index.manifest
    if as_json:
        click.echo(manifest.to_json())
        return
    total = sum(manifest.items.values())
    steps = ", ".join(_step(entry["name"], entry["params"]) for entry in manifest.codec["steps"])
    rounded = "" if index.exact_vectors else ", stored rounded"
    for label, value in (
        ("items", f"{manifest.items['image']} pictures, {manifest.items['text']} captions"),
        ("code", str(code_of(manifest.codec) or "none that has a name")),
        ("steps", steps),
        ("terms", f"{manifest.codec['n_terms']}"),
        ("postings", f"{manifest.postings} ({manifest.postings / max(1, total):.1f} per item)"),
        ("vectors", f"{manifest.identity.dim} x {manifest.vector_dtype}{rounded}"),
        ("concepts", manifest.concept_dtype or "none"),
        ("metadata", ", ".join(f"{field}:{kind}" for field, kind in manifest.fields.items()) or "none"),
        ("re-rank", f"{manifest.rerank}, {manifest.rm:g} candidates for each hit"),
        ("bytes", _bytes(index.sizes(), max(1, total))),
        ("encoder", manifest.identity.spec),
        ("weights", f"SHA-256 {manifest.identity.digest[:16]}..."),
        ("made", f"{manifest.created} by {manifest.maker}, format {manifest.format}"),
    ):
        click.echo(f"{label:9s} {options.plain(value)}")


def _place(backend: Backend, *, as_json: bool) -> None:
    about, names = backend.about(), backend.names()
    if as_json:
        click.echo(json.dumps({**about, "indexes": names}, ensure_ascii=False))
        return
    for label, value in {**about, "indexes": ", ".join(names) or "none"}.items():
        click.echo(f"{label:9s} {options.plain(value)}")


def _step(name: str, params: dict[str, object]) -> str:
    arguments = ", ".join(f"{key}={value}" for key, value in params.items() if value is not None)
    return f"{name}({arguments})"


def _bytes(sizes: dict[str, int], items: int) -> str:
    parts = ", ".join(f"{part} {size / items:.0f}" for part, size in sizes.items() if size)
    return f"{sum(sizes.values()) / items:.0f} per item ({parts})"


def _plan(items: int, sizes: dict[str, int]) -> str:
    rows = [(part, size) for part, size in sizes.items() if size] + [("in all", sum(sizes.values()))]
    return "\n".join(f"{part:9s} {_size(size)}, {size / items:,.0f} bytes per item" for part, size in rows)


def _size(size: float) -> str:
    power = 0
    while size >= 1000 and power < len(UNITS) - 1:
        size, power = size / 1000, power + 1
    return f"{size:.3g} {UNITS[power]}"
