"""boc search."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from boc.cli import options
from boc.names import HYBRIDS, Hybrid, Metric, Modality

if TYPE_CHECKING:
    from boc.search.options import SearchOptions
    from boc.search.searcher import Searcher
    from boc.types import Hit


@click.command("search")
@options.name
@click.argument("text", type=options.SENTENCE, required=False)
@click.option("--queries", type=click.File("rb"), help="Search by each line of this file (- for stdin).")
@click.option("--image", "images", type=options.PATH, multiple=True, help="Search by this picture; can be repeated.")
@click.option("--like", multiple=True, metavar="ID", help="More like this item of the index; can be repeated.")
@click.option("--unlike", multiple=True, metavar="ID", help="Less like this item of the index; can be repeated.")
@click.option("--weight", type=float, help="Weight of pictures and items together, that of TEXT being 1 [default: 1].")
@click.option("--unlike-weight", type=float, help="Weight of all that is unwanted together [default: 0.5].")
@click.option("--features", type=options.PATH, help="Search by the vectors of this feature file.")
@click.option("--id", "item", help="Search by this item of --features only [default: by each item].")
@options.searching
@click.option(
    "--sort",
    metavar="[-]FIELD",
    help="Order the hits by this metadata field, the smallest value first; after a minus, the largest.",
)
@click.option(
    "--hybrid",
    type=click.Choice(HYBRIDS),
    help="Combine with BM25 over the words of the sentence: fuse the rankings (rrf) or add the scores (sum).",
)
@click.option(
    "--keywords",
    is_flag=True,
    help="Search by the words of TEXT alone (BM25), without the encoder: in captions, text fields, and the words of "
    "pictures under --code words.",
)
@click.option("--words-weight", type=float, help="Factor of the BM25 score in --hybrid sum.")
@click.option(
    "--min-confidence",
    type=click.FloatRange(0, 1),
    help="Show the confidence of each hit, and only hits with at least this one (0 shows all, 0.5 is common).",
)
@click.option(
    "--mmr",
    type=click.FloatRange(0, 1),
    help="Variety by maximal marginal relevance: 1 keeps the ranking, smaller values give more varied hits.",
)
@click.option("--collapse", is_flag=True, help="Group near-duplicates under the best of them.")
@click.option("--html", type=options.PATH, help="Write the hits to this page, with their pictures.")
@options.as_json
@options.at
@options.encoder
@options.device
def command(
    name: str,
    text: str | None,
    queries: BinaryIO | None,
    images: tuple[Path, ...],
    like: tuple[str, ...],
    unlike: tuple[str, ...],
    weight: float | None,
    unlike_weight: float | None,
    features: Path | None,
    item: str | None,
    k: int,
    rm: float | None,
    rerank: Metric | None,
    find: Modality | None,
    conditions: tuple[str, ...],
    sort: str | None,
    hybrid: Hybrid | None,
    keywords: bool,
    words_weight: float | None,
    min_confidence: float | None,
    mmr: float | None,
    collapse: bool,
    html: Path | None,
    as_json: bool,
    at: str,
    encoder: str | None,
    device: str,
) -> None:
    """Search the index NAME by a sentence, by pictures, by items, or by vectors.

    TEXT, pictures (--image) and items (--like, --unlike) can be combined. In TEXT, -word or -"some words" says what
    should not be seen; \\-word is a word that begins with a minus.

    \b
    Examples: boc search photos "two dogs play in the snow"
              boc search photos "a dog -snow"
              boc search photos --image dog.jpg --html hits.html
              boc search photos "at night" --image dog.jpg --weight 2
              boc search photos --like 1.jpg --like 2.jpg --unlike 3.jpg
              boc search photos --image dog.jpg --find text
              boc search photos "a dog in the snow" --filter "year>=2020" --filter tag=winter
              boc search photos "a dog in the snow" --filter "taken>=2024-06" --sort -taken
              boc search photos "a submarine" --min-confidence 0.5
              boc search photos "a dog" --collapse --mmr 0.7
              boc search photos "red rocket" --keywords
    """
    composed = text is not None or bool(images or like)
    if sum([composed, queries is not None, features is not None]) != 1:
        raise click.UsageError(
            "give TEXT (in quotes), --image FILE or --like ID, or else one of --queries FILE and --features FILE"
        )
    if not composed and (unlike or weight is not None or unlike_weight is not None):
        raise click.UsageError("--unlike and weights go with TEXT, --image or --like; add one of them")
    if keywords and (features is not None or images or like or unlike):
        raise click.UsageError("--keywords looks for the words of TEXT or --queries; leave pictures and items out")
    if item is not None and features is None:
        raise click.UsageError("--id names an item of --features FILE; add that")
    from boc.inputs.metadata import parse_filter
    from boc.outputs import begins, check_output
    from boc.search.options import SearchOptions
    from boc.search.queries import BETA, GAMMA, Query, parse_text
    from boc.search.searcher import Searcher

    if html is not None:
        check_output(html, begins(*options.PAGE), *images, features, options.named(queries))
    searcher = Searcher.open(name, at, encoder=encoder, device=device)
    filters = [parse_filter(each, searcher.index.manifest.fields) for each in conditions]
    wanted = SearchOptions(
        k, rm, find, rerank, filters, hybrid, words_weight, None, sort, min_confidence, mmr, collapse
    )
    if keywords:
        lines = [text] if text is not None else _lines(queries)
        answers = list(zip(lines, searcher.search_words(lines, wanted), strict=True))
    elif features is not None:
        answers = _by_vectors(searcher, features, item, wanted)
    elif composed:
        sentence, minus = (None, []) if text is None else parse_text(text)
        plus, less = BETA if weight is None else weight, GAMMA if unlike_weight is None else unlike_weight
        asked = Query.of(
            sentence, minus=minus, images=images, like=like, unlike=unlike, weight=plus, unlike_weight=less
        )
        shown = ", ".join([*([] if text is None else [text]), *map(str, images), *like])
        answers = [(shown, searcher.search_query(asked, wanted))]
    else:
        answers = _by_lines(searcher, _lines(queries), wanted)
    if html is not None:
        from boc.cli.contact_sheet import write_sheet

        write_sheet(html, answers)
    for query, hits in answers:
        _print(query, hits, wanted, as_json=as_json, titled=len(answers) > 1)


def _lines(queries: BinaryIO | None) -> list[str]:
    from boc.inputs.text_lines import text_lines

    data = b"" if queries is None else queries.read()
    lines = [line.strip() for line in text_lines(data, f"--queries {getattr(queries, 'name', '')}") if line.strip()]
    if not lines:
        raise click.UsageError("--queries holds no sentence; write one per line")
    return lines


def _by_lines(searcher: Searcher, lines: list[str], wanted: SearchOptions) -> list[tuple[str, list[Hit]]]:
    """Answers to sentences as they were typed; those without unwanted words are one batch."""
    from boc.search.queries import Query, parse_text

    parsed = {line: parse_text(line) for line in lines}
    plain = {line: str(sentence) for line, (sentence, minus) in parsed.items() if not minus}
    answers = dict(zip(plain, searcher.search_texts(list(plain.values()), wanted), strict=True)) if plain else {}
    for line, (sentence, minus) in parsed.items():
        if minus:
            answers[line] = searcher.search_query(Query.of(sentence, minus=minus), wanted)
    return [(line, answers[line]) for line in lines]


def _by_vectors(searcher: Searcher, path: Path, item: str | None, wanted: SearchOptions) -> list[tuple[str, list[Hit]]]:
    from boc.inputs.query_files import read_queries

    answers: list[tuple[str, list[Hit]]] = []
    for items, queries in read_queries(path, searcher.index.manifest.identity, item):
        texts = [i.content for i in items] if queries.modality == "text" else None
        found = searcher.search_vectors(queries, wanted, texts=texts)
        answers += zip(texts or [i.id for i in items], found, strict=True)
    return answers


def _print(query: str, hits: list[Hit], wanted: SearchOptions, *, as_json: bool, titled: bool) -> None:
    if as_json:
        click.echo(json.dumps({"query": query, "hits": [_record(hit) for hit in hits]}, ensure_ascii=False))
        return
    if titled:
        click.echo(options.plain(query))
    for rank, hit in enumerate(hits, 1):
        click.echo(
            f"{rank:3d}  {hit.score:7.4f}  "
            + (f"{hit.confidence:4.0%}  " if hit.confidence is not None else "")
            + options.plain(hit.item.id)
            + (f"  {options.plain(hit.item.content)}" if hit.item.modality == "text" else "")
            + (f"  (+{len(hit.duplicates)})" if hit.duplicates else "")
        )
    if not hits:
        which = "no item that all filters hold for" if wanted.filters else "nothing"
        reason = f"{which} shares a term with this query"
        if wanted.min_confidence:
            reason = f"{which} has a confidence of {wanted.min_confidence:g}; a smaller --min-confidence shows more"
        click.echo(reason, err=True)


def _record(hit: Hit) -> dict[str, Any]:
    item = hit.item
    found = {"id": item.id, "modality": item.modality, "score": hit.score, "content": item.content}
    if hit.confidence is not None:
        found["confidence"] = round(hit.confidence, 4)
    if hit.duplicates:
        found["duplicates"] = hit.duplicates
    return {**found, "fields": dict(item.fields)} if item.fields else found
