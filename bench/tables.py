"""Figures of the documentation, made of the rows in docs/rows: ``python bench/tables.py``, or ``--check``.

A page has what is made between markers, and everything between them is written anew:

    <!-- rows: NAME VIEW WORD... -->                      a view of docs/rows/NAME.csv (views.py), as a table
    <!-- end -->

    <!-- rows: NAME plot PLOT -->                         a plot (plot.py), as docs/figures/PLOT.svg
    <!-- end -->

    R@10 is <!-- rows: NAME cell COLUMN .1f KEY=VALUE... -->61.5<!-- end -->     one figure, in a sentence

Words with spaces are quoted: ``"scored by=dot"``.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import click
from rows import Rows, read
from views import ViewError, cell, table

ROOT = Path(__file__).resolve().parent.parent
MARKED = re.compile(r"(<!-- rows: (?P<what>[^\n]*?) -->)(?P<old>.*?)(?P<end><!-- end -->)", re.DOTALL)


def pages(root: Path) -> list[Path]:
    """Those that may have figures."""
    return [root / "README.md", *sorted((root / "docs").glob("**/*.md"))]


def made(text: str, page: Path, root: Path, write: bool = False) -> str:
    """The page with all between its markers made anew, and plots drawn if ``write``; ViewError for what cannot be."""

    def replaced(match: re.Match[str]) -> str:
        name, view, *words = shlex.split(match["what"])
        rows = _rows(root, name)
        if view == "cell":
            column, told, *keys = words
            value = cell(rows, **dict(key.split("=", 1) for key in keys))[column]
            return f"{match[1]}{float(value):{told}}{match['end']}"
        body = _plot(rows, words[0], page, root, write) if view == "plot" else table(rows, view, *words).markdown()
        return f"{match[1]}\n{body}\n{match['end']}"

    return MARKED.sub(replaced, text)


def _rows(root: Path, name: str) -> Rows:
    path = root / "docs" / "rows" / f"{name}.csv"
    if not path.exists():
        raise ViewError(f"no rows {path}; known: {', '.join(sorted(p.stem for p in path.parent.glob('*.csv')))}")
    rows = read(path)
    if not rows.done:
        raise ViewError(f"{path} has no line '# done', so not all rows; run its stage to its end")
    return rows


def _plot(rows: Rows, name: str, page: Path, root: Path, write: bool) -> str:
    from plot import plots  # matplotlib, for those pages that have plots

    found = {plot.name: plot for plot in plots(rows)}
    if name not in found:
        raise ViewError(f"{rows.name}: no plot {name!r}; known: {', '.join(found)}")
    path = root / "docs" / "figures" / f"{name}.svg"
    if write:
        path.parent.mkdir(exist_ok=True)
        path.write_text(found[name].svg, encoding="utf-8")
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
        raise click.ClickException("run python bench/tables.py")


if __name__ == "__main__":
    main()
