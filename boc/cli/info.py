"""boc info."""

from __future__ import annotations

from itertools import islice

import click

from boc.cli import _options


@click.command("info")
@click.argument("name")
@_options.at
@_options.as_json
def command(name: str, at: str, as_json: bool) -> None:
    """Say what the index NAME holds and how it was made.

    \b
    Example: boc info photos
    """
    from boc import registry
    from boc.pipeline import check_name

    index = registry.backend(at).open(check_name(name))
    manifest = index.manifest
    if as_json:
        click.echo(manifest.to_json())
        return
    total = sum(manifest.items.values())
    steps = iter(_step(entry["name"], entry["params"]) for entry in manifest.codec["steps"])
    code = " + ".join(", ".join(islice(steps, count)) for count in manifest.codec["chains"])
    for label, value in (
        ("items", f"{manifest.items['image']} pictures, {manifest.items['text']} captions"),
        ("code", code),
        ("terms", f"{manifest.codec['n_terms']}"),
        ("postings", f"{manifest.postings} ({manifest.postings / max(1, total):.1f} an item)"),
        ("vectors", f"{manifest.identity.dim} x {manifest.vector_dtype}"),
        ("concepts", manifest.concept_dtype or "none"),
        ("re-rank", f"{manifest.rerank}, {manifest.rm:g} candidates for each hit"),
        ("bytes", _bytes(index.sizes(), max(1, total))),
        ("encoder", manifest.identity.spec),
        ("weights", f"SHA-256 {manifest.identity.digest[:16]}..."),
        ("made", f"{manifest.created} by {manifest.maker}, format {manifest.format}"),
    ):
        click.echo(f"{label:9s} {value}")


def _step(name: str, params: dict[str, object]) -> str:
    given = ", ".join(f"{key}={value}" for key, value in params.items() if value is not None)
    return f"{name}({given})"


def _bytes(sizes: dict[str, int], items: int) -> str:
    parts = ", ".join(f"{part} {size / items:.0f}" for part, size in sizes.items() if size)
    return f"{sum(sizes.values()) / items:.0f} an item ({parts})"
