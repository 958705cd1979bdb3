"""Define the command boc explain."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from boc.cli import options

if TYPE_CHECKING:
    from boc.explain.score import Explanation


@click.command("explain", cls=options.TextCommand)
@options.name
@click.argument("text_and_id", type=options.sentence, nargs=-1, required=True, metavar="[TEXT] ID")
@click.option(
    "--image",
    type=options.PATH,
    help="Picture to use as the query, instead of a sentence.",
)
@options.as_json
@options.at
@options.encoder
def command(
    name: str,
    text_and_id: tuple[str, ...],
    image: Path | None,
    as_json: bool,
    at: str,
    encoder: str | None,
) -> None:
    """Explain why ID is a hit for a query in the index NAME. The query is a sentence or a picture.

    The command prints the ten shared terms that contribute most to the score. Each line shows the
    contribution as a percentage, the frequencies of the term in the query and in the item with
    their product, and typical words. The products add up to the score before re-ranking. --json
    adds regions, words and their cosines, which the page of boc serve displays. The search plan
    shows whether a search finds candidates by terms or compares all vectors.

    \b
    Examples: boc explain photos "two dogs play in the snow" 3265162450_5b4e3c5f1b.jpg
              boc explain photos --image dog.jpg 3265162450_5b4e3c5f1b.jpg --json
    """
    if len(text_and_id) != (2 if image is None else 1):
        raise click.UsageError(
            "give TEXT (in quotes) and an item's ID, or --image FILE and an ID",
        )
    from boc.explain.score import explain
    from boc.plan import ALL_COMPARED, usual_way
    from boc.search.searcher import Searcher

    searcher = Searcher.open(name, at, encoder=encoder)
    text = text_and_id[0] if image is None else None
    plan = usual_way(searcher.index)
    explanation = explain(searcher, text_and_id[-1], text, image)
    if as_json:
        said = {"query": explanation.query.content, "content": explanation.item.content}
        said["plan"] = plan
        options.print_json({**said, **explanation.to_dict()})
    else:
        print_terms(explanation)
        if explanation.by_vectors is not None:
            click.echo(f"vectors  {explanation.by_vectors:.4f}, the score of the vectors")
        if plan == "all":
            options.tell(ALL_COMPARED)
    if explanation.missing:
        options.tell(f"only terms are shown: {explanation.missing}")


def print_terms(explanation: Explanation) -> None:
    """Print the terms that the query and the item share, and the words of the item."""
    from boc.codecs.surrogate_text import FIELD
    from boc.explain.score import LABELLED

    for match in explanation.matches[:LABELLED]:
        product = f"{match.query_frequency} x {match.item_frequency} = {match.product}"
        share = f"{100 * match.product / explanation.score:5.1f} %"
        line = f"{share}  t{match.term:<6} {product:<24}"
        if match.label:
            line += f"  {options.plain(', '.join(match.label.words))}"
        click.echo(line.rstrip())
    others = explanation.matches[LABELLED:]
    if others:
        rest = sum(match.product for match in others)
        click.echo(f"{100 * rest / explanation.score:5.1f} %  and {len(others)} others, {rest}")
    if explanation.offset is not None:
        click.echo(
            f"offset   {explanation.offset:+.4f} included in the score of the vectors to correct "
            "hubs",
        )
    if explanation.matches:
        click.echo(f"score    {explanation.score}")
    else:
        id = explanation.item.id
        options.tell(
            f"{id} shares no terms with this query; it is a hit because its vector is close",
        )
    if FIELD in explanation.item.fields:
        counts = Counter(str(explanation.item.fields[FIELD]).split())
        words = [f"{options.plain(word)} {count}" for word, count in counts.items()]
        click.echo(f"words    {', '.join(words)}")
