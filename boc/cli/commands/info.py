"""boc info."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from boc.cli import options

if TYPE_CHECKING:
    from boc.plugins import Backend


@click.command("info")
@click.argument("name", required=False, shell_complete=options.complete_names)
@options.at
@options.as_json
def command(name: str | None, at: str, as_json: bool) -> None:
    """Show what the index NAME holds and how it was made; without NAME, list the indexes and what the backend supports.

    \b
    Examples: boc info photos
              boc info --at elastic+https://localhost:9200
    """
    from boc import plugins
    from boc.codecs import code_of
    from boc.plugins import check_name

    backend = plugins.backend(at)
    if name is None:
        _place(backend, as_json=as_json)
        return
    index = backend.open(check_name(name))
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
    given = ", ".join(f"{key}={value}" for key, value in params.items() if value is not None)
    return f"{name}({given})"


def _bytes(sizes: dict[str, int], items: int) -> str:
    parts = ", ".join(f"{part} {size / items:.0f}" for part, size in sizes.items() if size)
    return f"{sum(sizes.values()) / items:.0f} per item ({parts})"
