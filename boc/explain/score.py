"""Explain a score by the terms that the query and the item share, and by the regions and words that
these terms come from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import starmap, zip_longest
from pathlib import Path
from typing import Any, Literal

import numpy as np

from boc.codecs import SurrogateCodec
from boc.errors import BocError, ImageError
from boc.labels import IndexLabels, Label, content_words, unpack_labels, whole_words
from boc.paths import nfc
from boc.plugins import find_item
from boc.rerank.dot import dot
from boc.search.options import check_sentence
from boc.search.searcher import Searcher
from boc.types import MODALITIES, OFFSET_PARTS, Embeddings, ImageRef, Item, Ragged
from boc.vectors import Array, Doubles, Floats, Ints, unit_rows

LABELLED = 10


@dataclass(frozen=True)
class Match:
    """Term shared by the query and the item, with both frequencies. ``label`` is None if no label
    was requested."""

    term: int
    query_frequency: int
    item_frequency: int
    label: Label | None = None

    @property
    def product(self) -> int:
        """Return the contribution of the term to the score."""
        return self.query_frequency * self.item_frequency


@dataclass(frozen=True)
class ConceptParts:
    """Parts of a query or an item: words of a sentence, or regions of a picture.

    ``names`` contains the words, or the numbers of the regions from 1. ``vectors`` float32 (n, d)
    contains the concepts. ``of`` (n,) contains the index in ``names`` for each concept, because a
    word can consist of several word-pieces. ``boxes`` (n, 4), x1 y1 x2 y2 in [0, 1], is set for
    pictures if the encoder returns boxes.
    """

    names: list[str]
    vectors: Floats
    of: Ints
    boxes: Floats | None = None


@dataclass(frozen=True)
class Explanation:
    """Explanation of the score of ``item`` for a query.

    ``matches`` lists the shared terms, sorted by descending product. ``query`` is the sentence or
    the path of the picture. ``query_parts`` and ``item_parts`` are None if there are no concepts;
    ``missing`` then contains the reason. ``by_vectors`` is the score of the vectors, or None for
    terms from another system. ``part_shares`` float64 (matches, item parts) contains the
    contribution of each region or word of the item to each term; rows add up to 1, or to 0 for
    terms that do not come from single parts. ``offset`` is the part of the vector score that
    corrects hubs, or None if the encoder has no hub offsets.
    """

    query: Item
    item: Item
    matches: list[Match]
    query_parts: ConceptParts | None = None
    item_parts: ConceptParts | None = None
    part_shares: Doubles = field(default_factory=lambda: np.zeros((0, 0)))
    missing: str = ""
    offset: float | None = None
    by_vectors: float | None = None

    @property
    def score(self) -> int:
        """Return the sum of the products, which is the score of the index before re-ranking."""
        return sum(match.product for match in self.matches)

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation in a form that JSON can represent: terms with words and examples,
        and parts with names, boxes and weights."""
        terms = []
        for match, row in zip_longest(self.matches, self.part_shares):
            label = match.label or Label()
            parts = None
            if row is not None and row.any():
                parts = _round(row)
            terms.append(
                {
                    "term": match.term,
                    "words": [*label.words],
                    "examples": [
                        {"id": each.id, "box": each.box and [*each.box]} for each in label.examples
                    ],
                    "query": match.query_frequency,
                    "item": match.item_frequency,
                    "product": match.product,
                    "share": match.product / self.score,
                    "parts": parts,
                },
            )
        return {
            "id": self.item.id,
            "modality": self.item.modality,
            "score": self.score,
            "by_vectors": self.by_vectors,
            "terms": terms,
            "item_parts": _part_values(self.item_parts, self.weights),
            "query_parts": _part_values(self.query_parts, None),
            "alignment": _round(self.alignment),
            "weighed_by": self.weighed_by,
            "missing": self.missing or None,
            "offset": self.offset,
        }

    @cached_property
    def alignment(self) -> Floats | None:
        """Return the cosines (query parts, item parts) of the concept vectors. The cosine of a word
        is the maximum over its word-pieces."""
        if self.query_parts is None or self.item_parts is None:
            return None
        cosines = unit_rows(self.query_parts.vectors) @ unit_rows(self.item_parts.vectors).T
        return _max_per_name(_max_per_name(cosines, self.query_parts).T, self.item_parts).T

    @property
    def weighed_by(self) -> Literal["terms", "alignment"]:
        """Return the origin of ``weights``: the shared terms if they come from single parts of the
        item, otherwise the alignment."""
        return "terms" if self.part_shares.any() else "alignment"

    @cached_property
    def weights(self) -> Doubles | None:
        """Return the weights (n,) of the parts of the item. If terms come from single parts, the
        weights are fractions of the score and add up to 1. Otherwise, the weights are mean cosines
        with the content words of the query, or with all words or regions if the query has no
        content words."""
        if self.part_shares.any():
            products = np.array([match.product for match in self.matches], dtype=np.float64)
            sums = products @ self.part_shares
            shares: Doubles = sums / sums.sum()
            return shares
        cosines = self.alignment
        if cosines is None or self.query_parts is None:
            return None
        content = [i for i, name in enumerate(self.query_parts.names) if content_words(name)]
        if content and self.query.modality == "text":
            cosines = cosines[content]
        mean: Doubles = cosines.mean(axis=0, dtype=np.float64)
        return mean


