"""Several encoders as one, whose scores are the mean of theirs (the ensembles of TERAN, table 1, and VSRN, table 1)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boc.errors import EncoderError
from boc.plugins import Encoder
from boc.types import Embeddings, Identity, ImageRef, Ragged, Runtime


@dataclass(frozen=True)
class _Preparers:
    """Prepares a picture for each member; one that several members share does so once."""

    distinct: list[Callable[[ImageRef], Any]]
    of: list[int]

    def __call__(self, image: ImageRef) -> list[Any]:
        prepared = [prepare(image) for prepare in self.distinct]
        return [prepared[number] for number in self.of]


class Ensemble:
    """The mean of dot products is one dot product: that of the vectors set end to end, over the root of their number.

    So are cosines of concepts: where all members have the same regions and words, the cosine of two concepts is the
    mean of the members'. Where they differ, or some have none, there are no concepts.
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
        return _joined([m.encode_images([p[i] for p in prepared]) for i, m in enumerate(self.members)])

    def encode_texts(self, texts: Sequence[str]) -> Embeddings:
        return _joined([member.encode_texts(texts) for member in self.members])


def load(argument: str, runtime: Runtime) -> Ensemble:
    """The encoders ``KIND:ARGUMENT,KIND:ARGUMENT...``. EncoderError for fewer than two or an unknown kind."""
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


def _joined(found: list[Embeddings]) -> Embeddings:
    first, scale = found[0], len(found) ** -0.5
    vectors = np.concatenate([each.vectors for each in found], axis=1) * np.float32(scale)
    offsets = [None if each.concepts is None else each.concepts.offsets.tolist() for each in found]
    if first.concepts is None or any(o != offsets[0] for o in offsets) or any(e.words != first.words for e in found):
        return Embeddings(first.modality, vectors)
    rows = np.concatenate([_unit(each.concepts.values) for each in found], axis=1) * np.float32(scale)
    return Embeddings(first.modality, vectors, Ragged(rows, first.concepts.offsets), first.boxes, first.words)


def _unit(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1)
