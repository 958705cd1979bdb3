"""boc search."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from boc.cli import options

if TYPE_CHECKING:
    from boc.types import Hit


@click.command("search")
@options.name
@click.argument("text", required=False)
@click.option("--queries", type=click.File(encoding="utf-8"), help="Search by each line of this file (- for stdin).")
@click.option("--image", type=options.PATH, help="Search by this picture.")
@click.option("--features", type=options.PATH, help="Search by the vectors of this feature file.")
@click.option("--id", "item", help="The one item of --features to search by [default: each].")
@click.option("-k", default=10, show_default=True, help="Hits wanted.")
@click.option("--rm", type=float, help="Candidates re-scored for each hit asked [default: the index's].")
@click.option(
    "--rerank",
    type=click.Choice(["dot", "mrsw", "mwsr", "symm", "mravgw"]),
    help="What scores them: dense vectors, or an alignment of concept sets [default: the index's].",
)
@click.option(
    "--find", type=click.Choice(["image", "text"]), help="What to find [default: pictures, if there are any]."
)
@click.option(
    "--filter",
    "conditions",
    multiple=True,
    metavar="FIELD=VALUE",
    help="Only items whose metadata is so; also != < <= > >=. Several must all hold.",
)
@click.option(
    "--hybrid",
    type=click.Choice(["rrf", "sum"]),
    help="Count the words of the sentence too, by fusing both rankings or adding both scores.",
)
@click.option("--words-weight", type=float, help="What --hybrid sum multiplies the score of the words by.")
@click.option("--html", type=options.PATH, help="Write a page with the hits to look at.")
@options.as_json
@options.at
@options.encoder
@options.device
def command(
    name: str,
    text: str | None,
    queries: TextIO | None,
    image: Path | None,
    features: Path | None,
    item: str | None,
    k: int,
    rm: float | None,
    rerank: str | None,
    find: str | None,
    conditions: tuple[str, ...],
    hybrid: str | None,
    words_weight: float | None,
    html: Path | None,
    as_json: bool,
    at: str,
    encoder: str | None,
    device: str,
) -> None:
    """Search the index NAME by a sentence, by a picture, or by vectors.

    \b
    Examples: boc search photos "two dogs play in the snow"
              boc search photos --image dog.jpg --html hits.html
              boc search photos --image dog.jpg --find text
              boc search photos "a dog in the snow" --filter "year>=2020" --filter tag=winter
    """
    if sum(given is not None for given in (text, queries, image, features)) != 1:
        raise click.UsageError("give one of TEXT (in quotes), --queries FILE, --image FILE or --features FILE")
    if item is not None and features is None:
        raise click.UsageError("--id names an item of --features FILE; add that")
    from boc.atomic_files import check_writable
    from boc.inputs.metadata import parse_filter
    from boc.search import Searcher

    if html is not None:
        check_writable(html)
    searcher = Searcher.open(name, at, encoder=encoder, device=device)
    wanted: dict[str, Any] = {"k": k, "rm": rm, "find": find, "rerank": rerank}
    wanted["filters"] = [parse_filter(each, searcher.index.manifest.fields) for each in conditions]
    wanted |= {"hybrid": hybrid, "words_weight": words_weight}
    if features is not None:
        answers = _by_vectors(searcher, features, item, **wanted)
    elif image is not None:
        answers = [(str(image), searcher.search(image=image, **wanted))]
    else:
        texts = [text] if text is not None else _lines(queries)
        answers = list(zip(texts, searcher.search_texts(texts, **wanted), strict=True))
    if html is not None:
        from boc.cli.contact_sheet import write_sheet

        write_sheet(html, answers)
    for query, hits in answers:
        _print(query, hits, as_json=as_json, titled=len(answers) > 1)


def _lines(queries: TextIO | None) -> list[str]:
    lines = [line.strip() for line in queries or () if line.strip()]
    if not lines:
        raise click.UsageError("--queries holds no sentence; write one a line")
    return lines


def _by_vectors(searcher: Any, path: Path, item: str | None, **options: Any) -> list[tuple[str, list[Hit]]]:
    from boc.inputs.query_files import read_queries

    answers: list[tuple[str, list[Hit]]] = []
    for items, queries in read_queries(path, searcher.index.manifest.identity, item):
        texts = [i.content for i in items] if queries.modality == "text" else None
        found = searcher.search_vectors(queries, texts=texts, **options)
        answers += zip(texts or [i.id for i in items], found, strict=True)
    return answers


def _print(query: str, hits: list[Hit], *, as_json: bool, titled: bool) -> None:
    if as_json:
        click.echo(json.dumps({"query": query, "hits": [_record(hit) for hit in hits]}, ensure_ascii=False))
        return
    if titled:
        click.echo(query)
    for rank, hit in enumerate(hits, 1):
        click.echo(
            f"{rank:3d}  {hit.score:7.4f}  {hit.item.id}"
            + (f"  {hit.item.content}" if hit.item.modality == "text" else "")
        )
    if not hits:
        click.echo("nothing shares a term with this query", err=True)


def _record(hit: Hit) -> dict[str, Any]:
    item = hit.item
    found = {"id": item.id, "modality": item.modality, "score": hit.score, "content": item.content}
    return {**found, "fields": dict(item.fields)} if item.fields else found
