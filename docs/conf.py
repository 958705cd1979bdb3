"""How sphinx-build makes the site of these pages. Needs nothing from the network."""

from __future__ import annotations

from typing import Any

import boc

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
# Types of other libraries, and modules that nobody is to import.
nitpick_ignore_regex = [
    (r"py:.*", r"(?!boc\.).*"),
    (r"py:.*", r"boc\..*\._.*"),
    (r"py:.*", r"boc\.types\..*"),
    (r"py:.*", r"boc\.codecs\.base\..*"),
]


def _lengths(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Docstrings write |v| for the length of v, where reStructuredText would look for a substitution."""
    lines[:] = [line.replace("|", r"\|") for line in lines]


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", _lengths)
