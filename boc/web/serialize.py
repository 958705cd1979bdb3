"""Convert items, terms and explanations to JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from boc.codecs.surrogate_text import to_words
from boc.explain.score import Explanation
from boc.inputs.file_facts import visible_fields
from boc.types import Item, TermMatrix

CAPTIONS = 12  # maximum number of captions per picture in a response

Json = dict[str, Any]


def item(entry: Item) -> Json:
    """Return an item as JSON. For a picture, the JSON contains the file name instead of the path,
    the size according to the metadata (None if it is unknown), and the URL of its thumbnail in
    ``thumb``."""
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
    """Return the URL of an item's thumbnail, relative to the page of the index."""
    # Encode the slashes, because browsers would otherwise resolve dot segments.
    odd = {"", ".", ".."} & set(id.split("/"))
    return "api/thumb/" + quote(id, safe="" if odd else "/")


def word_answers(terms: TermMatrix, words: Mapping[int, str]) -> list[Json]:
    """Return the words for a single row of terms, most frequent first, with ties ordered by
    term."""
    counts = Counter(to_words(terms, words)[0].split())
    return [{"word": word, "frequency": frequency} for word, frequency in counts.items()]


def explanation(result: Explanation) -> Json:
    """Return an explanation as JSON, with thumbnails of the examples."""
    answer = result.to_dict()
    for term in answer["terms"]:
        term["examples"] = [{**each, "thumb": thumb(each["id"])} for each in term["examples"]]
    return answer
