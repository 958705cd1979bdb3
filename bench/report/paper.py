"""Write tables as LaTeX and figures as PDF, for ``--paper FOLDER`` of ``bench.report.docs`` and
``bench.report.page``.

A table NAME-VIEW.tex is a ``tabular`` with booktabs rules, to be included in a ``table`` by
``\\input``. A figure NAME-PLOT.pdf has no title, because NAME-PLOT-figure.tex contains the title as
the caption.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from bench.report.views import Table

ESCAPES = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "#": r"\#",
    "$": r"\$",
    "%": r"\%",
    "&": r"\&",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
}
MARKS = re.compile(r"\*\*(?P<bold>.+?)\*\*|`(?P<code>.+?)`")
NUMBER = re.compile(
    r"[-+]?[\d.,]*\d( ?(±|\+-|/|\().*)?",
)  # cells aligned to the right edge of a column


def inline(text: str) -> str:
    """Convert the text of a cell to LaTeX, including its ** bold ** and ` code ` marks."""
    parts = []
    last = 0
    for match in MARKS.finditer(text):
        command = "textbf" if match["bold"] else "texttt"
        parts += [
            escape(text[last : match.start()]),
            rf"\{command}{{{escape(match['bold'] or match['code'])}}}",
        ]
        last = match.end()
    return "".join([*parts, escape(text[last:])])


def escape(text: str) -> str:
    """Escape plain text for LaTeX."""
    escaped = "".join(ESCAPES.get(letter, letter) for letter in text)
    return escaped.replace("+-", r"$\pm$").replace("±", r"$\pm$")


def latex(table: Table) -> str:
    """Return a table as a ``tabular``. Columns of numbers are right-aligned, and other columns are
    left-aligned."""
    columns = list(zip(*table.lines, strict=True)) or [()] * len(table.head)
    sides = [
        "r" if any(cells) and all(NUMBER.fullmatch(c) for c in cells if c) else "l"
        for cells in columns
    ]

    def line(cells: Sequence[str]) -> str:
        return " & ".join(map(inline, cells)) + r" \\"

    rules = [rf"\begin{{tabular}}{{{''.join(sides)}}}", r"\toprule", line(table.head), r"\midrule"]
    return "\n".join([*rules, *map(line, table.lines), r"\bottomrule", r"\end{tabular}", ""])


def file_name(name: str, view: str, words: Sequence[str]) -> str:
    """Return the name of a table or figure without characters that are unsafe in file names or
    LaTeX."""
    return re.sub(r"\W+", "-", "-".join([name, view, *words])).strip("-")


def save_table(folder: Path, name: str, view: str, words: Sequence[str], table: Table) -> None:
    """Write a table to the folder, creating it if necessary."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{file_name(name, view, words)}.tex").write_text(latex(table), encoding="utf-8")


def save_figure(folder: Path, name: str, words: Sequence[str], title: str, page: bytes) -> None:
    """Write a figure and its caption to the folder, creating it if necessary."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = file_name(name, "", words)
    (folder / f"{stem}.pdf").write_bytes(page)
    text = f"% \\caption{{{escape(title)}.}}\n\\includegraphics{{{stem}}}\n"
    (folder / f"{stem}-figure.tex").write_text(text, encoding="utf-8")
