"""One page of all rows in a folder: ``python -m bench.report.page bench-out -o bench-out/report.html``.

What ran, where, with which settings; the claims of the Bag of Concepts paper, held or not; where ours is faster or
smaller than others, and where it is not; every plot and every table. Rows that have no end are named, and not shown.
The page needs nothing but itself.
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

from bench.report.plot import plots
from bench.report.rows import Rows, read
from bench.report.tables import MEASURES, Table, everything, ratio, share, shown

TITLES = {  # file of rows: title, what was measured on; in the order of the page
    "models": ("Encoders", "Flickr8k dev"),
    "table1": ("Table I of the paper", "TERN, Flickr8k dev"),
    "sparsity-tern": ("Sparsity against recall: TERN", "TERN, Flickr8k dev"),
    "sparsity-teran": ("Sparsity against recall: TERAN", "TERAN, Flickr8k dev"),
    "codebook-size": ("Size of the codebook", "TERN, Flickr8k dev"),
    "context": ("What concepts have of their own", "TERN, Flickr8k dev"),
    "concept-variance": ("Concepts that stay apart, and recall", "Flickr8k dev"),
    "recall-postings-tern": ("Recall against postings: sentences ask for pictures", "TERN, Flickr8k dev"),
    "recall-postings-captions": ("Recall against postings: captions", "100,000 captions of Multi30k, MiniLM"),
    "race-embedded": ("The race in one process", "captions of Multi30k, MiniLM"),
    "race-million": ("The race over a million", "drawn vectors of 1,024 components"),
    "race-elasticsearch": ("The race on Elasticsearch", "captions of Multi30k, MiniLM"),
    "race-opensearch": ("The race on OpenSearch", "captions of Multi30k, MiniLM"),
    "kernel": ("Parts of a query, and a cold start", "captions of Multi30k, MiniLM"),
    "growth": ("Growth", "synthetic vectors of 256 components"),
    "memory-limit": ("With less memory than the index takes", "a million synthetic vectors of 1,024 components"),
    "encoding-speed": ("Encoding", "synthetic vectors"),
    "alignment": ("Re-ranking by alignment", "TERN with alignment, Flickr8k dev"),
    "labels": ("Labels", "TERN, Flickr8k dev"),
}
TRIAL = "a trial on painted scenes"
SHOWN = "0.95"  # the recall whose ratios are open
STYLE = """
body{font:16px/1.5 system-ui,sans-serif;color:#1a1a1a;background:#fff}
body{max-width:1200px;margin:0 auto;padding:1rem 1.5rem}
h1{font-size:1.7rem;margin:.5rem 0}h2{font-size:1.3rem;margin:2.5rem 0 .5rem;border-top:1px solid #ddd;padding-top:1rem}
h3{font-size:1.05rem;margin:1.2rem 0 .4rem}p{max-width:52rem}figure{margin:1rem 0}
svg{max-width:100%;height:auto}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.86rem;font-variant-numeric:tabular-nums}
th,td{padding:.22rem .7rem .22rem 0;text-align:left;vertical-align:top;border-bottom:1px solid #eee}
th{border-color:#999}.paper{background:#f4f0e6;padding-left:.5rem}
code,.head{font-family:ui-monospace,monospace;font-size:.84em}.head{color:#555;overflow-wrap:anywhere}
.held,.ours{color:#006d4e}.not,.theirs{color:#a83f00}.even{color:#555}td span{white-space:nowrap}
.note{background:#fff4e0;padding:.5rem .8rem;border-left:4px solid #e69f00}
nav{columns:3 16rem;font-size:.92rem}nav a{display:block}summary{cursor:pointer;color:#444}ul{padding-left:1.2rem}
@media print{details{display:none}}
"""


def page(out: Path) -> str:
    """The page of a folder of rows."""
    found = [read(path) for path in sorted(out.glob("*.csv"))]
    whole = sorted((rows for rows in found if rows.done), key=lambda rows: (place(rows.name), rows.name))
    partial = [path.name for path in sorted(out.glob("*.csv.part"))] + [f"{r.name}.csv" for r in found if not r.done]
    stages = [json.loads(path.read_text(encoding="utf-8")) for path in sorted((out / "stages").glob("*.json"))]
    trial = TRIAL if (out / "data").is_dir() else ""
    by_name = {rows.name: rows for rows in whole}
    parts = [f"<h1>Evidence</h1><p>{_opening(whole)}</p>"]
    if trial:
        parts.append(f'<p class="note">These are rows of {trial}: they say that all scripts run, and nothing else.</p>')
    if partial:
        parts.append(f'<p class="note">Unfinished, and not shown: {_list(partial)}.</p>')
    sections = [("ran", "What ran", _ran(stages, whole))]
    if "claims" in by_name:
        sections.append(("claims", "The paper's claims", _claims(by_name["claims"])))
    if "race-ratios" in by_name:
        sections.append(("wins", "Wins and losses at equal recall", _wins(by_name["race-ratios"])))
    for rows in whole:
        if rows.name not in ("claims", "race-ratios"):
            title = TITLES.get(rows.name, (rows.name, ""))[0]
            sections.append((rows.name, title, _section(rows, trial or measured_on(rows))))
    links = "".join(f'<a href="#{key}">{html.escape(title)}</a>' for key, title, _ in sections)
    body = "".join(
        f'<section id="{key}"><h2>{html.escape(title)}</h2>{text}</section>' for key, title, text in sections
    )
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>boc: evidence</title>'
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}<style>{STYLE}</style></head><body>'
        f"{''.join(parts)}<nav>{links}</nav>{body}</body></html>\n"
    )


def place(name: str) -> int:
    known = list(TITLES)
    return known.index(name) if name in known else len(known)


def measured_on(rows: Rows) -> str:
    """The data of rows, for the title of a plot."""
    data = TITLES.get(rows.name, ("", rows.name))[1]
    items = rows.head["settings"].get("items")
    return f"{items:,} {data}" if items else data


def _opening(whole: Sequence[Rows]) -> str:
    if not whole:
        return "There are no finished rows yet."
    machines = Counter(json.dumps(rows.head["machine"], sort_keys=True) for rows in whole)
    times = sorted(rows.head["time"] for rows in whole)
    told = []
    for machine, count in machines.most_common():
        about = json.loads(machine)
        cores = f"{about['cores']} core" + "s" * (about["cores"] != 1)
        told.append(
            f"{count} on {html.escape(about['processor'])}, {cores}, {about['GiB']} GiB, {html.escape(about['system'])}"
        )
    hours = sum(rows.seconds or 0 for rows in whole) / 3600
    return (
        f"{len(whole)} files of rows, written {times[0]} to {times[-1]}, {hours:.1f} hours in all: {'; '.join(told)}. "
        "Every figure on this page comes from them. Each section ends with its settings, seed and versions, and with "
        "all its rows."
    )


def _ran(stages: Sequence[Mapping[str, Any]], whole: Sequence[Rows]) -> str:
    """Every stage with its outcome; without records of stages, the rows."""
    if not stages:
        lines = [[rows.name, "done", f"{rows.seconds:.0f}", ""] for rows in whole]
    else:
        lines = []
        for stage in sorted(stages, key=lambda stage: (STATES.index(stage["state"]), stage.get("taken", False))):
            taken = "made before, taken as it was" if stage.get("taken") else stage.get("why", "")
            command = re.sub(r"(?:[\w.-]*/)+(?=[\w.-]*[A-Za-z])", "", " ".join(stage["command"]))  # without folders
            command = command.replace("python -c from boc.cli import main; main()", "boc")
            seconds = f"{stage['seconds']:.0f}" if "seconds" in stage else ""
            lines.append([stage["name"], stage["state"], seconds, f"{taken} `{command}`".strip()])
    bad = [f"{line[0]} ({line[1]})" for line in lines if line[1] != "done"]
    note = f'<p class="note">Not here: {_list(bad)}; the table says why.</p>' if bad else "<p>All stages are done.</p>"
    taken = [stage["name"] for stage in stages if stage.get("taken")]
    alone = sorted({rows.name for rows in whole}.difference(stage["name"] for stage in stages)) if stages else []
    for told, names in (("Made before this run, and taken as they were", taken),
                        ("Rows that their scripts wrote outside of this run; their heads say how", alone)):  # fmt: skip
        note += f"<p>{told}: {_list(names)}.</p>" if names else ""
    return note + _details("stages", _table(Table(["stage", "state", "seconds", ""], lines)), bool(bad))


STATES = ("failed", "left out", "started", "done")


def _claims(rows: Rows) -> str:
    counts = Counter(row["verdict"] for row in rows.table)
    told = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    intro = (
        f"<p>{told}. A difference counts if it is more than twice its standard error (over pictures); the paper's own "
        "figures, on a darker ground, are of COCO and Flickr30K under another TERN, and are not to be compared with "
        "ours one by one.</p>"
    )
    return intro + "".join(_table(table) for _, table in shown(rows)) + _head(rows)


def _wins(rows: Rows) -> str:
    """What each race says at each recall, won and lost."""
    parts = [
        "<p>Ours over theirs, both at the setting that was fastest to reach the recall on other queries. Of times and "
        "rates there is the median over rounds, with the least and the most; "
        '<b class="ours">ours better</b> or <b class="theirs">theirs better</b> where all rounds agree.</p>'
    ]
    for race in dict.fromkeys(row["race"] for row in rows.table):
        title = TITLES.get(race, (race, ""))[0]
        parts.append(f"<h3>{html.escape(title)}</h3>")
        for at in sorted({row["at"] for row in rows.table if row["race"] == race}):
            found = [row for row in rows.table if (row["race"], row["at"]) == (race, at)]
            parts.append(_details(f"at recall {at}: {_score(found)}", _matrix(found), at == SHOWN))
    return "".join(parts) + WHY + _head(rows)


def _score(found: Sequence[Mapping[str, str]]) -> str:
    """Won and lost, by latency."""
    of = Counter(row["p50_verdict"] for row in found)
    return f"one query at a time, ours is faster in {of['ours']} of {len(found)} pairs, slower in {of['theirs']}"


def _matrix(found: Sequence[Mapping[str, str]]) -> str:
    """A pair a line, a measure a column."""
    head = "".join(f"<th>{name}</th>" for name in ("ours", "theirs", "recall", *(name for name, *_ in MEASURES)))
    lines = []
    for row in found:
        cells = [html.escape(row["ours"]), html.escape(row["theirs"])]
        cells.append(f"{share(row['recall'])} / {share(row['their_recall'])}")
        cells += [_ratio(row, column, words) for _, column, words in MEASURES]
        lines.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'


def _ratio(row: Mapping[str, str], column: str, words: tuple[str, str]) -> str:
    told, verdict = ratio(row, column, words)
    return f'<span class="{verdict}">{told}</span>' if told else ""


WHY = (
    "<h3>Why</h3><p>A graph in memory visits some hundred vectors for a query, in one loop of compiled code. Ours "
    "finds the query's centroids, adds up posting lists, reads the candidates' vectors through the disk's cache, and "
    "returns items with their texts: more steps, each with its share of Python, which a single query pays in full. "
    "In exchange the index is a folder that is mapped, not memory that is filled. To learn the code is paid once, and "
    "not again when items are added.</p>"
)


def _section(rows: Rows, data: str) -> str:
    figures = "".join(f"<figure>{plot.svg}</figure>" for plot in plots(rows, data))
    tables = "".join(
        (f"<h3>{html.escape(title)}</h3>" if title else "") + _table(table) for title, table in shown(rows)
    )
    return figures + tables + _head(rows)


def _head(rows: Rows) -> str:
    """Where rows come from, and all of them."""
    head = rows.head
    lines = [f"{key}: {value if isinstance(value, str) else json.dumps(value)}" for key, value in head.items()]
    told = "<br>".join(html.escape(line) for line in [*lines, f"seconds: {rows.seconds}"])
    every = _details(f"all {len(rows.table)} rows of {rows.name}.csv", _table(everything(rows)))
    return f'<p class="head">{told}</p>{every}'


def _details(title: str, body: str, is_open: bool = False) -> str:
    return f"<details{' open' if is_open else ''}><summary>{html.escape(title)}</summary>{body}</details>"


def _list(names: Sequence[str]) -> str:
    return ", ".join(html.escape(name) for name in names)


def _table(table: Table) -> str:
    printed = [name.startswith(("paper", "the paper's own")) for name in table.head]

    def line(cells: Sequence[str], tag: str) -> str:
        marks = [' class="paper"' if mark else "" for mark in printed]
        told = (f"<{tag}{mark}>{_inline(cell)}</{tag}>" for cell, mark in zip(cells, marks, strict=True))
        return f"<tr>{''.join(told)}</tr>"

    body = "".join(line(cells, "td") for cells in table.lines)
    return f'<div class="wide"><table><thead>{line(table.head, "th")}</thead><tbody>{body}</tbody></table></div>'


def _inline(cell: str) -> str:
    """The Markdown of a cell."""
    text = html.escape(cell, quote=False).replace("+-", "±")
    for verdict, kind in (("not held", "not"), ("held", "held")):
        text = text.replace(f"**{verdict}**", f'<b class="{kind}">{verdict}</b>')
    text = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", text)
    return re.sub(r"`(.+?)`", r"<code>\1</code>", text)


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
