"""One page of all rows in a folder: ``python -m bench.report.page bench-out -o bench-out/report.html``.

It shows what ran, where, and with which settings; which claims of the Bag of Concepts paper hold; where ours is faster
or smaller than others, and where it is not; every plot and every table. Unfinished rows are named, and not shown. The
page is self-contained.
"""

from __future__ import annotations

import html
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from bench.report.plot import plots
from bench.report.rows import Rows, read
from bench.report.tables import Table, everything, share
from bench.report.views import MEASURES, ratio, shown

TITLES = {  # file of rows: title, what was measured on; in the order of the page
    "models": ("Encoders", "Flickr8k dev"),
    "table1": ("Table I of the paper", "TERN, Flickr8k dev"),
    "flickr8k": ("Codes of global vectors, by the recipe of today", "TERN, Flickr8k dev"),
    "sparsity-tern": ("Sparsity against recall: TERN", "TERN, Flickr8k dev"),
    "sparsity-teran": ("Sparsity against recall: TERAN", "TERAN, Flickr8k dev"),
    "codebook-size": ("Size of the codebook", "TERN, Flickr8k dev"),
    "context": ("What concepts have of their own", "TERN, Flickr8k dev"),
    "concept-variance": ("Concepts that stay apart, and recall", "Flickr8k dev"),
    "recall-postings-tern": ("Recall against postings: sentences ask for pictures", "TERN, Flickr8k dev"),
    "recall-postings-captions": ("Recall against postings: captions", "100,000 captions of Multi30k, MiniLM"),
    "race-embedded": ("The race in one process", "captions of Multi30k, MiniLM"),
    "race-million": ("The race over a million", "drawn vectors of 1,024 components"),
    "race-million-int8": ("The same, beside vectors in 8 bits", "drawn vectors of 1,024 components"),
    "race-elasticsearch": ("The race on Elasticsearch", "captions of Multi30k, MiniLM"),
    "race-elasticsearch-rounds": ("Three indexes on Elasticsearch, in many rounds", "captions of Multi30k, MiniLM"),
    "race-opensearch": ("The race on OpenSearch", "captions of Multi30k, MiniLM"),
    "kernel": ("Parts of a query, and a cold start", "captions of Multi30k, MiniLM"),
    "learning": ("Learning a dictionary", "synthetic vectors of 1,024 components"),
    "growth": ("Growth", "synthetic vectors of 256 components"),
    "memory-limit": ("With less memory than the index takes", "a million synthetic vectors of 1,024 components"),
    "memory-limit-ten-million": ("The same, of ten million", "ten million synthetic vectors of 256 components"),
    "server-memory": ("A server with less memory than its vectors", "1,000,000 synthetic vectors of 384 components"),
    "encoding-speed": ("Encoding", "synthetic vectors"),
    "alignment": ("Re-ranking by alignment", "TERN with alignment, Flickr8k dev"),
    "words": ("Pictures written in words", "TERN, Flickr8k dev"),
    "words-synonyms": ("Pictures written in words, synonyms counted", "TERN, Flickr8k dev"),
    "alignment-candidates": ("Candidates of an alignment", "painted scenes"),
    "alignment-candidates-photos": ("Candidates of an alignment", "TERN, 7,091 photographs of Flickr8k"),
    "labels": ("Labels", "TERN, Flickr8k dev"),
    "all-codes": ("All codes, side by side", "TERN, Flickr8k dev"),
    "all-codes-scenes": ("All codes, on painted scenes", "TERAN, painted scenes"),
    "training-curves": ("Validation while training", "3,000 pictures of Flickr8k, 500 of them held out"),
    "vsrnpp-tables": ("Tables 4 to 6 of VSRN++", "3,000 pictures of Flickr8k to learn from, Flickr8k dev"),
    "relevances": ("Relevances beside each other", "captions of Flickr8k dev"),
    "published-sizes": ("The sizes of the papers", "drawn numbers"),
    "training-cost": ("What a step of a published recipe costs", "computed"),
}
TRIAL = "a trial on painted scenes"
PAPER = ("paper", "the paper's own")  # prefixes of columns with figures of the paper
STATES = ("failed", "left out", "started", "done")