def explain(
    searcher: Searcher,
    id: str,
    text: str | None = None,
    image: Path | str | None = None,
    *,
    labelled: int = LABELLED,
) -> Explanation:
    """Explain the score of the item ``id`` for a sentence or a picture.

    The ``labelled`` matches with the largest products have labels from the codebook or, if the
    codebook has no labels, from the index. An item that shares no terms with the query has no
    matches. Raises BocError if the id is unknown. If the picture of the item cannot be read,
    ``missing`` contains the reason, and the explanation contains only terms.
    """
    if (text is None) == (image is None):
        raise BocError(
            "an explanation needs exactly one query; give either a sentence or a picture",
        )
    query = Item("query", "image", str(image))
    if text is not None:
        check_sentence(text)
        query = Item("query", "text", nfc(text))
    try:
        item = find_item(searcher.index, id)
    except KeyError:
        raise BocError(f"no item {id!r} in the index; give the id of a hit") from None
    encoder = searcher.encoder

    def encode(item: Item) -> Embeddings:
        if item.modality == "text":
            return encoder.encode_texts([item.content])
        reference = ImageRef(item.group or item.path.name, item.path)
        return encoder.encode_images([encoder.prepare(reference)])

    encoded = encode(query)
    labels = TermLabels(searcher)
    return explain_item(searcher, query, encoded, item, encode, labels, labelled=labelled)


def explain_item(
    searcher: Searcher,
    query: Item,
    embeddings: Embeddings,
    item: Item,
    encode: Callable[[Item], Embeddings],
    labels: TermLabels,
    *,
    labelled: int,
) -> Explanation:
    """Explain the score of an item for an encoded query ``embeddings``.

    ``encode`` encodes the item again to compute its regions or words. If it raises ImageError,
    ``missing`` contains the message.
    """
    code = searcher.codec.encode_queries(embeddings)
    terms = searcher.index.terms([item.id], code.indices.tolist())
    shared, a, b = np.intersect1d(
        code.indices,
        terms.indices,
        assume_unique=True,
        return_indices=True,
    )
    entries = zip(shared.tolist(), code.data[a].tolist(), terms.data[b].tolist(), strict=True)
    # Sort by descending product, then by term.
    matches = sorted(starmap(Match, entries), key=lambda match: (-match.product, match.term))
    matches[:labelled] = [replace(match, label=labels[match.term]) for match in matches[:labelled]]
    vector = embeddings.vectors[0]
    stored = searcher.index.vectors([item.id]).astype(np.float32)
    offset = None
    if searcher.index.manifest.identity.has_offsets:
        # In items, this component contains the offset; in queries, the weight of the offset.
        place = MODALITIES.index(item.modality) - len(OFFSET_PARTS)
        offset = round(float(vector[place] * stored[0, place]), 4)
    explanation = Explanation(
        query,
        item,
        matches,
        _parts(embeddings),
        offset=offset,
        by_vectors=round(float(dot(vector, stored)[0]), 6),
    )
    try:
        encoded = encode(item)
    except ImageError as error:
        return replace(explanation, missing=str(error))
    item_parts = _parts(encoded)
    missing = ""
    if explanation.query_parts is None or item_parts is None:
        missing = (
            "no regions or words, because the encoder returns only vectors or detected no parts"
        )
    numbers = [match.term for match in matches]
    part_shares = _part_shares(searcher.codec, encoded, item_parts, numbers)
    return replace(explanation, item_parts=item_parts, part_shares=part_shares, missing=missing)


