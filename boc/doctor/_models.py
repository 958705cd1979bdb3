"""Checks of the models of ``boc model get``: what is there. Their bytes are compared by ``boc model verify``."""

from __future__ import annotations

from collections.abc import Iterator

from boc import models
from boc.errors import BocError

from ._finding import Finding
from ._machine import shown


def downloaded() -> Iterator[Finding]:
    """Findings on each downloaded model."""
    try:
        folder, there = models.home(), list(models.models())
    except BocError as error:
        what, _, todo = str(error).rpartition("; ")
        yield Finding("problem", "models", what, todo)
        return
    for each in there:
        lacking = [name for name in each.files if not (each.folder / name).is_file()]
        if lacking:
            todo = f"boc model get {each.repository}"
            yield Finding("problem", f"model {each.repository}", f"lacks {', '.join(lacking)}", todo)
        else:
            licence = each.licence or "licence not stated"
            what = f"{shown(each.size)}, {licence}, revision {each.revision[:12]}, in {each.folder}"
            yield Finding("ok", f"model {each.repository}", what)
    if not there:
        todo = "to search pictures without training: boc model get clip"
        yield Finding("note", "models", f"none in {folder}", todo)
