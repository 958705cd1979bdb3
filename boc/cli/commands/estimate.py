"""boc estimate."""

from __future__ import annotations

import json
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from boc.cli import options

if TYPE_CHECKING:
    from boc.evaluate.capacity import Estimate
    from boc.names import Metric

SAMPLE, ON_SERVER = 25_000, 50_000
"""Items to load: several batches, and so many that searches read compact codes. A load takes seconds that items do not
cause; on a server they vary by what 5000 items take."""
UNITS = ("bytes", "kB", "MB", "GB", "TB")


@click.command("estimate", epilog=options.code_help())
@click.argument("sources", metavar="SOURCE...", type=options.PATH, nargs=-1, required=True)
@click.option("--items", type=click.IntRange(1), required=True, help="Number of items of the planned index.")
@options.at
@click.option(
    "--sample",
    type=click.IntRange(2),
    help=f"Maximum number of items to load.  [default: {SAMPLE}; on a server {ON_SERVER}]",
)
@options.coding
@options.metadata
@options.as_json
def command(
    sources: tuple[Path, ...],
    items: int,
    at: str,
    sample: int | None,
    coding: options.Coding,
    metadata: Path | None,
    as_json: bool,
) -> None:
    """Estimate bytes, times and shards of an index of many items, from similar items in SOURCE.

    SOURCE is one or more feature files with vectors. A fifth of a sample, and then the whole sample, is loaded into
    temporary indexes at --at (of a folder: into a temporary folder), which are removed. The figures are those of merged
    indexes, for one copy: each replica takes the bytes once more.

    \b
    Examples: boc estimate photos.h5 --items 10000000 --at elastic+https://localhost:9200
              boc estimate photos.h5 --items 1000000 --code "dictionary(terms=16384)"
    """
    from boc import plugins
    from boc.evaluate.capacity import extrapolate, learn, measure, size_of
    from boc.indexes.build import codec_maker
    from boc.indexes.load import new_manifest
    from boc.inputs.features import FeatureFiles
    from boc.inputs.metadata import Metadata

    make = codec_maker(coding.code)
    table = Metadata.read(metadata) if metadata is not None else None
    on_server = not at.startswith("file:")
    with ExitStack() as stack:
        file = stack.enter_context(FeatureFiles(sources))
        if file.header.kind != "embeddings":
            raise click.UsageError(f"{file.path} holds no vectors; make a file of them with boc extract --encoder")
        if not on_server:
            at = f"file:{stack.enter_context(tempfile.TemporaryDirectory(prefix='boc-estimate-'))}"
        codec, learning = learn(file, make(file.header.identity), items)
        manifest = new_manifest(
            file,
            codec,
            rerank=cast("Metric", coding.rerank),
            vectors=coding.vectors,
            concepts=coding.concepts,
            metadata=table,
        )
        size = min(sample or (ON_SERVER if on_server else SAMPLE), size_of(file))
        with options.bar("loading", size + size // 5) as bar:
            part, whole = measure(file, at, codec, manifest, table, size=size, searches=not on_server, tick=bar.update)
    capacity = extrapolate(
        part,
        whole,
        items,
        growth=plugins.backend(at).growth,
        n_terms=codec.n_terms,
        codec_bytes=sum(array.nbytes for array in codec.arrays().values()),
        learning=learning,
    )
    if as_json:
        derived = {name: getattr(capacity, name) for name in ("bytes", "page_cache", "shards", "heap")}
        click.echo(json.dumps({**asdict(capacity), **derived}))
        return
    for label, value in _lines(capacity, on_server=on_server):
        click.echo(f"{label:10s} {value}")


def _lines(capacity: Estimate, *, on_server: bool) -> list[tuple[str, str]]:
    part, whole = capacity.measured
    rate = capacity.items / capacity.seconds
    each = {name: size for name, size in capacity.bytes_each.items() if size}
    lines = [
        ("measured", f"{whole.items:,} items in {whole.seconds:.1f} s, {part.items:,} in {part.seconds:.1f} s"),
        ("for", f"{capacity.items:,} items, extrapolated: {capacity.items / whole.items:,.3g} times what was measured"),
        *((name, f"{_bytes(size * capacity.items)}, {size:,.0f} bytes per item") for name, size in each.items()),
        ("fixed", f"{_bytes(capacity.fixed)}: the arrays of the code"),
        *([("lists", f"{_bytes(capacity.table)}: the table of posting lists")] if capacity.table else []),
        ("in all", f"{_bytes(capacity.bytes)}, {capacity.bytes / capacity.items:,.0f} bytes per item"),
        ("learning", f"{_time(capacity.learning.seconds)}, {_bytes(capacity.learning.memory)} of memory"),
        ("load", f"{_time(capacity.seconds)}, {rate:,.0f} items per second, with merging"),
        *([("search", f"{1000 * capacity.search:.2g} ms per query, alone, in memory")] if capacity.search else []),
        ("page cache", f"{_bytes(capacity.page_cache)}, for searches that do not wait for the disk"),
    ]
    if on_server:
        lines += [
            ("shards", f"{capacity.shards}: one for each 30 GB or 10 million items, whichever gives more"),
            ("heap", f"{_bytes(capacity.heap)} over all nodes: 1 GB, and 1 GB for each 20 shards"),
        ]
    return lines


def _bytes(size: float) -> str:
    power = 0
    while size >= 1000 and power < len(UNITS) - 1:
        size, power = size / 1000, power + 1
    return f"{size:.3g} {UNITS[power]}"


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
