"""Schemas of all answers, for OpenAPI."""

from typing import Any, Literal

from pydantic import BaseModel

Modality = Literal["image", "text"]
Box = tuple[float, float, float, float]
"""x1, y1, x2, y2 as fractions of the width and height of the picture."""


class Error(BaseModel):
    """An error: the value, the rule and the next step, in one line."""

    error: str


class Counts(BaseModel):
    """Number of items by modality."""

    image: int
    text: int


class Limits(BaseModel):
    """Limits of a request: hits, characters of a sentence, bytes of an uploaded picture,
    filters."""

    k: int
    sentence: int
    upload: int
    filters: int


class Info(BaseModel):
    """The contents of the index. ``rm`` is the number of candidates re-ranked per hit, ``examples``
    are sentences of the index. ``fields`` are
    the types of the metadata fields of which an item has a value, and of the text fields;
    ``facets`` are the fields whose values are worth counting, with usual ones; of dates their
    years. With ``keeps`` clients may add pictures."""

    name: str
    at: str
    version: str
    engine: str
    items: Counts
    code: str
    terms: int
    rm: float
    rerank: str
    dim: int
    encoder: str
    fields: dict[str, str]
    facets: dict[str, list[str]]
    concepts: bool
    keeps: bool
    examples: list[str]
    limits: Limits


class ItemAnswer(BaseModel):
    """An item of the index. ``content`` is the sentence, or the file name of the picture. ``width``
    and ``height`` are those of its fields; null for a sentence, and for a picture without these
    fields. ``thumb`` is the address of a thumbnail of the picture, or the one described:
    ``api/thumb/ID``."""

    id: str
    modality: Modality
    content: str
    group: str
    fields: dict[str, Any]
    width: int | None
    height: int | None
    thumb: str | None


class HitAnswer(ItemAnswer):
    """An item with its score. ``duplicates`` are the ids put under it."""

    score: float
    duplicates: list[str] = []


class LibraryAnswer(BaseModel):
    """Some pictures of the index by date; ``pictures`` is the number of all of them that pass."""

    pictures: int
    hits: list[ItemAnswer]


class AddedPicture(BaseModel):
    """The ``id`` of a picture that was kept; ``replaced`` if the index held it already."""

    id: str
    replaced: bool


class UnknownWordBody(BaseModel):
    """A word that neither the index nor its encoder has, and the one there most like it."""

    word: str
    near: str | None


class SpellingAnswer(BaseModel):
    """The unknown words of a sentence, in its order."""

    unknown: list[UnknownWordBody]


class WordAnswer(BaseModel):
    """A word that a picture is written in, and its frequency."""

    word: str
    frequency: int


class WholeItem(ItemAnswer):
    """An item with all captions of its picture, and the words that it is written in, the most
    frequent first."""

    captions: list[str]
    words: list[WordAnswer]


class SearchAnswer(BaseModel):
    """Hits, best first, or by the field that ``sort`` names.

    ``notes`` say how the sentence was read, which words the encoder hardly knows, and why there are
    no hits. ``more``: a larger k might give more hits.
    """

    find: Modality
    hits: list[HitAnswer]
    notes: list[str]
    more: bool


class FacetValue(BaseModel):
    """A value, the ``filters`` that a search needs for it, and the number of hits that have it."""

    value: str
    filters: list[str]
    count: int


class Facet(BaseModel):
    """The most frequent values of a field, years for a date."""

    field: str
    values: list[FacetValue]


class FacetsAnswer(BaseModel):
    """Facets counted over the best ``hits``, a hundred at most."""

    hits: int
    facets: list[Facet]


class ExampleAnswer(BaseModel):
    """A picture, or a region of a picture, that is typical of a term."""

    id: str
    thumb: str
    box: Box | None


class TermAnswer(BaseModel):
    """A term that query and item share: its frequency in each, their product, and its share of the
    score.

    ``words`` and ``examples`` are typical of it; only the largest terms have them. ``parts`` are
    the shares of the parts of the item in it, with sum 1; null if no single part carries it.
    """

    term: int
    words: list[str]
    examples: list[ExampleAnswer]
    query: int
    item: int
    product: int
    share: float
    parts: list[float] | None


class PartsAnswer(BaseModel):
    """Words, or regions by number, with their ``weights``."""

    names: list[str]
    boxes: list[Box] | None
    weights: list[float] | None


class ExplanationAnswer(BaseModel):
    """Why an item has its score: the products of ``terms`` add up to ``score``.

    ``by_vectors`` is the score by the vectors, ``offset`` the part of it that corrects hubs.
    ``alignment`` holds the cosine of each part of the query with each part of the item.
    """

    id: str
    modality: Modality
    score: int
    by_vectors: float | None
    terms: list[TermAnswer]
    item_parts: PartsAnswer | None
    query_parts: PartsAnswer | None
    alignment: list[list[float]] | None
    weighed_by: Literal["terms", "alignment"]
    missing: str | None
    offset: float | None
