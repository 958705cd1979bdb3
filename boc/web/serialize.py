"""Items, terms and parts as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from boc.explain.score import Explanation, Match, Parts
from boc.inputs.file_facts import visible_fields
from boc.labels import Example
from boc.types import Item, TermMatrix

SURROGATE = 20_000  # characters of a surrogate text that are sent
CAPTIONS = 12  # captions per picture that are sent

Json = dict[str, Any]


def item(found: Item) -> Json:
    """Return an ``ItemAnswer``. It has the file name of a picture, but not its path on this disk; its width and height
    are those of its fields."""
    picture = found.modality == "image"
    sizes = [found.fields.get(name) for name in ("width", "height")]
    width, height = sizes if picture and all(isinstance(x, int) and x > 0 for x in sizes) else (None, None)
    pictured = found.id if picture else found.group
    return {
        "id": found.id,
        "modality": found.modality,
        "content": Path(found.content).name if picture else found.content,
        "group": found.group,
        "fields": visible_fields(found.fields),
        "width": width,
        "height": height,
        "thumb": thumb(pictured) if pictured else None,
    }


def thumb(id: str) -> str:
    """The address of the thumbnail of an item, from that of the page of its index."""
    # Browsers resolve such parts of a path, encoded or not, but leave alone what stands between encoded slashes.
    odd = {"", ".", ".."} & set(id.split("/"))
    return "api/thumb/" + quote(id, safe="" if odd else "/")


def written(terms: TermMatrix, words: Mapping[int, str]) -> list[Json]:
    """``WordAnswer``s of one row of terms, the most frequent first, ties to the lower term."""
    pairs = sorted(zip(terms.indices.tolist(), terms.data.tolist(), strict=True), key=lambda pair: (-pair[1], pair[0]))
    return [{"word": words[term], "frequency": frequency} for term, frequency in pairs if term in words]


def explanation(found: Explanation, terms: TermMatrix, of: str, captions: Sequence[str]) -> Json:
    """An ``ExplanationAnswer``; ``terms`` (1, V) are those that the index stores for the item."""
    cosines = found.alignment
    return {
        "id": found.item.id,
        "modality": found.item.modality,
        "score": found.score,
        "of": of,
        "terms": [_term(found, match, parts) for match, parts in zip(found.matches, _carried(found), strict=True)],
        "item_parts": _parts(found.item_parts, found.weights),
        "query_parts": _parts(found.query_parts, None),
        "alignment": None if cosines is None else _rounded(cosines),
        "weighed_by": found.weighed_by,
        "missing": found.missing or None,
        "surrogate": {"query": _text(found.query_terms), "item": _text(terms)},
        "captions": list(captions),
    }


def _carried(found: Explanation) -> list[list[float] | None]:
    """For each term the shares of the parts of the item."""
    if not found.carried.any():
        return [None] * len(found.matches)
    return [_rounded(row) if row.any() else None for row in found.carried]


def _term(found: Explanation, match: Match, parts: list[float] | None) -> Json:
    label = match.label
    return {
        "term": match.term,
        "words": [] if label is None else list(label.words),
        "examples": [] if label is None else [_example(example) for example in label.examples],
        "query": match.query_frequency,
        "item": match.item_frequency,
        "product": match.product,
        "share": match.product / found.score,
        "parts": parts,
    }


def _example(example: Example) -> Json:
    return {"id": example.id, "thumb": thumb(example.id), "box": example.box and list(example.box)}


def _parts(parts: Parts | None, weights: NDArray[np.float64] | None) -> Json | None:
    if parts is None:
        return None
    boxes = None if parts.boxes is None else _rounded(parts.boxes)
    return {"names": parts.names, "boxes": boxes, "weights": None if weights is None else _rounded(weights)}


def _rounded(values: NDArray[Any]) -> list[Any]:
    rounded: list[Any] = np.round(values.astype(np.float64), 6).tolist()
    return rounded


def _text(terms: TermMatrix | None) -> str:
    """The surrogate text of one row, cut to ``SURROGATE`` characters."""
    if terms is None:
        return ""
    pairs = zip(terms.indices.tolist(), terms.data.tolist(), strict=True)
    words = (f"t{term}" for term, frequency in pairs for _ in range(frequency))
    return " ".join(islice(words, SURROGATE // 2))[:SURROGATE]