def _parts(embeddings: Embeddings) -> ConceptParts | None:
    """Return the parts of the single item in ``embeddings``, or None if it has no concepts."""
    if embeddings.concepts is None or not len(embeddings.concepts.values):
        return None
    vectors = embeddings.concepts[0]
    if embeddings.words is not None:
        names, of = whole_words(embeddings.words[0])
        return ConceptParts(names, vectors, of)
    names = [f"{i + 1}" for i in range(len(vectors))]
    boxes = None
    if embeddings.boxes is not None:
        boxes = embeddings.boxes[0]
    return ConceptParts(names, vectors, np.arange(len(vectors)), boxes)


def _part_shares(
    codec: SurrogateCodec,
    encoded: Embeddings,
    parts: ConceptParts | None,
    terms: Sequence[int],
) -> Doubles:
    """Return the contribution (terms, parts) of each part to each term, computed by encoding each
    part on its own."""
    if parts is None:
        return np.zeros((len(terms), 0))
    part_shares = np.zeros((len(terms), len(parts.names)))
    # In other codes, terms come from the global vector rather than from single parts.
    if not codec.reads_concepts:
        return part_shares
    n = len(parts.vectors)
    words = encoded.words and [[parts.names[i]] for i in parts.of]
    sets = Ragged(parts.vectors, np.arange(n + 1))
    singles = Embeddings(encoded.modality, np.repeat(encoded.vectors, n, axis=0), sets, words=words)
    frequencies = codec.encode_documents(singles)[:, list(terms)].toarray().astype(np.float64)
    np.add.at(part_shares.T, parts.of, frequencies)
    sums = part_shares.sum(axis=1, keepdims=True)
    return part_shares / np.where(sums > 0, sums, 1)


class TermLabels(dict[int, Label]):
    """Term labels from ``term_labels_`` of a codec step, or from the index if the codec has no
    labels.

    Labels are computed on first use and cached.
    """

    def __init__(self, searcher: Searcher) -> None:
        super().__init__()
        codec = searcher.codec
        self._index_labels = IndexLabels(searcher.index, codec.n_terms)
        self._stored: dict[int, Label] = {}
        for step in codec.steps:
            packed = getattr(step, "term_labels_", None)
            if packed is not None:
                self._stored.update(enumerate(unpack_labels(packed)))

    def __missing__(self, term: int) -> Label:
        label = self._stored.get(term, Label())
        if not label.words or not label.examples:
            other = self._index_labels[term]
            label = Label(label.words or other.words, label.examples or other.examples)
        self[term] = label
        return label


def _max_per_name(rows: Floats, parts: ConceptParts) -> Floats:
    maxima = np.full((len(parts.names), rows.shape[1]), -np.inf, dtype=np.float32)
    np.maximum.at(maxima, parts.of, rows)
    return maxima


def _part_values(parts: ConceptParts | None, weights: Doubles | None) -> dict[str, Any] | None:
    if parts is None:
        return None
    return {"names": parts.names, "boxes": _round(parts.boxes), "weights": _round(weights)}


def _round(values: Array | None) -> list[Any] | None:
    if values is None:
        return None
    rounded: list[Any] = np.round(values.astype(np.float64), 6).tolist()
    return rounded
