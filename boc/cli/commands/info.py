"""Define the command boc info."""

from collections.abc import Mapping
from typing import Any

import click

from boc.cli import options


@click.command("info")
@click.argument("name", required=False)
@options.at
@options.as_json
def command(name: str | None, at: str, as_json: bool) -> None:
    """Show the contents and settings of the index NAME. Without NAME, list the indexes and the
    features of the backend.

    The number of bytes per item does not include replicas; each replica on a server needs the same
    space.

    \b
    Examples: boc info photos
              boc info --at elastic+https://localhost:9200
    """
    from boc import plugins
    from boc.manage.facts import index_facts
    from boc.plan import ALL_COMPARED

    backend = plugins.backend(at)
    if name is None:
        about = backend.about()
        names = backend.names()
        if as_json:
            options.print_json({**about, "indexes": names})
        else:
            print_rows({**about, "indexes": ", ".join(names) or "none"})
        return
    facts = index_facts(backend.open(plugins.check_name(name)))
    if as_json:
        options.print_json(facts)
        return
    counts = facts["items"]
    rounded = ", stored rounded" if facts["rounded"] else ""
    total = max(1, sum(counts.values()))
    fields = [f"{field}:{kind}" for field, kind in facts["fields"].items()]
    way = ALL_COMPARED if facts["plan"] == "all" else f"plan {facts['plan']}"
    hubs = "not corrected, because the encoder has no query bank"
    if facts["offsets"]:
        hubs = "corrected by offsets from the query bank of the encoder"
    # Servers report sizes only to users with the privilege "monitor".
    stored = "unknown, because this user lacks the privilege monitor"
    if facts["bytes"]:
        parts = [f"{part} {n / total:.0f}" for part, n in facts["bytes"].items() if n]
        stored = f"{sum(facts['bytes'].values()) / total:.0f} per item ({', '.join(parts)})"
    print_rows(
        {
            "items": f"{options.amount(counts['image'], 'picture')}, "
            f"{options.amount(counts['text'], 'caption')}",
            "code": facts["code"] or "a chain of steps without a name",
            "steps": ", ".join(facts["steps"]),
            "terms": facts["terms"],
            "postings": f"{facts['postings']} ({facts['postings'] / total:.1f} per item)",
            "vectors": f"{facts['dimensions']} x {facts['vectors']}{rounded}",
            "hubs": hubs,
            "concepts": facts["concepts"] or "none",
            "metadata": ", ".join(fields) or "none",
            "re-rank": f"{facts['rerank']}, {facts['rm']:g} candidates per hit; {way}",
            "recall": describe_recall(facts["recall"], facts["plan"]),
            "bytes": stored,
            "encoder": facts["encoder"],
            "weights": f"SHA-256 {facts['weights'][:16]}...",
            "made": f"{facts['created']} by {facts['maker']}, format {facts['format']}",
        },
    )


def print_rows(rows: Mapping[str, object]) -> None:
    """Print each label with its value on a line."""
    for label, value in rows.items():
        click.echo(f"{label:9s} {options.plain(value)}")


def describe_recall(recall: dict[str, Any], plan: str) -> str:
    """Describe the target recall of the budgets and the measured recall."""
    if not recall:
        return "no target; the code has default budgets"
    if plan == "all" or "measured" not in recall:
        return f"{recall['target']:g} (target); all items are compared, so searches are exact"
    low = (
        ""
        if recall["measured"] >= recall["target"]
        else "; reaching the target would make searches at least 1.5 times as slow"
    )
    return (
        "{target:g} (target), {measured:.3f} ({low:.3f} to {high:.3f}) measured with {queries} "
        "{source} as queries on {items} items"
    ).format(**recall) + low
