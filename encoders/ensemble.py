"""Several encoders as one, whose scores are the mean of theirs (the ensembles of TERAN, table 1, and VSRN, table 1)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import numpy as np

from boc.errors import EncoderError
from boc.plugins import Encoder
from boc.types import Embeddings, Identity, ImageRef, Ragged, Runtime
from boc.vectors import unit_rows


@dataclass(frozen=True)
class _Preparers:
    """Prepares a picture for each member, once for members that share a preparer."""

    distinct: list[Callable[[ImageRef], Any]]
    of: list[int]

    def __call__(self, image: ImageRef) -> list[Any]:
        prepared = [prepare(image) for prepare in self.distinct]
        return [prepared[number] for number in self.of]


class Ensemble:
    """Several encoders whose scores are averaged: it concatenates their vectors, scaled by 1 / sqrt(number).

    The dot product of two such vectors is the mean of the dot products. If all members have the same regions and words,
    their concepts are concatenated too, so cosines are averaged; otherwise there are no concepts.
    """

    def __init__(self, members: Sequence[Encoder]) -> None:
        self.members = list(members)
        digests = [member.identity.digest for member in members]
        self.identity = Identity(
            "ensemble:" + ",".join(member.identity.spec for member in members),
            hashlib.sha256("\n".join(digests).encode()).hexdigest(),
            sum(member.identity.dim for member in members),
        )
        sources = [getattr(getattr(m, "regions", None), "identity", m.identity).digest for m in members]
        first = sorted(set(sources), key=sources.index)
        self.preparer = _Preparers(
            [members[sources.index(digest)].preparer for digest in first], [first.index(digest) for digest in sources]
        )

    def prepare(self, image: ImageRef) -> list[Any]:
        return self.preparer(image)

    def encode_images(self, prepared: Sequence[list[Any]]) -> Embeddings:
        return _concatenate([m.encode_images([p[i] for p in prepared]) for i, m in enumerate(self.members)])

    def encode_texts(self, texts: Sequence[str]) -> Embeddings:
        return _concatenate([member.encode_texts(texts) for member in self.members])


def load(argument: str, runtime: Runtime) -> Ensemble:
    """Return the encoders ``KIND:ARGUMENT,KIND:ARGUMENT...``. EncoderError for fewer than two or an unknown kind."""
    specs = argument.split(",")
    if len(specs) < 2 or not all(":" in spec for spec in specs):
        raise EncoderError(f"{argument!r} is no ensemble; write ensemble:KIND:FOLDER,KIND:FOLDER with two or more")
    known = {m.name for m in iter_modules(import_module(__package__).__path__) if not (m.ispkg or m.name[0] == "_")}
    members = []
    for spec in specs:
        kind, _, rest = spec.partition(":")
        if kind not in known - {"ensemble"}:
            raise EncoderError(f"no encoder {kind!r} for an ensemble; known: {', '.join(sorted(known - {'ensemble'}))}")
        members.append(import_module(f".{kind}", __package__).load(rest, runtime))
    return Ensemble(members)


def _concatenate(parts: list[Embeddings]) -> Embeddings:
    first, scale = parts[0], len(parts) ** -0.5
    vectors = np.concatenate([each.vectors for each in parts], axis=1) * np.float32(scale)
    sets = [each.concepts for each in parts if each.concepts is not None]
    alike = len(sets) == len(parts) and all(np.array_equal(each.offsets, sets[0].offsets) for each in sets)
    if not alike or any(each.words != first.words for each in parts):
        return Embeddings(first.modality, vectors)
    rows = np.concatenate([unit_rows(each.values) for each in sets], axis=1) * np.float32(scale)
    return Embeddings(first.modality, vectors, Ragged(rows, sets[0].offsets), first.boxes, first.words)
