"""Generate the tables and figures of the documentation from docs/rows: ``python -m
bench.report.docs``, or ``--check``.

README.md and every page below docs/ can contain markers. The text between two markers is generated:

    <!-- rows: NAME VIEW WORD... -->  a view (views.py) of docs/rows/NAME.csv, as a table
    <!-- end -->

    <!-- rows: NAME plot PLOT -->     a plot (figures.py), as docs/figures/NAME-PLOT.svg
    <!-- end -->

With ``--paper FOLDER`` each table is also written to the folder as LaTeX, and each plot as PDF.

A plot contains the digest of its rows. The check compares digests, because pixels depend on the
version of matplotlib. The script behind all displayed rows must be in the repository.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click

from bench.options import PATH
from bench.report.paper import save_figure, save_table
from bench.report.rows import Rows, read
from bench.report.views import Table, ViewError, table
from boc.atomic_files import sha256

ROOT = Path(__file__).resolve().parents[2]
MARKED = re.compile(
    r"(<!-- rows: (?P<what>[^\n]*?) -->)(?P<old>.*?)(?P<end><!-- end -->)",
    re.DOTALL,
)
SCRIPTS = {
    path.name for folder in ("bench", "tests/servers") for path in (ROOT / folder).rglob("*.py")
}


class Marker(NamedTuple):
    """Contents between two markers: a view or a plot of a file of rows."""

    name: str
    view: str
    words: list[str]


def pages(root: Path) -> list[Path]:
    """Return the pages that can contain markers."""
    return [root / "README.md", *sorted((root / "docs").glob("**/*.md"))]


def markers(text: str) -> Iterator[Marker]:
    """Yield the markers of a page."""
    for match in MARKED.finditer(text):
        yield marker(match["what"])


def marker(what: str) -> Marker:
    name, view, *words = shlex.split(what)
    return Marker(name, view, words)


def generate(
    text: str,
    page: Path,
    root: Path,
    write: bool = False,
    paper: Path | None = None,
) -> str:
    """Generate the text between a page's markers, and draw plots if ``write``. Also write tables
    and plots to the folder ``paper``. Raises ViewError for an invalid marker."""

    def regenerate(match: re.Match[str]) -> str:
        what = marker(match["what"])
        rows = read_finished(root / "docs" / "rows" / f"{what.name}.csv")
        if what.view == "plot":
            body = figure(rows, what, page, root, write, paper)
        else:
            body = show_table(rows, what, paper).folded()
        return f"{match[1]}\n\n{body}\n\n{match['end']}"

    return MARKED.sub(regenerate, text)


def read_finished(path: Path) -> Rows:
    """Read complete rows. Raises ViewError for incomplete rows."""
    if not path.exists():
        raise ViewError(
            f"no rows {path}; known: "
            f"{', '.join(sorted(p.stem for p in path.parent.glob('*.csv')))}",
        )
    rows = read(path)
    if not rows.is_complete:
        raise ViewError(f"{path} has no line '# done'; run its script to completion")
    if rows.head["script"] not in SCRIPTS:
        raise ViewError(
            f"{path}: {rows.head['script']} is not in the repository; delete these rows",
        )
    return rows


def show_table(rows: Rows, what: Marker, paper: Path | None) -> Table:
    """Return the table of rows, and write it to ``paper`` if given. Raises ViewError for an unknown
    table."""
    shown = table(rows, what.view, what.words)
    if paper is not None:
        save_table(paper, *what, shown)
    return shown


def show_plot(rows: Rows, what: Marker, paper: Path | None) -> str:
    """Return the plot of rows as SVG, and write it to ``paper`` if given. Raises ViewError for an
    unknown plot."""
    from bench.report import figures  # imports matplotlib, which only pages with plots need

    (name,) = what.words
    try:
        drawing = figures.svg(rows, name)
    except KeyError as error:
        raise ViewError(
            f"{what.name}: no plot {name!r} ({error}); known: {', '.join(figures.PLOTS)}",
        ) from error
    if paper is not None:
        title = figures.title(rows, name)
        save_figure(paper, what.name, what.words, title, figures.pdf(rows, name))
    return drawing


def figure(
    rows: Rows,
    what: Marker,
    page: Path,
    root: Path,
    write: bool,
    paper: Path | None,
) -> str:
    """Return the link to a plot. With ``write``, the plot is drawn; otherwise, raise ViewError if
    the plot was drawn from other rows."""
    path = root / "docs" / "figures" / f"{what.name}-{what.words[0]}.svg"
    digest = sha256(root / "docs" / "rows" / f"{what.name}.csv")
    mark = f"<!-- drawn of rows {digest[:16]} -->"
    if write:
        path.parent.mkdir(exist_ok=True)
        drawing = show_plot(rows, what, paper)
        path.write_text(f"{drawing.rstrip()}\n{mark}\n", encoding="utf-8")
    elif not path.exists() or mark not in path.read_text(encoding="utf-8"):
        raise ViewError(
            f"{path} was not drawn from the rows of {what.name}; run python -m bench.report.docs",
        )
    from bench.report.figures import title

    return f"![{title(rows, what.words[0])}]({os.path.relpath(path, page.parent)})"


@click.command()
@click.option(
    "--check",
    is_flag=True,
    help="Fail if a page differs from its rows, without changing it.",
)
@click.option(
    "--paper",
    type=PATH,
    help="Folder for tables as LaTeX and figures as PDF.",
)
@click.option(
    "--root",
    default=ROOT,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    hidden=True,
)
def main(check: bool, paper: Path | None, root: Path) -> None:
    """Generate the tables and figures of the documentation."""
    differ = []
    for page in pages(root):
        old = page.read_text(encoding="utf-8")
        try:
            new = generate(old, page, root, write=not check, paper=paper)
        except ViewError as error:
            raise click.ClickException(f"{page}: {error}") from error
        if new != old:
            differ.append(page)
            if not check:
                page.write_text(new, encoding="utf-8")
    for page in differ:
        click.echo(f"{page} {'differs from' if check else 'updated from'} its rows", err=True)
    if check and differ:
        raise click.ClickException("run python -m bench.report.docs")


if __name__ == "__main__":
    main()
