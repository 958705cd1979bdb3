"""Combine wanted and unwanted sentences, pictures and items into queries.

Rocchio's formula (Relevance Feedback in Information Retrieval, in: Salton, The SMART Retrieval
System, 1971) moves a query towards wanted examples and away from unwanted examples:

    q = ALPHA s + BETA mean(examples) - GAMMA mean(unwanted)

All vectors have unit length. s is the vector of the sentence, and the examples are the vectors of
pictures and items. Cosines between pictures vary several times as much as the scores of pictures
for a sentence, so pictures would dominate the sum. Each vector is therefore divided by the standard
deviation of its scores over the index ("spread"), so that equal weights have equal effects.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Real
from pathlib import Path
from typing import Literal

import numpy as np

from boc.errors import BocError
from boc.labels import stop_words
from boc.paths import nfc
from boc.search.options import SearchOptions, check_sentence
from boc.types import Embeddings, Ragged
from boc.vectors import Doubles, unit_rows

ALPHA = 1.0
BETA = 1.0
GAMMA = 0.5
"""Default weights of the sentence, the examples, and the unwanted parts."""

MINUS = re.compile(r'(?<!\S)-(?:"([^"]+)"|([^\W\d_][^\s"]*))')
"""An unwanted word or quoted phrase. It follows a minus sign that comes after a space and before a
letter or a quotation mark. The minus signs in t-shirt and -5 therefore do not count."""
SAME = 1e-6  # length of a sum that rounding alone can cause, as a fraction of the weights
ESCAPED = re.compile(r"(?<!\S)\\-")


@dataclass(frozen=True)
class QueryPart:
    """Part of a query: a sentence, the path of a picture, or the id of an item. Unwanted parts have
    a negative ``weight``."""

    kind: Literal["text", "image", "item"]
    value: str | Path
    weight: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in ("text", "image", "item") or not isinstance(self.value, (str, Path)):
            raise BocError(
                f"not a query part: {self.kind!r} {self.value!r}; pass text, image or item, and "
                "its value",
            )
        if not isinstance(self.weight, Real) or not math.isfinite(self.weight) or self.weight == 0:
            raise BocError(
                f"invalid weight {self.weight!r}; use a number above 0, or below 0 for an "
                "unwanted part",
            )
        if self.kind == "text":
            check_sentence(self.value)


@dataclass(frozen=True)
class Query:
    """Query of weighted parts, of which at least one must be wanted. Only the ratios of the weights
    matter. ``note`` explains how the sentence was interpreted, unless it was taken literally."""

    parts: tuple[QueryPart, ...]
    note: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.parts, Sequence) or not all(
            isinstance(part, QueryPart) for part in self.parts
        ):
            raise BocError(
                f"a query consists of parts, got {self.parts!r}; write Query.of('a dog')",
            )
        if not self.positive:
            only = ", only unwanted parts" if self.parts else ""
            raise BocError(
                f"the query has no wanted part{only}; add a sentence, a picture or an item that is "
                "wanted",
            )

    @classmethod
    def of(
        cls,
        text: str | None = None,
        *,
        minus: Sequence[str] = (),
        images: Sequence[Path | str] = (),
        like: Sequence[str] = (),
        unlike: Sequence[str] = (),
        weight: float = BETA,
        unlike_weight: float = GAMMA,
    ) -> Query:
        """Create a query by Rocchio's formula.

        Parameters
        ----------
        text : str, optional
            Sentence. Negated words ("no house", "without a hat") become unwanted parts.
        minus : sequence of str
            Unwanted words or sentences.
        images : sequence of paths
            Pictures that hits should resemble.
        like, unlike : sequences of str
            Ids of items in the index that hits should, and should not, resemble.
        weight : float, default=1
            Total weight of all pictures and items; the weight of the sentence is 1.
        unlike_weight : float, default=.5
            Total weight of all unwanted parts.
        """
        if not all(isinstance(each, Real) and each > 0 for each in (weight, unlike_weight)):
            raise BocError(
                f"weights must be above 0, got {weight!r} and {unlike_weight!r}; omit "
                "parts without a weight",
            )
        minus, images, like, unlike = map(_different, (minus, images, like, unlike))
        note = ""
        denied: list[str] = []
        if isinstance(text, str):
            text, denied = read_negations(text)
        if denied:
            typed = [f'-"{words}"' if " " in words else f"-{words}" for words in denied]
            note = f"interpreted as: {text} {' '.join(typed)}"
            minus = _different([*minus, *denied])
        examples = len(images) + len(like)
        unwanted = len(minus) + len(unlike)
        plus = weight / max(1, examples)
        less = -unlike_weight / max(1, unwanted)
        return cls(
            (
                *([] if text is None else [QueryPart("text", text, ALPHA)]),
                *(QueryPart("image", Path(path), plus) for path in images),
                *(QueryPart("item", id, plus) for id in like),
                *(QueryPart("text", each, less) for each in minus),
                *(QueryPart("item", id, less) for id in unlike),
            ),
            note,
        )

    @property
    def positive(self) -> list[QueryPart]:
        """Return the parts with positive weight."""
        return [part for part in self.parts if part.weight > 0]

    @property
    def words(self) -> str | None:
        """Return the wanted sentences for a full-text search, or None if there are no sentences."""
        return (
            nfc(" ".join(str(part.value) for part in self.positive if part.kind == "text")) or None
        )

    @cached_property
    def ids(self) -> frozenset[str]:
        """Return the ids of the items in the query. These items are excluded from the hits."""
        return frozenset(str(part.value) for part in self.parts if part.kind == "item")

    def with_metric(self, options: SearchOptions) -> SearchOptions:
        """Return ``options``, changed to re-rank by vectors if the query combines a picture or an
        item with other parts and no metric is set.

        An alignment would match each region of the picture without regard to the other parts. For
        queries that combine a picture and a colour, the first hit showed the thing in this colour
        for 16 % of the queries when re-ranked by alignment, and for 50 % when re-ranked by vectors.
        """
        by_example = len(self.parts) > 1 and any(part.kind != "text" for part in self.parts)
        if not by_example or options.rerank is not None:
            return options
        return replace(options, rerank="dot")


def _different(values: Sequence[Path | str]) -> list[str]:
    """Return the distinct values in a list."""
    if isinstance(values, (str, Path)) or not isinstance(values, Sequence):
        raise BocError(
            f"minus, images, like and unlike must be lists, got {values!r}; write [{values!r}]",
        )
    return list(dict.fromkeys(map(str, values)))


def parse_text(typed: str | None) -> tuple[str | None, list[str]]:
    r"""Split text that a user typed, such as ``a dog -snow -"two cats"``, into the sentence and the
    unwanted words.

    An unwanted part follows a minus that is at the beginning or after a space, and before a letter
    or a quotation mark. ``\-`` is a literal minus.

    >>> parse_text('a dog in a t-shirt -snow -"two cats"')
    ('a dog in a t-shirt', ['snow', 'two cats'])
    """
    if typed is None or typed.lstrip().startswith("{"):  # terms of another system
        return typed, []
    minus = [(phrase or word).strip(" ,.;:!?") for phrase, word in MINUS.findall(typed)]
    minus = [each for each in minus if each]
    rest = ESCAPED.sub("-", MINUS.sub("", typed))
    if not minus:
        return rest, []
    return " ".join(rest.split()) or None, minus


NEGATION = re.compile(r"(?i)[,;]?\s*\b(?:and |but |with )?(?:no|not|without)\b")
QUOTED = re.compile('"[^"]*"')
WORD = re.compile(r"[^\W_][\w'\u2019-]*")
ARTICLES = {"a", "an", "the", "any", "his", "her", "their", "its"}


def read_negations(sentence: str) -> tuple[str, list[str]]:
    """Split a sentence into the sentence without negated words, and the negated words. ``no``,
    ``not`` and ``without`` negate all words up to the next comma or stop word, or up to the end.

    >>> read_negations("a kite, no house")
    ('a kite', ['house'])
    >>> read_negations("a man without a red hat on a beach")
    ('a man on a beach', ['red hat'])
    """
    if sentence.lstrip().startswith("{"):  # terms of another system
        return sentence, []
    quoted = [match.span() for match in QUOTED.finditer(sentence)]
    stops = stop_words()
    rest = ""
    end = 0
    minus = []
    for match in NEGATION.finditer(sentence):
        if match.start() < end or any(low < match.start() < high for low, high in quoted):
            continue
        words: list[str] = []
        until = match.end()
        for word in WORD.finditer(sentence, until):
            lower = word[0].lower()
            # A participle ends the negation: "no shirt climbing a rock".
            acts = lower.endswith("ing") and WORD.match(sentence[word.end() :].lstrip())
            ends = words and (acts or lower in stops - ARTICLES)
            if ends or sentence[until : word.start()].strip():
                break
            if lower not in stops:
                words.append(word[0])
            until = word.end()
        if words:
            minus.append(" ".join(words))
            rest += sentence[end : match.start()]
            end = until
    rest = " ".join((rest + sentence[end:]).split())
    if minus and rest.strip(" ,.;"):
        return rest, minus
    return sentence, []


def compose(parts: Sequence[tuple[Embeddings, float]]) -> Embeddings:
    """Combine weighted ``parts`` of one row each into a query: the weighted sum, scaled to unit
    length.

    The query has the modality of the first wanted part. Its concept set is the union of the sets of
    the wanted parts, or None if any of them has no set. A single part is returned unchanged. Raises
    BocError if the parts cancel each other out."""
    positive = [part for part, weight in parts if weight > 0]
    if len(parts) == 1:
        return positive[0]
    weights = np.array([weight for _, weight in parts])
    rows = unit_rows(np.concatenate([part.vectors for part, _ in parts])).astype(np.float64)
    total: Doubles = weights @ rows
    if np.linalg.norm(total) < SAME * np.abs(weights).sum():
        raise BocError("the wanted and unwanted parts are the same; change one of them")
    sets = [part.concepts for part in positive if part.concepts is not None]
    union = None
    if len(sets) == len(positive):
        union = Ragged.from_sets(
            [np.concatenate([each[0] for each in sets])],
            sets[0].values.shape[1],
        )
    return Embeddings(positive[0].modality, unit_rows(total[None]), union)
