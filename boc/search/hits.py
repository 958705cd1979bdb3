"""Present the hits for a query as a list, as a table, or as pictures in a notebook."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from itertools import chain
from typing import Any

from boc.errors import BocError, ImageError
from boc.inputs.file_facts import visible_fields
from boc.inputs.images import thumbnail_uri
from boc.types import Hit, HitList

MOST = 60  # maximum number of hits shown in a notebook
SIDE = 180  # size of a notebook thumbnail in pixels
GRID = "display:grid;gap:10px;grid-template-columns:repeat(auto-fill,minmax(180px,1fr))"


class Hits(HitList):
    """Sequence of ``Hit`` objects for a query, best first. Items are read when a hit is first
    accessed. Notebooks display the hits as thumbnails.

    ``notes`` explains how the sentence was interpreted, which of its words the encoder barely
    knows, and why the list is empty.
    """

    def __init__(
        self,
        count: int,
        make: Callable[[], Sequence[Hit]],
        notes: Sequence[str] = (),
    ) -> None:
        super().__init__(count, make)
        self.notes = list(notes)

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame with one row per hit. The columns are the entries of
        ``Hit.to_dict`` and the metadata fields.

        A field is omitted if its name is the name of another column. Raises BocError if pandas is
        not installed.
        """
        try:
            import pandas as pd
        except ImportError:
            raise BocError("to_pandas needs pandas; install it with: pip install pandas") from None
        rows = [{**visible_fields(hit.fields), **hit.to_dict()} for hit in self]
        columns = dict.fromkeys(chain(["id", "modality", "score", "content"], *rows))
        return pd.DataFrame(rows, columns=[name for name in columns if name != "fields"])

    def _repr_html_(self) -> str:
        more = f"<p>and {len(self) - MOST} more</p>" if len(self) > MOST else ""
        return f'<div style="{GRID}">{figures(self[:MOST], SIDE, "div")}</div>{more}'


def figures(hits: Sequence[Hit], side: int = 320, tag: str = "li") -> str:
    """Return hits as HTML: each hit as a sentence or as a thumbnail of at most ``side`` pixels,
    with the id and the score."""
    return "\n".join(
        f"<{tag}>{_figure(rank, hit, side)}</{tag}>" for rank, hit in enumerate(hits, 1)
    )


def _figure(rank: int, hit: Hit, side: int) -> str:
    name = escape(hit.item.id)
    caption = f"<figcaption><span>{name}</span> <span>{hit.score:.3f}</span></figcaption>"
    if hit.item.modality == "text":
        return f"<figure><blockquote>{escape(hit.item.content)}</blockquote>{caption}</figure>"
    try:
        picture = f'<img src="{thumbnail_uri(hit.item.path, side)}" alt="hit {rank}: {name}">'
    except ImageError as error:
        picture = f"<blockquote>{escape(str(error))}</blockquote>"
    return f"<figure>{picture}{caption}</figure>"
