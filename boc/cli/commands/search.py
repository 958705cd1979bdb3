"""Define the command boc search."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from boc.cli import options
from boc.errors import BocError, leave_out
from boc.names import HYBRIDS, MODALITIES, Hybrid

if TYPE_CHECKING:
    from boc.search.hits import Hits
    from boc.search.options import SearchOptions
    from boc.search.queries import Query
    from boc.search.searcher import Searcher
    from boc.types import Hit

    Answers = Sequence[tuple[str, str, Hits]]
    """For each query: its id, its text, and its hits."""


@click.command("search", cls=options.TextCommand)
@options.name
@click.argument("words", type=options.sentence, nargs=-1, metavar="[TEXT]")
@click.option(
    "--image",
    "images",
    type=options.PATH,
    multiple=True,
    help="Picture to use as the query; can be repeated.",
)
@click.option(
    "--like",
    type=options.ID,
    multiple=True,
    metavar="[-]ID",
    help="Id of an item that hits should resemble or, with a minus, should not resemble; can be "
    "repeated.",
)
@click.option(
    "--queries",
    type=options.PATH,
    help="File of queries: one sentence per line, or vectors; - means standard input.",
)
@click.option(
    "--run",
    type=options.PATH,
    help="TREC run file in which to write the hits of --queries.",
)
@click.option(
    "--find",
    type=click.Choice(MODALITIES),
    help="Type of hits [default: image, if the index contains pictures].",
)
@click.option(
    "--filter",
    "conditions",
    type=options.ID,
    multiple=True,
    metavar="FIELD=VALUE",
    help="Condition on metadata with =, !=, <, <=, > or >=. Can be repeated; hits must meet all "
    "conditions. If no item meets all = conditions on a field, hits must meet one of these "
    "conditions.",
)
@click.option(
    "--sort",
    metavar="[-]FIELD",
    help="Field to sort by, in ascending order or, with a minus, in descending order.",
)
@click.option("-k", default=10, help="Number of hits per query.")
@click.option(
    "--rm",
    type=float,
    help="Candidates to re-rank per hit [default: the setting of the index].",
)
@click.option(
    "--hybrid",
    type=click.Choice([*HYBRIDS, "words"]),
    help="Add a word search (BM25): rrf fuses its ranking with the vector ranking; words uses "
    "only this ranking, without the encoder.",
)
@click.option("--collapse", is_flag=True, help="Group near-duplicates under their best hit.")
@click.option(
    "--html",
    type=options.PATH,
    help="HTML file in which to write a page with the hits.",
)
@click.option(
    "--paths",
    is_flag=True,
    help="Print only the paths of the hits, one per line.",
)
@options.as_json
@click.option(
    "--request",
    "as_request",
    is_flag=True,
    help="Print the request body for the server instead of searching.",
)
@options.at
@options.moved_encoder
def command(
    name: str,
    words: tuple[str, ...],
    images: tuple[Path, ...],
    like: tuple[str, ...],
    queries: Path | None,
    run: Path | None,
    conditions: tuple[str, ...],
    hybrid: Hybrid | Literal["words"] | None,
    html: Path | None,
    paths: bool,
    as_json: bool,
    as_request: bool,
    at: str,
    encoder: str | None,
    **settings: Any,
) -> None:
    """Search the index NAME by a sentence, pictures or items.

    TEXT, pictures (--image) and items (--like) can be combined. In TEXT, -word or -"some words"
    excludes words; \\-word stands for a word that begins with a minus.

    --request prints the server request instead of running it. If you send this request to the
    server, you get the same hits in the same order. Secrets are replaced by the names of the
    variables BOC_PASSWORD and BOC_API_KEY.

    \b
    Examples: boc search photos "two dogs play in the snow"
              boc search photos "a dog -snow"
              boc search photos --image dog.jpg --html hits.html
              boc search photos --like 1.jpg --like 2.jpg --like -3.jpg
              boc search photos "a dog in the snow" --filter "year>=2020" --filter tag=winter
              boc search photos "a dog in the snow" --filter "taken>=2024-06" --sort -taken
              boc search photos "red rocket" --hybrid words
              boc search photos "a dog" -k 100 --paths
              boc search photos --queries topics.tsv --run photos.run
              boc search photos "a dog" --request --at elastic+https://USER@HOST:9200
    """
    if len(words) > 1 and (unknown := [word for word in words if word.startswith("-")]):
        raise click.UsageError(
            f"no such option {unknown[0]}; if it is part of TEXT, put TEXT in quotes: "
            f"{' '.join(words)!r}",
        )
    if bool(words or images or like) == (queries is not None):
        where = f"; {name!r} is interpreted as the name of an index" if queries is None else ""
        raise click.UsageError(
            f"give TEXT (in quotes), --image FILE or --like ID, or --queries FILE{where}",
        )
    if run is not None and (queries is None or settings["sort"] is not None):
        raise click.UsageError(
            "--run writes the hits of --queries in order of score; add --queries FILE and omit "
            "--sort",
        )
    by_words = hybrid == "words"
    if by_words and (images or like):
        raise click.UsageError(
            "--hybrid words searches only by TEXT or --queries; omit --image and --like",
        )
    if as_request and (queries is not None or html is not None or hybrid is not None):
        raise click.UsageError(
            "--request prints a single request; omit --queries, --hybrid and --html",
        )
    if ways := [way for way in ("as_json", "paths", "as_request") if options.on_command_line(way)]:
        if len(ways) > 1:
            raise click.UsageError(
                "--json, --paths and --request cannot be combined; choose one",
            )
        # Options on the command line override the settings.
        as_json = ways == ["as_json"]
    from boc.inputs.metadata import parse_filter
    from boc.outputs import begins, check_output
    from boc.search.options import SearchOptions
    from boc.search.searcher import Searcher
    from boc.types import Stages

    if html is not None:
        check_output(html, begins(b"<!doctype html>", b" - boc</title>"), *images, queries)
    if run is not None:
        from boc.evaluate.trec import check_run

        check_run(run)
    searcher = Searcher.open(name, at, encoder=encoder)
    search_options = SearchOptions(
        filters=[parse_filter(each, searcher.index.manifest.fields) for each in conditions],
        hybrid=None if hybrid == "words" else hybrid,
        **settings,
    )
    text = " ".join(words) if words else None
    if as_request:
        click.echo(searcher.request(query_of(text, images, like), search_options))
        return
    stages = Stages()
    if queries is not None:
        answers = search_file(searcher, queries, search_options, by_words=by_words)
    else:
        title = ", ".join([*filter(None, [text]), *map(str, images), *like])
        if by_words:
            hits = searcher.search_words([title], search_options)[0]
        else:
            query = query_of(text, images, like)
            hits = searcher.search_query(query, search_options, stages=stages)
        answers = [("", title, hits)]
    if html is not None:
        from boc.cli.contact_sheet import write_sheet

        write_sheet(html, [(query, hits) for _, query, hits in answers])
    if run is not None:
        from boc.evaluate.trec import write_run

        ranked = ((id, [h.id for h in hits], [h.score for h in hits]) for id, _, hits in answers)
        write_run(run, ranked)
        return
    print_answers(answers, search_options, paths, stages.plan, as_json=as_json)
    if text is not None and not by_words:
        tell_words(searcher, text)


def query_of(
    text: str | None,
    images: Sequence[Path] = (),
    like: Sequence[str] = (),
) -> Query:
    """Build a query from TEXT, pictures and items. A minus marks unwanted items."""
    from boc.search.queries import Query, parse_text

    sentence, minus = parse_text(text)
    unlike = [id[1:] for id in like if id.startswith("-")]
    examples = [id.removeprefix("\\") for id in like if not id.startswith("-")]
    return Query.of(sentence, minus=minus, images=images, like=examples, unlike=unlike)


def search_file(
    searcher: Searcher,
    path: Path,
    search_options: SearchOptions,
    *,
    by_words: bool,
) -> Answers:
    """Run a search for each sentence or vector in a file."""
    from boc.inputs.features import is_feature_file, read_queries
    from boc.search.queries import parse_text

    if str(path) != "-" and (path.suffix in (".h5", ".hdf5") or is_feature_file(path)):
        if by_words:
            raise click.UsageError(
                "--hybrid words needs sentences; give --queries a text file with one sentence per "
                "line",
            )
        answers: list[Any] = []
        for items, queries in read_queries(path, searcher.index.manifest.identity):
            keys = [item.id for item in items]
            texts = None
            if queries.modality == "text":
                texts = [item.content for item in items]
            hits = searcher.search_vectors(queries, search_options, texts=texts)
            answers += zip(keys, texts or keys, hits, strict=True)
        return answers
    sentences = read_sentences(path)
    if by_words:
        ranked = searcher.search_words([text for _, text in sentences], search_options)
        return [(*sentence, hits) for sentence, hits in zip(sentences, ranked, strict=True)]
    # Sentences without excluded words form one batch.
    batch = {}
    for _, text in sentences:
        wanted, minus = parse_text(text)
        if not minus:
            batch[text] = str(wanted)
    hits_of = {}
    if batch:
        ranked = searcher.search_texts(list(batch.values()), search_options)
        hits_of = dict(zip(batch, ranked, strict=True))
    for _, text in sentences:
        if text not in hits_of:
            hits_of[text] = searcher.search_query(query_of(text), search_options)
    return [(id, text, hits_of[text]) for id, text in sentences]


def read_sentences(path: Path) -> list[tuple[str, str]]:
    """Return the ids and sentences in a file. The default id is the line number."""
    shown = f"--queries {path}"
    pairs = []
    for number, line in enumerate(options.read_lines(str(path), shown, "sentences"), 1):
        id = str(number)
        text = line
        if path.suffix.lower() == ".tsv":
            id, tab, text = line.partition("\t")
            if not tab:
                raise BocError(
                    f"{shown}: {line[:60]!r} contains no tab; write an id, a tab and the sentence",
                )
        pairs.append((id.strip(), text.strip()))
    for id, count in Counter(id for id, _ in pairs).items():
        if count > 1:
            raise BocError(f"{shown}: the id {id!r} occurs twice; give each sentence its own id")
    return pairs


def print_answers(
    answers: Answers,
    search_options: SearchOptions,
    paths: bool,
    plan: str,
    *,
    as_json: bool,
) -> None:
    """Print the hits as JSON, as paths, or as a list."""
    from boc.plan import ALL_COMPARED

    for id, query, hits in answers:
        if as_json:
            record = {"query": query, "hits": [hit.to_dict() for hit in hits]}
            if hits.notes:
                record["notes"] = hits.notes
            if id:
                record = {"id": id, **record}
            if plan:
                record["plan"] = plan
            if plan == "all":
                record["note"] = ALL_COMPARED
            options.print_json(record)
            continue
        if paths:
            print_paths(hits)
        else:
            if len(answers) > 1:
                click.echo(options.plain(query))
            for rank, hit in enumerate(hits, 1):
                parts = [f"{rank:3d}", f"{hit.score:7.4f}", options.plain(hit.id)]
                if hit.item.modality == "text":
                    parts.append(options.plain(hit.item.content))
                if hit.duplicates:
                    parts.append(f"(+{len(hit.duplicates)})")
                click.echo("  ".join(parts))
        if not hits:
            which = "no item that passes all filters" if search_options.filters else "no item"
            options.tell(f"{which} matches this query")
        for note in hits.notes:
            options.tell(note)


def print_paths(hits: Sequence[Hit]) -> None:
    """Print the paths of pictures, one per line: as exact bytes to a file or a pipe, without
    control characters to a terminal."""
    left = []
    for hit in hits:
        if hit.path is None:
            left.append(f"{hit.id} has no path")
            continue
        name = os.fsencode(hit.path)
        if sys.stdout.isatty():
            name = options.plain(hit.path).encode()
        if b"\n" in name:
            left.append(f"{hit.path!r} contains a line break; use --json to print it")
        else:
            click.echo(name)
    leave_out("hits", left)


def tell_words(searcher: Searcher, text: str) -> None:
    """Print words that neither the index nor the encoder knows to stderr, with suggestions."""
    from boc.search.spelling import Spelling

    with suppress(OSError, ValueError):
        if Path(text).is_file():
            options.tell(
                f"{text} was interpreted as words; to search by the picture, use --image "
                f"{shlex.quote(text)}",
            )
            return
    if condition := re.search(r"(?<!\S)[^\W\d]\w*:\S+", text):
        options.tell(
            f"{condition[0]} was interpreted as words; for a condition, use --filter FIELD=VALUE",
        )
        return
    for word, near in Spelling(searcher).unknown(text):
        # If the encoder counts words, the notes already mention words without suggestions.
        if near is None and searcher.caption_counts:
            continue
        meant = f"; did you mean {near}?" if near else ""
        options.tell(f"{word!r} is not a word that this index or its encoder knows{meant}")
