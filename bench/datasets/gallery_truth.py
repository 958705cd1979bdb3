"""Ground truth of a gallery: sentences, and the exact set of pictures that each one describes.

A sentence describes things and, optionally, their colours, a background, and the position of one
thing relative to another. A picture is right if it matches all parts of the sentence. Its relevance
is the fraction of parts that it matches.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.datasets.captions import DataError
from demo.canvas import Box
from demo.scene import PLACE_WORDS, RELATION_WORDS, RELATIONS, Scene, preposition, read_scenes

FAMILIES = ("kind", "colour", "place", "two", "relation")
DEPTH = 10  # number of evaluated hits


@dataclass(frozen=True)
class Picture:
    """Scene with the box of each thing."""

    scene: Scene
    boxes: tuple[Box, ...]


@dataclass(frozen=True)
class Sentence:
    """Contents of a sentence: ``things`` as pairs of kind and colour ("" for any colour), a
    background, and the position of the first of two things relative to the second. An unspecified
    background or position is ""."""

    things: tuple[tuple[str, str], ...]
    background: str = ""
    relation: str = ""

    @property
    def text(self) -> str:
        """Return the sentence as text."""
        phrases = []
        for kind, colour in self.things:
            words = f"{colour} {kind}".strip()
            article = "an" if words[0] in "aeiou" else "a"
            phrases.append(f"{article} {words}")
        between = "and"
        if self.relation:
            between = RELATION_WORDS[self.relation][0]
        text = f" {between} ".join(phrases)
        if not self.background:
            return text
        where = preposition(self.background, [kind for kind, _ in self.things])
        return f"{text} {where} {PLACE_WORDS[self.background][1]}"

    def parts(self, picture: Picture) -> Parts:
        """Return the parts of the sentence that match a picture."""
        things = picture.scene.things
        kinds = [any(thing.kind == kind for thing in things) for kind, _ in self.things]
        colours = [
            any(thing.kind == kind and thing.colour == colour for thing in things)
            for kind, colour in self.things
            if colour
        ]
        place = []
        if self.background:
            place.append(picture.scene.background == self.background)
        relation = []
        if self.relation:
            relation.append(self._has_relation(picture))
        return Parts(kinds, colours, place, relation)

    def _has_relation(self, picture: Picture) -> bool:
        (first, _), (second, _) = self.things
        places = [
            (thing.kind, box)
            for thing, box in zip(picture.scene.things, picture.boxes, strict=True)
        ]
        return any(
            holds(self.relation, a, b)
            for kind, a in places
            for other, b in places
            if kind == first and other == second and a is not b
        )


@dataclass(frozen=True)
class Parts:
    """Flags for the parts of a sentence that match a picture: each kind, each kind in its colour,
    the background, and the relation. Parts that are not in the sentence are empty."""

    kinds: list[bool]
    colours: list[bool]
    place: list[bool]
    relation: list[bool]

    @property
    def share(self) -> float:
        """Return the fraction of matching parts, which is 1 for a right picture."""
        parts = [*self.kinds, *self.colours, *self.place, *self.relation]
        return sum(parts) / len(parts)

    @property
    def verdicts(self) -> dict[str, bool]:
        """Return the flags by name, for "everything" and for each part of the sentence."""
        groups = {
            "kind": self.kinds,
            "colour": self.colours,
            "place": self.place,
            "relation": self.relation,
        }
        return {"everything": self.share == 1} | {
            name: all(flags) for name, flags in groups.items() if flags
        }


@dataclass(frozen=True)
class Query:
    """Sentence of a family, with the ``parts`` of the sentence that match each picture."""

    family: str
    sentence: Sentence
    parts: Sequence[Parts]

    @property
    def relevance(self) -> NDArray[np.float64]:
        """Return the relevance (n,) of each picture, in [0, 1]. Pictures with relevance 1 are
        right."""
        return np.array([part.share for part in self.parts])


@dataclass(frozen=True)
class Measure:
    """Fraction of queries, or mean over queries, and the expected value for a random order of the
    pictures."""

    value: float
    chance: float
    count: int


def read_gallery(path: Path) -> list[Picture]:
    """Read the scenes and boxes from a file ``scenes.json``, in picture order. Raises ValueError
    for any other file."""
    if not path.is_file():
        raise DataError(
            f"{path} is missing; paint the gallery: python -m demo.gallery {path.parent}",
        )
    scenes = read_scenes(path)
    boxes = [entry.get("boxes", []) for entry in json.loads(path.read_text(encoding="utf-8"))]
    if any(len(scene.things) != len(places) for scene, places in zip(scenes, boxes, strict=True)):
        raise ValueError(f"{path} lacks the positions of some things; paint the gallery again")
    return [
        Picture(scene, tuple((x, y, right, bottom) for x, y, right, bottom in places))
        for scene, places in zip(scenes, boxes, strict=True)
    ]


def queries(gallery: Sequence[Picture], most: int = 300, seed: int = 0) -> list[Query]:
    """Draw at most ``most`` sentences per family from the sentences that describe a picture.
    ``seed`` determines the choice."""
    drawn = []
    for family in FAMILIES:
        candidates = list(
            dict.fromkeys(
                each for picture in gallery for each in _sentences(family, picture.scene)
            ),
        )
        order = np.random.default_rng(seed).permutation(len(candidates))[:most]
        drawn += [
            Query(family, candidates[k], [candidates[k].parts(picture) for picture in gallery])
            for k in sorted(order)
        ]
    return drawn


def judge(family: Sequence[Query], rankings: Sequence[Sequence[int]]) -> dict[str, Measure]:
    """Measure the hits for queries of one family: whether the first hit matches each part, "R@10"
    for a right picture among the first ten, and "NDCG@10" by relevance. A ranking is a list of
    picture numbers, best first, and may be short."""
    sums: dict[str, list[tuple[float, float]]] = {}
    for query, ranking in zip(family, rankings, strict=True):
        for name, pair in _score_ranking(query, ranking):
            sums.setdefault(name, []).append(pair)
    means = {name: np.mean(pairs, axis=0).tolist() for name, pairs in sums.items()}
    return {
        name: Measure(value, chance, len(sums[name])) for name, (value, chance) in means.items()
    }


def _score_ranking(
    query: Query,
    ranking: Sequence[int],
) -> Iterator[tuple[str, tuple[float, float]]]:
    """Yield the name of each measure, the ranking's value, and the chance value."""
    flags = [part.verdicts for part in query.parts]
    for name in flags[0]:
        first = bool(ranking) and flags[ranking[0]][name]
        share = np.mean([each[name] for each in flags])
        yield f"first: {name}", (float(first), float(share))
    right = np.array([each["everything"] for each in flags])
    n = len(right)
    wrong = int((~right).sum())
    top = min(DEPTH, len(right))
    chance_of_none = math.comb(wrong, top) / math.comb(n, top)
    yield f"R@{DEPTH}", (float(right[list(ranking[:DEPTH])].any()), 1 - chance_of_none)
    gains = query.relevance
    discounts = 1 / np.log2(np.arange(2, top + 2))
    best = np.sort(gains)[::-1][:top]
    ideal = float(best @ discounts)
    hits = gains[list(ranking[:DEPTH])]
    value = float(hits @ discounts[: len(hits)])
    chance = float(gains.mean() * discounts.sum())
    yield f"NDCG@{DEPTH}", (value / ideal, chance / ideal)


