"""Correct the scores of hubs (items near every query).

An item's offset is the mean of its highest scores for a bank of training queries for other items:
captions for a picture, pictures for a sentence. A share of the offset, the strength, is subtracted
from each of the item's scores (querybank normalisation: Bogolin et al., Cross Modal Retrieval with
Querybank Normalisation, CVPR 2022).

Code that compares vectors needs no change, because four additional components after the encoder's
components make the offset a part of the dot product. Let o be the offsets minus their mean,
including strengths, and s * s the largest; then

    sentence  [t, s, -o / s, p, 0] / n        picture  [x, -o / s, s, 0, p] / n

have the product (t.x - o of the picture - o of the sentence) / (n * n). The query's offset is the
same for all items. p gives all vectors the same length, so that two pictures compare as before. A
sentence of one or two words has 0 in place of s, because it resembles the name of a thing more than
a caption, and may well describe a hub.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from boc.atomic_files import replacing
from boc.foreign import read_archive
from boc.rerank.storage import restore_rows, store_rows
from boc.types import MODALITIES, OFFSET_PARTS, Modality, Ragged
from boc.vectors import Bytes, Doubles, Floats

MORE = len(OFFSET_PARTS)  # number of offset components
SHARE = 0.02  # share of the bank's highest scores averaged in an offset
FEW = 3  # smallest number of words in a sentence with offsets


@dataclass(frozen=True)
class HubBank:
    """Query bank with the vectors of ``texts`` and ``images``, uint8 (n, d + 4), as ``store_rows``
    stores int8.

    ``strengths`` and ``means`` float64 (2,) apply to the offsets of pictures and of sentences.
    ``limit`` float64 (1,) is the upper limit of an offset minus the mean, times its strength, at
    three standard deviations.
    """

    texts: Bytes
    images: Bytes
    strengths: Doubles
    means: Doubles
    limit: Doubles

    @classmethod
    def of(
        cls,
        texts: Floats,
        images: Floats,
        strengths: Sequence[float],
    ) -> HubBank:
        """Make a bank from vectors (n, d) and (m, d) of unit length."""
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
        """Read a file written by ``write``. Raises ValueError for a file that matches no
        encoder."""
        bank = cls(**read_archive(path))
        numbers = np.concatenate([bank.strengths, bank.means, bank.limit])
        if numbers.shape != (5,) or not np.isfinite(numbers).all() or bank.limit[0] <= 0:
            raise ValueError(f"{path} contains no query bank")
        return bank

    def write(self, path: Path) -> None:
        with replacing(path) as temporary, temporary.open("wb") as file:
            np.savez(file, **asdict(self))

    @cached_property
    def _queries(self) -> list[Floats]:
        """Return the vectors that determine the offsets of pictures and of sentences."""
        return [restore_rows(rows).astype(np.float32) for rows in (self.texts, self.images)]

    def extend(
        self,
        modality: Modality,
        vectors: Floats,
        concepts: Ragged,
        texts: Sequence[str] = (),
    ) -> tuple[Floats, Ragged]:
        """Return vectors (n, d + 4) with the offset components, and concepts with zeros in their
        place. ``texts`` contains the sentences."""
        side = MODALITIES.index(modality)
        limit = float(self.limit[0])
        root = limit**0.5
        raw = hub_offsets(vectors, self._queries[side]) - self.means[side]
        own = np.minimum(np.maximum(self.strengths[side] * raw, -limit), limit) / -root
        other = np.full(len(own), root)
        for place, text in enumerate(texts):
            if len(text.split()) < FEW:
                other[place] = 0
        extended = _widened(vectors)
        more = extended[:, -MORE:]
        more[:, side] = own
        more[:, 1 - side] = other
        more[:, 2 + side] = np.sqrt(np.maximum(0, 2 * limit - own * own - other * other))
        extended *= np.float32((1 + 2 * limit) ** -0.5)
        return extended, Ragged(_widened(concepts.values), concepts.offsets)


def _widened(rows: Floats) -> Floats:
    """Return the rows with zeros appended for the offset components."""
    n, d = rows.shape
    widened = np.zeros((n, d + MORE), np.float32)
    widened[:, :d] = rows
    return widened


def hub_offsets(vectors: Floats, bank: Floats) -> Doubles:
    """Return, for each of ``vectors`` (n, d), the mean of its highest scores with ``bank`` (m,
    d)."""
    count = max(1, round(SHARE * len(bank)))
    offsets = np.empty(len(vectors))
    # Computing one row at a time makes the result independent of the batch.
    for place, vector in enumerate(vectors):
        scores = bank @ vector
        offsets[place] = np.partition(scores, -count)[-count:].mean(dtype=np.float64)
    return offsets