def page(out: Path) -> str:
    """The page of a folder of rows."""
    found = [read(path) for path in sorted(out.glob("*.csv"))]
    whole = sorted((rows for rows in found if rows.done), key=lambda rows: (place(rows.name), rows.name))
    stages = [json.loads(path.read_text(encoding="utf-8")) for path in sorted((out / "stages").glob("*.json"))]
    machines = Counter(json.dumps(rows.head["machine"], sort_keys=True) for rows in whole)
    sheet = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, undefined=StrictUndefined
    )
    sheet.filters |= {"inline": inline, "plain": lambda value: value if isinstance(value, str) else json.dumps(value)}
    sheet.globals |= {"shown": shown, "everything": everything, "plots": plots, "measured_on": measured_on,
                      "ratio": ratio, "share": share, "verdicts": verdicts}  # fmt: skip
    return sheet.get_template("page.html.jinja").render(
        whole=whole,
        times=sorted(rows.head["time"] for rows in whole),
        hours=sum(rows.seconds or 0 for rows in whole) / 3600,
        machines=[(json.loads(machine), count) for machine, count in machines.most_common()],
        trial=TRIAL if (out / "data").is_dir() else "",
        partial=[path.name for path in sorted(out.glob("*.csv.part"))] + [f"{r.name}.csv" for r in found if not r.done],
        sections=sections(whole),
        ran=ran(stages, whole),
        failed=[f"{stage['name']} ({stage['state']})" for stage in in_order(stages) if stage["state"] != "done"],
        taken=[stage["name"] for stage in stages if stage.get("taken")],
        alone=sorted({rows.name for rows in whole}.difference(stage["name"] for stage in stages)) if stages else [],
        paper=PAPER,
        titles=TITLES,
        measures=MEASURES,
    )


def sections(whole: Sequence[Rows]) -> list[tuple[str, str, Rows | None]]:
    """Key, title and rows of each section, in their order on the page."""
    by_name = {rows.name: rows for rows in whole}
    first: list[tuple[str, str, Rows | None]] = [("ran", "What ran", None)]
    for key, name, title in (("claims", "claims", "The paper's claims"),
                             ("wins", "race-ratios", "Wins and losses at equal recall")):  # fmt: skip
        if name in by_name:
            first.append((key, title, by_name.pop(name)))
    return first + [(name, TITLES.get(name, (name, ""))[0], rows) for name, rows in by_name.items()]


def place(name: str) -> int:
    known = list(TITLES)
    return known.index(name) if name in known else len(known)


def measured_on(rows: Rows) -> str:
    """The data of rows, for the title of a plot."""
    data = TITLES.get(rows.name, ("", rows.name))[1]
    items = rows.head["settings"].get("items")
    return f"{items:,} {data}" if items else data


def in_order(stages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """What failed first."""
    return sorted(stages, key=lambda stage: (STATES.index(stage["state"]), stage.get("taken", False)))


def ran(stages: Sequence[Mapping[str, Any]], whole: Sequence[Rows]) -> Table:
    """Every stage with its outcome; without records of stages, the rows."""
    lines = [[rows.name, "done", f"{rows.seconds:.0f}", ""] for rows in whole if not stages]
    for stage in in_order(stages):
        taken = "made before, taken as it was" if stage.get("taken") else stage.get("why", "")
        command = re.sub(r"(?:[\w.-]*/)+(?=[\w.-]*[A-Za-z])", "", " ".join(stage["command"]))  # without folders
        command = command.replace("python -c from boc.cli import main; main()", "boc")
        seconds = f"{stage['seconds']:.0f}" if "seconds" in stage else ""
        lines.append([stage["name"], stage["state"], seconds, f"{taken} `{command}`".strip()])
    return Table(["stage", "state", "seconds", ""], lines)


def verdicts(rows: Rows) -> list[tuple[str, int]]:
    """How many claims have each verdict."""
    return Counter(row["verdict"] for row in rows.table).most_common()


def inline(cell: str) -> Markup:
    """The Markdown of a cell as HTML."""
    text = html.escape(cell, quote=False).replace("+-", "±")
    for verdict, kind in (("not held", "not"), ("held", "held")):
        text = text.replace(f"**{verdict}**", f'<b class="{kind}">{verdict}</b>')
    text = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", text)
    return Markup(re.sub(r"`(.+?)`", r"<code>\1</code>", text))


@click.command()
@click.argument("out", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="[default: OUT/report.html]")
def main(out: Path, output: Path | None) -> None:
    """Make the page of the rows in OUT."""
    path = output or out / "report.html"
    path.write_text(page(out), encoding="utf-8")
    click.echo(path)


if __name__ == "__main__":
    main()
