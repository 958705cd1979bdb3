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
    default="json",
    show_default=True,
    help="The body alone, a curl command, a Python program, or lines for the console of Kibana or Dashboards.",
)
@click.option("--template", is_flag=True, help="Print the call of the stored search template, with its parameters.")
@click.option("--store", is_flag=True, help="Store the search template of the index on its server; TEXT is left out.")
@click.option("--remove", is_flag=True, help="Remove the stored search template; TEXT is left out.")
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
    template: bool,
    store: bool,
    remove: bool,
    at: str,
    encoder: str | None,
    device: str,
) -> None:
    """Print the request with which any program searches the index NAME on its server.

    Its answer has the hits of boc search with the same options. Their _score is the dot product plus 1.01. Passwords
    and keys are not printed, but the variables that hold them are: BOC_PASSWORD or BOC_API_KEY.

    With --template a client sends only what varies, the terms, the vector, k and filters, to a search template that
    --store has stored on the server. It belongs to the index as it is now, and is removed with it or by --remove.

    \b
    Examples: boc query photos "two dogs play in the snow" --at elastic+https://USER@HOST:9200
              boc query photos "a dog -snow" -k 20 --filter "year>=2020" --as curl
              boc query photos "a dog" --as kibana
              boc query photos --store
              boc query photos "a dog" --template --as curl
    """
    if store or remove:
        if (store and remove) or text is not None or images:
            raise click.UsageError("give --store or --remove alone, without TEXT and --image")
        _change_template(name, at, store=store)
        return
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
        Query.of(sentence, minus=minus, images=images), SearchOptions(k, rm, find, rerank, filters), template=template
    )
    click.echo(request.written(form))


def _change_template(name: str, at: str, *, store: bool) -> None:
    from boc import plugins
    from boc.plugins import check_name

    backend = plugins.backend(at)
    if store:
        id = backend.store_template(check_name(name))
        click.echo(f"{name}: the search template {id} is stored; boc query {name} TEXT --template prints its call")
    else:
        backend.remove_template(check_name(name))
        click.echo(f"{name}: its search template is removed")
