"""boc query."""

from __future__ import annotations

from pathlib import Path

import click

from boc.cli import options
from boc.names import REQUEST_FORMS, Metric, Modality, RequestForm


@click.command("query")
@options.name
@click.argument("text", type=options.SENTENCE, required=False)
@click.option("--image", "images", type=options.PATH, multiple=True, help="Search by this picture; can be repeated.")
@options.searching
@click.option(
    "--as",
    "form",
    type=click.Choice(REQUEST_FORMS),
    default="body",
    show_default=True,
    help="The body alone, or a curl command.",
)
@options.at
@options.encoder
@options.device
def command(
    name: str,
    text: str | None,
    images: tuple[Path, ...],
    k: int,
    rm: float | None,
    rerank: Metric | None,
    find: Modality | None,
    conditions: tuple[str, ...],
    form: RequestForm,
    at: str,
    encoder: str | None,
    device: str,
) -> None:
    """Print the request with which any program searches the index NAME on its server.

    Its answer has the hits of boc search with the same options. Their _score is the dot product plus 1.01. Passwords
    and keys are not printed, but the variables that hold them are: BOC_PASSWORD or BOC_API_KEY.

    \b
    Examples: boc query photos "two dogs play in the snow" --at elastic+https://USER@HOST:9200
              boc query photos "a dog -snow" -k 20 --filter "year>=2020" --as curl
    """
    if text is None and not images:
        raise click.UsageError("give TEXT (in quotes), or --image FILE")
    from boc.inputs.metadata import parse_filter
    from boc.search.options import SearchOptions
    from boc.search.queries import Query, parse_text
    from boc.search.searcher import Searcher

    searcher = Searcher.open(name, at, encoder=encoder, device=device)
    filters = [parse_filter(each, searcher.index.manifest.fields) for each in conditions]
    sentence, minus = (None, []) if text is None else parse_text(text)
    request = searcher.request(
        Query.of(sentence, minus=minus, images=images), SearchOptions(k, rm, find, rerank, filters)
    )
    click.echo(request.written(form))
