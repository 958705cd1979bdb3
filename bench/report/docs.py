"""Figures of the documentation, made of the rows in docs/rows: ``python -m bench.report.docs``, or ``--check``.

A page has what is made between markers, and everything between them is written anew:

    <!-- rows: NAME VIEW WORD... -->                      a view of docs/rows/NAME.csv (views.py), as a table
    <!-- end -->

    <!-- rows: NAME plot PLOT -->                         a plot (plot.py), as docs/figures/NAME-PLOT.svg
    <!-- end -->

    R@10 is <!-- rows: NAME cell COLUMN .1f KEY=VALUE... -->61.5<!-- end -->     one figure, in a sentence

Words with spaces are quoted: ``"scored by=dot"``. A figure never begins a line, where its comment would make the whole
line HTML. A plot names the digest of the rows that it was drawn of, which is compared: pixels differ by matplotlib.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from pathlib import Path

import click

from bench.report.rows import Rows, read
from bench.report.tables import ViewError, cell, table

ROOT = Path(__file__).resolve().parents[2]
MARKED = re.compile(r"(<!-- rows: (?P<what>[^\n]*?) -->)(?P<old>.*?)(?P<end><!-- end -->)", re.DOTALL)


def pages(root: Path) -> list[Path]:
    """Those that may have figures."""
    return [root / "README.md", *sorted((root / "docs").glob("**/*.md"))]


def made(text: str, page: Path, root: Path, write: bool = False) -> str:
    """The page with all between its markers made anew, and plots drawn if ``write``; ViewError for what cannot be."""

    def replaced(match: re.Match[str]) -> str:
        name, view, *words = shlex.split(match["what"])
        path = root / "docs" / "rows" / f"{name}.csv"
        rows = _rows(path)
        if view == "cell":
            if match.string[: match.start()].rpartition("\n")[2].strip() == "":
                raise ViewError(f"a figure begins a line, which makes the line HTML; put a word before it: {match[1]}")
            column, told, *keys = words
            row = cell(rows, **dict(key.split("=", 1) for key in keys))
            if column not in row:
                raise ViewError(f"{name}: no column {column!r}; known: {', '.join(row)}")
            return f"{match[1]}{float(row[column]):{told}}{match['end']}"
        if view == "plot":
            body = _plot(rows, f"{name}-{words[0]}", page, root, digest(path), write)
        else:
            body = table(rows, view, *words).markdown()
        return f"{match[1]}\n\n{body}\n\n{match['end']}"

    return MARKED.sub(replaced, text)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _rows(path: Path) -> Rows:
    if not path.exists():
        raise ViewError(f"no rows {path}; known: {', '.join(sorted(p.stem for p in path.parent.glob('*.csv')))}")
    rows = read(path)
    if not rows.done:
        raise ViewError(f"{path} has no line '# done', so not all rows; run its stage to its end")
    return rows


def _plot(rows: Rows, name: str, page: Path, root: Path, of: str, write: bool) -> str:
    """The link to a plot, drawn if ``write``; without it, told as differing where it is of other rows."""
    from bench.report.page import measured_on
    from bench.report.plot import plots  # matplotlib, for those pages that have plots

    found = {plot.name: plot for plot in plots(rows, measured_on(rows))}
    if name not in found:
        raise ViewError(f"{rows.name}: no plot {name!r}; known: {', '.join(found)}")
    path = root / "docs" / "figures" / f"{name}.svg"
    mark = f"<!-- drawn of rows {of} -->"
    if write:
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{found[name].svg.rstrip()}\n{mark}\n", encoding="utf-8")
    elif not path.exists() or mark not in path.read_text(encoding="utf-8"):
        raise ViewError(f"{path} is not drawn of the rows of {rows.name}; run python -m bench.report.docs")
    return f"![{found[name].title}]({os.path.relpath(path, page.parent)})"


@click.command()
@click.option("--check", is_flag=True, help="Change nothing; fail if a page differs from its rows.")
@click.option("--root", default=ROOT, type=click.Path(exists=True, file_okay=False, path_type=Path), hidden=True)
def main(check: bool, root: Path) -> None:
    """Bring the pages of the documentation to what the rows say."""
    differ = []
    for page in pages(root):
        old = page.read_text(encoding="utf-8")
        try:
            new = made(old, page, root, write=not check)
        except ViewError as error:
            raise click.ClickException(f"{page}: {error}") from error
        if new != old:
            differ.append(page)
            if not check:
                page.write_text(new, encoding="utf-8")
    for page in differ:
        click.echo(f"{page} {'differs from' if check else 'brought to'} its rows", err=True)
    if check and differ:
        raise click.ClickException("run python -m bench.report.docs")


if __name__ == "__main__":
    main()
