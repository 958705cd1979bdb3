"""Items, terms and parts as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from boc.explain.score import Explanation, Match, Parts
from boc.inputs.file_facts import visible_fields
from boc.types import Item, TermMatrix

SURROGATE = 20_000  # characters of a surrogate text that are sent
CAPTIONS = 12  # captions per picture that are sent

Json = dict[str, Any]


def item(entry: Item) -> Json:
    """Return an ``ItemAnswer``, with the file name of a picture, not its path; its size is that of its fields."""
    picture = entry.modality == "image"
    sizes = [entry.fields.get(name) for name in ("width", "height")]
    width, height = sizes if picture and all(isinstance(x, int) and x > 0 for x in sizes) else (None, None)
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
    """Return the address of the thumbnail of an item, from that of the page of its index."""
    # Browsers resolve such parts of a path, encoded or not, but leave alone what stands between encoded slashes.
    odd = {"", ".", ".."} & set(id.split("/"))
    return "api/thumb/" + quote(id, safe="" if odd else "/")


def word_answers(terms: TermMatrix, words: Mapping[int, str]) -> list[Json]:
    """Return ``WordAnswer``s of one row of terms, the most frequent first, ties to the lower term."""
    pairs = sorted(zip(terms.indices.tolist(), terms.data.tolist(), strict=True), key=lambda pair: (-pair[1], pair[0]))
    return [{"word": words[term], "frequency": frequency} for term, frequency in pairs if term in words]


def explanation(result: Explanation, terms: TermMatrix) -> Json:
    """Return an ``ExplanationAnswer``; ``terms`` (1, V) are those that the index stores for the item."""
    cosines = result.alignment
    shares = result.part_shares if result.part_shares.any() else np.zeros((len(result.matches), 0))
    return {
        "id": result.item.id,
        "modality": result.item.modality,
        "score": result.score,
        "terms": [_term(result, match, row) for match, row in zip(result.matches, shares, strict=True)],
        "item_parts": _parts(result.item_parts, result.weights),
        "query_parts": _parts(result.query_parts, None),
        "alignment": None if cosines is None else _round(cosines),
        "weighed_by": result.weighed_by,
        "missing": result.missing or None,
        "surrogate": {"query": _text(result.query_terms), "item": _text(terms)},
    }


def _term(result: Explanation, match: Match, shares: NDArray[np.float64]) -> Json:
    label = match.label
    examples = [] if label is None else [(each.id, each.box) for each in label.examples]
    return {
        "term": match.term,
        "words": [] if label is None else list(label.words),
        "examples": [{"id": id, "thumb": thumb(id), "box": box and list(box)} for id, box in examples],
        "query": match.query_frequency,
        "item": match.item_frequency,
        "product": match.product,
        "share": match.product / result.score,
        "parts": _round(shares) if shares.any() else None,
    }


def _parts(parts: Parts | None, weights: NDArray[np.float64] | None) -> Json | None:
    if parts is None:
        return None
    boxes = None if parts.boxes is None else _round(parts.boxes)
    return {"names": parts.names, "boxes": boxes, "weights": None if weights is None else _round(weights)}


def _round(values: NDArray[Any]) -> list[Any]:
    rounded: list[Any] = np.round(values.astype(np.float64), 6).tolist()
    return rounded


def _text(terms: TermMatrix | None) -> str:
    """Return the surrogate text of one row, cut to ``SURROGATE`` characters."""
    if terms is None:
        return ""
    pairs = zip(terms.indices.tolist(), terms.data.tolist(), strict=True)
    words = (f"t{term}" for term, frequency in pairs for _ in range(frequency))
    return " ".join(islice(words, SURROGATE // 2))[:SURROGATE]
