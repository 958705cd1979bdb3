"""boc search."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from boc.cli import options
from boc.errors import BocError, ImageError, leave_out
from boc.names import MODALITIES, REQUEST_FORMS, Modality, RequestForm

if TYPE_CHECKING:
    from collections.abc import Callable

    from PIL.Image import Image

    from boc.search.options import SearchOptions
    from boc.search.queries import Query
    from boc.search.searcher import Searcher
    from boc.types import Hit

    Answers = list[tuple[str, str, list[Hit]]]
    """The id of a query, the query as text, and its hits."""

SIDE = 240  # pixels of a picture in a terminal


class HybridType(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.4
    """``rrf``, ``sum:WEIGHT`` or ``words``, given to the command as a name and a weight or None."""

    name = "hybrid"

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> tuple[str, float | None]:
        name, colon, weight = value.partition(":")
        if value in ("rrf", "words"):
            return value, None
        if name != "sum" or not colon:
            self.fail(f"{value!r} is not one of rrf, sum:WEIGHT and words", param, ctx)
        return name, click.FLOAT.convert(weight, param, ctx)


@click.command("search", cls=options.TextCommand)
@options.name
@click.argument("words", type=options.SENTENCE, nargs=-1, metavar="[TEXT]")
@click.option(
    "--image",
    "images",
    type=options.PATH,
    multiple=True,
    help="Search by this picture; can be repeated.",
)
@click.option(
    "--like",
    type=options.ID,
    multiple=True,
    metavar="[-]ID",
    help="More like these items; after a minus, less like them.",
)
@click.option(
    "--queries",
    type=options.PATH,
    help="Search by each line of this file, - for stdin, or by each vector of it.",
)
@click.option(
    "--run",
    type=options.PATH,
    help="With --queries: write the hits to this file, a run of TREC.",
)
@click.option(
    "--find",
    type=click.Choice(MODALITIES),
    help="What to find [default: image, if it has pictures].",
)
@click.option(
    "--filter",
    "conditions",
    type=options.ID,
    multiple=True,
    metavar="FIELD=VALUE",
    help="Only items whose metadata fulfil this condition; also != < <= > >=. Repeat it to "
    "combine conditions by AND.",
)
@click.option(
    "--sort",
    metavar="[-]FIELD",
    help="Order by this field; after a minus, the largest value first.",
)
@click.option("-k", default=10, help="Number of hits per query.")
@click.option("--rm", type=float, help="Candidates re-ranked per hit [default: that of the index].")
@click.option(
    "--hybrid",
    type=HybridType(),
    metavar="rrf|sum:WEIGHT|words",
    help="Use the words of the sentence (BM25): fuse both rankings (rrf), add WEIGHT times "
    "their score (sum), or "
    "search by words alone, without the encoder (words).",
)
@click.option(
    "--min-confidence",
    type=click.FloatRange(0, 1),
    help="Show confidences, and hits with this one; 0.5 is common.",
)
@click.option("--collapse", is_flag=True, help="Group near-duplicates under the best of them.")
@click.option("--html", type=options.PATH, help="Write the hits to this page, with their pictures.")
@click.option(
    "--show",
    is_flag=True,
    help="Show the pictures in the terminal (kitty, iTerm2, and those with sixel).",
)
@click.option(
    "--paths/-0",
    default=None,
    help="Print paths alone, a line each; with -0 a zero byte ends each, for xargs -0.",
)
@options.as_json
@click.option(
    "--request",
    "form",
    type=click.Choice(REQUEST_FORMS),
    help="Print the request to the server instead of searching.",
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
    find: Modality | None,
    conditions: tuple[str, ...],
    sort: str | None,
    k: int,
    rm: float | None,
    hybrid: tuple[str, float | None] | None,
    min_confidence: float | None,
    collapse: bool,
    html: Path | None,
    show: bool,
    paths: bool | None,
    as_json: bool,
    form: RequestForm | None,
    at: str,
    encoder: str | None,
) -> None:
    """Search the index NAME by a sentence, pictures, or items.

    TEXT, pictures (--image) and items (--like) can be combined. In TEXT, -word or -"some words"
    says what should not be seen; \\-word is a word that begins with a minus.

    With --request, nothing is searched: the server answers the request with the hits of this
    search. Their _score is the dot product plus 1.01. Secrets are not printed, only their
    variables: BOC_PASSWORD and BOC_API_KEY.

    \b
    Examples: boc search photos "two dogs play in the snow"
              boc search photos "a dog -snow"
              boc search photos --image dog.jpg --html hits.html
              boc search photos --like 1.jpg --like 2.jpg --like -3.jpg
              boc search photos "a dog in the snow" --filter "year>=2020" --filter tag=winter
              boc search photos "a dog in the snow" --filter "taken>=2024-06" --sort -taken
              boc search photos "a submarine" --min-confidence 0.5
              boc search photos "red rocket" --hybrid words
              boc search photos "a dog" -k 100 --paths
              boc search photos --queries topics.tsv --run photos.run
              boc search photos "a dog" --request curl --at elastic+https://USER@HOST:9200
    """
    if len(words) > 1 and any(word.startswith("-") for word in words):
        raise click.UsageError(f"write TEXT in quotes: {' '.join(words)!r}")
    text = " ".join(words) if words else None
    one_query = text is not None or bool(images or like)
    if one_query == (queries is not None):
        where = f"; {name!r} is read as the name of an index" if queries is None else ""
        raise click.UsageError(
            f"give TEXT (in quotes), --image FILE or --like ID, or else --queries FILE{where}",
        )
    if run is not None and (queries is None or sort is not None):
        raise click.UsageError(
            "--run writes the hits of --queries by score; add --queries FILE, leave out --sort",
        )
    mode, weight = hybrid or (None, None)
    if mode == "words" and (images or like):
        raise click.UsageError(
            "--hybrid words searches by the words of TEXT or --queries; leave pictures, items out",
        )
    if form is not None and (queries is not None or html is not None or hybrid is not None):
        raise click.UsageError(
            "--request prints one request; leave out --queries, --hybrid and --html",
        )
    if ways := [
        way for way in ("as_json", "show", "paths", "form") if options.on_command_line(way)
    ]:
        if len(ways) > 1:
            raise click.UsageError(
                "give one of --json, --paths, -0, --show and --request: each prints something else",
            )
        # An option of the command line counts whatever the settings say.
        as_json = ways == ["as_json"]
        show = ways == ["show"]
    from boc.inputs.metadata import parse_filter
    from boc.outputs import begins, check_output
    from boc.search.options import SearchOptions
    from boc.search.searcher import Searcher

    draw = None
    if show:
        from boc.cli.terminal_pictures import find_terminal

        draw = find_terminal(os.environ)
    if html is not None:
        check_output(html, begins(b"<!doctype html>", b" - boc</title>"), *images, queries)
    if run is not None:
        from boc.evaluate.trec import check_run

        check_run(run)
    searcher = Searcher.open(name, at, encoder=encoder)
    filters = [parse_filter(each, searcher.index.manifest.fields) for each in conditions]
    search_options = SearchOptions(
        k,
        rm,
        find,
        filters=filters,
        hybrid=None if mode == "words" else mode,  # type: ignore[arg-type]  # "rrf" or "sum"
        words_weight=weight,
        sort=sort,
        min_confidence=min_confidence,
        collapse=collapse,
    )
    if form is not None:
        click.echo(searcher.request(_query(text, images, like), search_options).render(form))
        return
    if queries is not None:
        answers = _by_file(searcher, queries, search_options, words=mode == "words")
    elif mode == "words" and text is not None:
        answers = [("", text, searcher.search_words([text], search_options)[0])]
    else:
        title = ", ".join([*([] if text is None else [text]), *map(str, images), *like])
        answers = [("", title, searcher.search_query(_query(text, images, like), search_options))]
    if html is not None:
        from boc.cli.contact_sheet import write_sheet

        write_sheet(html, [(query, hits) for _, query, hits in answers])
    if run is not None:
        from boc.evaluate.trec import write_run

        write_run(
            run,
            (
                (id, [hit.id for hit in hits], [hit.score for hit in hits])
                for id, _, hits in answers
            ),
        )
        return
    for id, query, hits in answers:
        if as_json:
            record = {
                **({"id": id} if id else {}),
                "query": query,
                "hits": [hit.to_dict() for hit in hits],
            }
            click.echo(json.dumps(record, ensure_ascii=False))
            continue
        if paths is not None:
            _print_paths(hits, b"\n" if paths else b"\0")
        else:
            if len(answers) > 1:
                click.echo(options.plain(query))
            _print(hits, draw)
        if not hits:
            click.echo(_why_none(search_options), err=True)
    if text is not None and mode != "words":
        _tell_words(searcher, text)


def _tell_words(searcher: Searcher, text: str) -> None:
    """Say on stderr what of a sentence nothing knows, and what may be meant."""
    from boc.search.spelling import Spelling

    with suppress(OSError, ValueError):
        if Path(text).is_file():
            click.echo(
                f"{options.plain(text)} was searched as words; by the picture: --image "
                f"{shlex.quote(text)}",
                err=True,
            )
            return
    if condition := re.search(r"(?<!\S)[^\W\d]\w*:\S+", text):
        click.echo(
            f"{condition[0]} was searched as words; a condition is --filter FIELD=VALUE",
            err=True,
        )
        return
    for word, near in Spelling(searcher).unknown(text):
        meant = f"; did you mean {near}?" if near else ""
        click.echo(f"{word!r} is no word of this index or its encoder{meant}", err=True)


def _query(text: str | None, images: tuple[Path, ...] = (), like: tuple[str, ...] = ()) -> Query:
    from boc.search.queries import Query, parse_text

    sentence, minus = (None, []) if text is None else parse_text(text)
    unlike = [id[1:] for id in like if id.startswith("-")]
    examples = [id.removeprefix("\\") for id in like if not id.startswith("-")]
    return Query.of(sentence, minus=minus, images=images, like=examples, unlike=unlike)


def _by_file(
    searcher: Searcher,
    path: Path,
    search_options: SearchOptions,
    *,
    words: bool,
) -> Answers:
    from boc.inputs.features import is_feature_file, read_queries
    from boc.inputs.text_lines import id_of, json_lines, text_of

    answers: Answers = []
    if str(path) == "-" or not (path.suffix in (".h5", ".hdf5") or is_feature_file(path)):
        lines = options.read_lines(str(path), f"--queries {path}", "sentences")
        ids = [str(number) for number in range(1, len(lines) + 1)]
        if path.suffix.lower() == ".tsv":
            if odd := next((line for line in lines if "\t" not in line), ""):
                raise BocError(
                    f"--queries {path}: {odd[:60]!r} has no tab; write ID, a tab and the sentence",
                )
            ids, lines = map(
                list,
                zip(*(map(str.strip, line.split("\t", 1)) for line in lines), strict=True),
            )
        elif path.suffix.lower() == ".jsonl":
            faults: list[str] = []
            records = [
                (number, each)
                for number, each in json_lines(path, faults)
                if isinstance(each, dict)
            ]
            leave_out(f"--queries {path}", faults)
            ids = [id_of(each, number) for number, each in records]
            lines = [
                json.dumps(each["vector"]) if "vector" in each else text_of(each)
                for _, each in records
            ]
        twice = [id for id, count in Counter(ids).items() if count > 1]
        if twice:
            raise BocError(
                f"--queries {path}: the id {twice[0]!r} stands twice; give each sentence its own",
            )
        return _by_lines(searcher, ids, lines, search_options, words=words)
    if words:
        raise click.UsageError(
            "--hybrid words needs sentences; give a file with one per line as --queries",
        )
    for items, queries in read_queries(path, searcher.index.manifest.identity):
        texts = [item.content for item in items] if queries.modality == "text" else None
        hits = searcher.search_vectors(queries, search_options, texts=texts)
        keys = [item.id for item in items]
        answers += zip(keys, texts or keys, hits, strict=True)
    return answers


def _by_lines(
    searcher: Searcher,
    ids: list[str],
    lines: list[str],
    search_options: SearchOptions,
    *,
    words: bool,
) -> Answers:
    """Answer sentences as they were typed; those without unwanted words are one batch."""
    from boc.search.queries import parse_text

    if words:
        return list(zip(ids, lines, searcher.search_words(lines, search_options), strict=True))
    plain = {
        line: str(sentence) for line in lines for sentence, minus in [parse_text(line)] if not minus
    }
    hits = (
        dict(zip(plain, searcher.search_texts(list(plain.values()), search_options), strict=True))
        if plain
        else {}
    )
    return [
        (
            id,
            line,
            hits[line] if line in hits else searcher.search_query(_query(line), search_options),
        )
        for id, line in zip(ids, lines, strict=True)
    ]


def _print_paths(hits: list[Hit], end: bytes) -> None:
    """Print the paths of pictures, each with ``end`` behind it: their bytes, but nothing that a
    terminal would obey."""
    left = [f"{hit.id} is a sentence, which has no path" for hit in hits if hit.path is None]
    for path in (hit.path for hit in hits if hit.path is not None):
        name = options.plain(path).encode() if sys.stdout.isatty() else os.fsencode(path)
        if end in name:
            left.append(f"{path!r} has a line end: print it by -0, for xargs -0")
        else:
            click.echo(name + end, nl=False)
    leave_out("hits", left)


def _print(hits: list[Hit], draw: Callable[[Image], str] | None) -> None:
    from boc.inputs.images import read_image

    for rank, hit in enumerate(hits, 1):
        click.echo(
            f"{rank:3d}  {hit.score:7.4f}  "
            + (f"{hit.confidence:4.0%}  " if hit.confidence is not None else "")
            + options.plain(hit.id)
            + (f"  {options.plain(hit.item.content)}" if hit.path is None else "")
            + (f"  (+{len(hit.duplicates)})" if hit.duplicates else ""),
        )
        if draw is not None and hit.path is not None:
            try:
                picture = read_image(Path(hit.path), least=2 * SIDE)
            except ImageError as error:
                click.echo(options.plain(error), err=True)
            else:
                picture.thumbnail((SIDE, SIDE))
                click.echo(draw(picture))


def _why_none(search_options: SearchOptions) -> str:
    which = "no item that passes all filters" if search_options.filters else "nothing"
    if not search_options.min_confidence:
        return f"{which} matches this query"
    return (
        f"{which} has a confidence of {search_options.min_confidence:g}; a smaller "
        "--min-confidence shows more"
    )
