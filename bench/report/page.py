"""Show all rows in a folder on one HTML page: ``python -m bench.report.page bench-out -o
bench-out/report.html``.

Rows that are shown in the documentation have the same tables and figures on this page, and other
rows are shown in full. Each section ends with the header of its rows. Unfinished rows are only
listed by name. The page is self-contained. With ``--paper FOLDER``, tables are also written to the
folder as LaTeX, and figures as PDF.
"""

from __future__ import annotations

import html
import re
from contextlib import suppress
from pathlib import Path

import click
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from bench.options import PATH
from bench.report.docs import ROOT, Marker, markers, pages, show_plot, show_table
from bench.report.rows import Rows, read
from bench.report.views import Table

SHEET = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>boc: rows</title><style>
body{font:16px/1.5 system-ui,sans-serif;max-width:1200px;margin:0 auto;padding:1rem}
svg{max-width:100%;height:auto}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.86rem}
th,td{padding:.2rem .7rem .2rem 0;text-align:left;border-bottom:1px solid #eee}
</style></head><body>
<h1>Rows</h1>
{% if trial %}
<p>These are rows of a trial on painted scenes. They show only that all scripts run.</p>
{% endif %}
{% if unfinished %}<p>Unfinished, and not shown: {{ unfinished | join(', ') }}.</p>{% endif %}
{% for rows, parts in sections %}
<section id="{{ rows.name }}"><h2>{{ rows.name }}</h2>
{% for part in parts %}
{% if part is string %}<figure>{{ part | safe }}</figure>
{% else %}
<div class="wide"><table><thead>
<tr>{% for cell in part.head %}<th>{{ cell | inline }}</th>{% endfor %}</tr></thead>
<tbody>{% for line in part.lines %}
<tr>{% for cell in line %}<td>{{ cell | inline }}</td>{% endfor %}</tr>{% endfor %}
</tbody></table></div>
{% endif %}{% endfor %}
<p>{% for key, value in rows.head.items() %}{{ key }}: {{ value }}<br>{% endfor %}
seconds: {{ rows.seconds }}</p></section>
{% endfor %}
</body></html>
"""


def page(out: Path, paper: Path | None = None) -> str:
    """Return the page for a folder of rows. Also write its tables and figures to the folder
    ``paper``."""
    files = [read(path) for path in sorted(out.glob("*.csv"))]
    shown = [each for path in pages(ROOT) for each in markers(path.read_text(encoding="utf-8"))]
    sheet = Environment(autoescape=True, trim_blocks=True, undefined=StrictUndefined)
    sheet.filters["inline"] = inline
    return sheet.from_string(SHEET).render(
        trial=(out / "data").is_dir(),
        unfinished=[f"{rows.name}.csv" for rows in files if not rows.is_complete],
        sections=[(rows, parts(rows, shown, paper)) for rows in files if rows.is_complete],
    )


def parts(rows: Rows, shown: list[Marker], paper: Path | None) -> list[str | Table]:
    """Return the tables, and the figures as SVG, that the documentation shows for rows of this
    name. Return all rows if the documentation shows no view of them, or if columns are missing."""
    made: list[str | Table] = []
    for what in (each for each in shown if each.name == rows.name):
        show = show_plot if what.view == "plot" else show_table
        # A trial run has fewer settings.
        with suppress(ValueError, LookupError):
            made.append(show(rows, what, paper))
    return made or [show_table(rows, Marker(rows.name, "all", []), paper)]


def inline(cell: str) -> Markup:
    """Convert a cell's Markdown to HTML."""
    text = html.escape(cell, quote=False).replace("+-", "±")
    text = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", text)
    return Markup(re.sub(r"`(.+?)`", r"<code>\1</code>", text))


@click.command()
@click.argument("out", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to write [default: OUT/report.html].",
)
@click.option(
    "--paper",
    type=PATH,
    help="Folder for tables as LaTeX and figures as PDF.",
)
def main(out: Path, output: Path | None, paper: Path | None) -> None:
    """Create a page that shows the rows in OUT."""
    path = output or out / "report.html"
    path.write_text(page(out, paper), encoding="utf-8")
    click.echo(path)


if __name__ == "__main__":
    main()
