"""Convert items, terms and parts to JSON."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from boc.explain.score import Explanation
from boc.inputs.file_facts import visible_fields
from boc.types import Item, TermMatrix

CAPTIONS = 12  # largest number of captions sent per picture

Json = dict[str, Any]


def item(entry: Item) -> Json:
    """Return an item as JSON. A picture has its file name instead of its path, its size from the
    metadata fields (None without them), and in ``thumb`` the address of its thumbnail."""
    picture = entry.modality == "image"
    width = entry.fields.get("width")
    height = entry.fields.get("height")
    if not picture or not all(isinstance(x, int) and x > 0 for x in (width, height)):
        width = None
        height = None
    pictured = entry.id if picture else entry.group
    return {
        "id": entry.id,
        "modality": entry.modality,
        "content": Path(entry.content).name if picture else entry.content,
        "group": entry.group,
        "fields": visible_fields(entry.fields),
        "width": width,
        "height": height,
        "thumb": thumb(pictured) if pictured else None,
    }


def thumb(id: str) -> str:
    """Return the address of an item's thumbnail, relative to the page of its index."""
    # Browsers resolve dot segments, but not between encoded slashes.
    odd = {"", ".", ".."} & set(id.split("/"))
    return "api/thumb/" + quote(id, safe="" if odd else "/")


def word_answers(terms: TermMatrix, words: Mapping[int, str]) -> list[Json]:
    """Return the words of one row of terms, most frequent first; ties go to the lower term."""
    pairs = sorted(
        zip(terms.indices.tolist(), terms.data.tolist(), strict=True),
        key=lambda pair: (-pair[1], pair[0]),
    )
    return [
        {"word": words[term], "frequency": frequency} for term, frequency in pairs if term in words
    ]


def explanation(result: Explanation) -> Json:
    """Return an explanation as JSON, with thumbnails for its examples."""
    answer = result.to_dict()
    for term in answer["terms"]:
        term["examples"] = [{**each, "thumb": thumb(each["id"])} for each in term["examples"]]
    return answer
