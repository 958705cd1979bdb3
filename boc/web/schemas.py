"""The shapes of all answers, as OpenAPI tells them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

Modality = Literal["image", "text"]
Box = tuple[float, float, float, float]
"""x1, y1, x2, y2 in [0, 1] of the picture's width and height."""


class Error(BaseModel):
    """What was wrong, the rule, and what to do next; in one line."""

    error: str


class Counts(BaseModel):
    """Items by what they are."""

    image: int
    text: int


class Limits(BaseModel):
    """Of a request: hits, characters of a sentence, bytes of an uploaded picture, filters."""

    k: int
    sentence: int
    upload: int
    filters: int


class Info(BaseModel):
    """What the index is. ``query_z`` is the most terms that a query has, ``rm`` candidates re-scored for each
    hit, ``examples`` are sentences of the index."""

    name: str
    at: str
    version: str
    engine: str
    items: Counts
    code: str
    terms: int
    query_z: int
    rm: float
    rerank: str
    dim: int
    encoder: str
    fields: dict[str, str]
    concepts: bool
    examples: list[str]
    limits: Limits


class ItemAnswer(BaseModel):
    """An item of the index. ``content`` is the sentence, or the file name of the picture; ``width`` and ``height`` are
    the picture's, null where it is none or cannot be read; ``thumb`` is the path, on this host, of a small picture
    of it, or of the picture that a sentence describes."""

    id: str
    modality: Modality
    content: str
    group: str
    fields: dict[str, Any]
    width: int | None
    height: int | None
    thumb: str | None


class HitAnswer(ItemAnswer):
    """An item that was found."""

    score: float


class WholeItem(ItemAnswer):
    """An item with the sentences that describe the same picture."""

    captions: list[str]


class StagesAnswer(BaseModel):
    """Milliseconds. ``rerank_ms`` is null if the engine re-scores in one go with ``postings_ms``."""

    encode_ms: float
    code_ms: float
    postings_ms: float
    rerank_ms: float | None
    content_ms: float
    total_ms: float


class Query(BaseModel):
    """What was asked: a sentence, an uploaded picture, or an item."""

    kind: Literal["text", "image", "item"]
    text: str | None = None
    id: str | None = None


class SearchAnswer(BaseModel):
    """Hits, best first. ``postings`` is the length of the posting lists of the query's ``terms``, ``candidates`` how
    many items were scored anew at most, ``more`` whether a larger k might find more."""

    query: Query
    find: Modality
    hits: list[HitAnswer]
    stages: StagesAnswer
    postings: int
    terms: int
    candidates: int
    more: bool


class ExampleAnswer(BaseModel):
    """A picture that is typical of a term, or a part of it."""

    id: str
    thumb: str
    box: Box | None


class TermAnswer(BaseModel):
    """A term that query and item share: its frequency in each, their product, and its share of the score.

    ``words`` and ``examples`` are typical of it; only the largest terms have them. ``parts`` is how much of it each
    part of the item carries, in sum 1; null if no single part does.
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
    """Words, or regions by number; ``weights`` tell how much each matters."""

    names: list[str]
    boxes: list[Box] | None
    weights: list[float] | None


class SurrogateAnswer(BaseModel):
    """The terms of query and item as texts, each as often as its frequency; the beginning of what is long."""

    query: str
    item: str


class Explanation(BaseModel):
    """Why an item has its score: the products of ``terms`` sum to ``score``.

    ``alignment`` holds the cosine of each part of the query with each part of the item.
    """

    id: str
    modality: Modality
    score: int
    of: Literal["sentence", "image", "item"]
    terms: list[TermAnswer]
    item_parts: PartsAnswer | None
    query_parts: PartsAnswer | None
    alignment: list[list[float]] | None
    weighed_by: Literal["terms", "alignment"]
    missing: str | None
    surrogate: SurrogateAnswer
    captions: list[str]
