"""Correction of hubs: items that are near to every query.

The offset of an item is the mean of the highest scores that a bank of queries gives it, queries of
training that are not its own: captions for a picture, pictures for a sentence. A share of it, the
strength, is subtracted from each score of the item (querybank normalisation: Bogolin et al., Cross
Modal Retrieval with Querybank Normalisation, CVPR 2022).

Nothing that compares vectors needs to know: four components behind those of the encoder make it a
part of the dot product. With offsets o less their mean, strengths included, and s * s the largest,

    sentence  [t, s, -o / s, p, 0] / n        picture  [x, -o / s, s, 0, p] / n

have the product (t.x - o of the picture - o of the sentence) / (n * n). The offset of the query is
the same for all items. p makes all vectors as long, so that two pictures compare as before. A
sentence of one or two words has 0 in the place of s: it is nearer to names of things than to
captions, and a hub may well be what it means.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from boc.atomic_files import replacing
from boc.foreign import read_archive
from boc.rerank.storage import restore_rows, store_rows
from boc.types import OFFSET_PARTS, Embeddings, Ragged
from boc.vectors import Floats

MORE = len(OFFSET_PARTS)  # components
SHARE = 0.02  # of the bank, whose scores make an offset
FEW = 3  # words of a sentence from which offsets count


@dataclass(frozen=True)
class HubBank:
    """Vectors of ``texts`` and ``images`` as ``store_rows`` gives them of int8, uint8 (n, d + 4).

    ``strengths`` and ``means`` float64 (2,) are those of the offsets of pictures and of sentences,
    ``limit`` float64 (1,) is the largest offset less the mean, strengths included: three standard
    deviations.
    """

    texts: NDArray[np.uint8]
    images: NDArray[np.uint8]
    strengths: NDArray[np.float64]
    means: NDArray[np.float64]
    limit: NDArray[np.float64]

    @classmethod
    def of(
        cls,
        texts: Floats,
        images: Floats,
        strengths: Sequence[float],
    ) -> HubBank:
        """Make a bank of vectors (n, d) and (m, d) of unit length."""
        rounded = [store_rows(rows, "int8") for rows in (texts, images)]
        whole = [restore_rows(rows) for rows in rounded]
        offsets = [hub_offsets(images, whole[0]), hub_offsets(texts, whole[1])]
        means = np.array([each.mean(dtype=np.float64) for each in offsets])
        chosen = np.array(strengths, np.float64)
        deviations = np.array([each.std(dtype=np.float64) for each in offsets])
        limit = np.array([max(3 * (chosen * deviations).max(), 1e-3)])
        return cls(rounded[0], rounded[1], chosen, means, limit)

    @classmethod
    def read(cls, path: Path) -> HubBank:
        """Read a file of ``write``. ValueError for one that fits no encoder."""
        bank = cls(**read_archive(path))
        numbers = [bank.strengths, bank.means, bank.limit]
        rows = [bank.texts, bank.images]
        if (
            [each.shape for each in numbers] != [(2,), (2,), (1,)]
            or not all(np.isfinite(each).all() for each in numbers)
            or bank.limit[0] <= 0
            or not all(each.ndim == 2 and each.dtype == np.uint8 and len(each) for each in rows)
        ):
            raise ValueError(f"{path} holds no bank of queries")
        return bank

    def write(self, path: Path) -> None:
        with replacing(path) as temporary, temporary.open("wb") as file:
            np.savez(file, **asdict(self))

    @cached_property
    def _queries(self) -> list[Floats]:
        """The vectors that give pictures and sentences their offsets."""
        return [restore_rows(rows).astype(np.float32) for rows in (self.texts, self.images)]

    def extend(
        self,
        embeddings: Embeddings,
        texts: Sequence[str] | None = None,
    ) -> Embeddings:
        """Return embeddings with the components of the offsets, zeros in those of concepts.
        ``texts`` are the sentences."""
        side = int(embeddings.modality == "text")
        bank = self._queries[side]
        limit = self.limit[0]
        raw = hub_offsets(embeddings.vectors, bank) - self.means[side]
        offsets = np.clip(self.strengths[side] * raw, -limit, limit)
        root = np.sqrt(limit)
        ones = np.full(len(offsets), root)
        if texts is not None:
            ones[[len(text.split()) < FEW for text in texts]] = 0
        more = np.zeros((len(offsets), MORE))
        more[:, side] = -offsets / root
        more[:, 1 - side] = ones
        more[:, 2 + side] = np.sqrt(np.maximum(0, 2 * limit - np.square(more).sum(axis=1)))
        vectors = np.hstack([embeddings.vectors, more]) / np.sqrt(1 + 2 * limit)
        concepts = embeddings.concepts
        if concepts is not None:
            values = np.pad(concepts.values, ((0, 0), (0, MORE)))
            concepts = Ragged(values, concepts.offsets)
        return Embeddings(
            embeddings.modality,
            vectors.astype(np.float32),
            concepts,
            boxes=embeddings.boxes,
            words=embeddings.words,
        )


def hub_offsets(vectors: Floats, bank: Floats) -> NDArray[np.float64]:
    """Return for each of ``vectors`` (n, d) the mean of the highest scores of ``bank`` (m, d)."""
    count = max(1, round(SHARE * len(bank)))
    offsets = np.empty(len(vectors))
    # One row at a time gives the same whatever the batch.
    for place, vector in enumerate(vectors):
        scores = bank @ vector
        offsets[place] = np.partition(scores, -count)[-count:].mean(dtype=np.float64)
    return offsets
