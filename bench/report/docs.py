"""Generates the figures of the documentation from docs/rows: ``python -m bench.report.docs``, or ``--check``.

A page has markers, and everything between them is generated:

    <!-- rows: NAME VIEW WORD... -->                      a view of docs/rows/NAME.csv (views.py), as a table
    <!-- end -->

    <!-- rows: NAME plot PLOT -->                         a plot (plot.py), as docs/figures/NAME-PLOT.svg
    <!-- end -->

A plot has the digest of its rows, which is compared, since pixels depend on the version of matplotlib.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from pathlib import Path

import click

from bench.report.rows import Rows, read
from bench.report.tables import ViewError
from bench.report.views import table

ROOT = Path(__file__).resolve().parents[2]
MARKED = re.compile(r"(<!-- rows: (?P<what>[^\n]*?) -->)(?P<old>.*?)(?P<end><!-- end -->)", re.DOTALL)


def pages(root: Path) -> list[Path]:
    """The pages that may have figures."""
    return [root / "README.md", *sorted((root / "docs").glob("**/*.md"))]


def made(text: str, page: Path, root: Path, write: bool = False) -> str:
    """The page with everything between its markers generated, and plots drawn if ``write``. ViewError for a bad
    marker."""

    def replaced(match: re.Match[str]) -> str:
        name, view, *words = shlex.split(match["what"])
        path = root / "docs" / "rows" / f"{name}.csv"
        rows = _rows(path)
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
    """The link to a plot, drawn if ``write``; otherwise ViewError if it was drawn from other rows."""
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
    """Generate the figures of the pages of the documentation."""
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
