"""How sphinx-build makes the site of these pages. Needs nothing from the network."""

from __future__ import annotations

from typing import Any

import click

import boc
from boc.cli import main

project = "boc"
author = "the authors of boc"
release = version = boc.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_click"]

smartquotes = False  # options keep their two dashes

html_theme = "furo"
html_title = "boc"
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False

myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
# Types of other libraries, private modules, and names that the reference leaves out.
UNDOCUMENTED = (
    r"(?!boc\.).*",
    r"boc\..*\._.*",
    r"boc\.errors\.F",
    r"boc\.types\..*",
    r"boc\.codecs\.(base\..*|codec\.Sample)",
)
suppress_warnings = ["ref.python"]  # boc.Index and boc.plugins.Index have one name
nitpick_ignore_regex = [(r"py:.*", name) for name in UNDOCUMENTED]


def _lengths(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Escape |v|, the length of v, which reStructuredText would take for a substitution."""
    lines[:] = [line.replace("|", r"\|") for line in lines]


def setup(app: Any) -> None:
    for command in main.commands.values():
        for option in command.params:
            if (
                isinstance(option, click.Option)
                and not option.is_flag
                and isinstance(option.default, (str, int, float))
            ):
                option.show_default = True  # as on the command line, whose context says so once
    app.connect("autodoc-process-docstring", _lengths)