def holds(relation: str, a: Box, b: Box) -> bool:
    """Return whether ``a`` is entirely left of, right of, above or below ``b``."""
    if relation in ("right of", "below"):
        return holds(RELATIONS[relation], b, a)
    if relation == "left of":
        return a[2] <= b[0]
    return a[3] <= b[1]


def lies_on(region: Sequence[float], box: Box) -> bool:
    """Return whether the centre of a region lies in the box of a thing."""
    x = (region[0] + region[2]) / 2
    y = (region[1] + region[3]) / 2
    return box[0] <= x <= box[2] and box[1] <= y <= box[3]


def _sentences(family: str, scene: Scene) -> Iterator[Sentence]:
    """Yield the sentences of a family whose parts are all in the scene."""
    things = [(thing.kind, thing.colour) for thing in scene.things]
    pairs = [pair for pair in combinations(things, 2) if pair[0][0] != pair[1][0]]
    if family == "kind":
        yield from (Sentence(((kind, ""),)) for kind, _ in things)
    elif family == "colour":
        yield from (Sentence((each,)) for each in things)
    elif family == "place":
        yield from (Sentence((each,), scene.background) for each in things)
    elif family == "two":
        yield from map(Sentence, pairs)
    elif scene.relation:
        for (kind, _), (other, _) in pairs:
            yield Sentence(((kind, ""), (other, "")), relation=scene.relation)
