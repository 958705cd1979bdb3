"""Correct the scores of hubs, which are items near almost every query.

The offset of an item is the mean of its highest scores against a bank of training queries for other
items: captions for a picture, and pictures for a sentence. A fraction of the offset, the strength,
is subtracted from each score of the item (querybank normalisation: Bogolin et al., Cross Modal
Retrieval with Querybank Normalisation, CVPR 2022).

Code that compares vectors needs no change, because four additional components after the components
of the encoder make the offset part of the dot product. Let o be the offsets minus their mean,
multiplied by the strengths, and let s * s be the largest; then

    sentence  [t, s, -o / s, p, 0] / n        picture  [x, -o / s, s, 0, p] / n

have the dot product (t.x - o of the picture - o of the sentence) / (n * n). The offset of the query
is the same for all items. p gives all vectors the same length, so that scores between two pictures
do not change. In a sentence of one or two words, 0 replaces s, because such a sentence resembles a
name more than a caption, and may well describe a hub.
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
SHARE = 0.02  # top fraction of the scores that an offset averages
FEW = 3  # minimum number of words in a sentence with offsets


@dataclass(frozen=True)
class HubBank:
    """Query bank with the vectors of ``texts`` and ``images``, stored by ``store_rows`` as int8 in
    uint8 arrays (n, d + 4).

    ``strengths`` and ``means`` float64 (2,) apply to the offsets of pictures and of sentences.
    ``limit`` float64 (1,) is the maximum of an offset after subtracting the mean and multiplying by
    the strength, which is set to three standard deviations.
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
        """Build a bank from vectors (n, d) and (m, d) of unit length."""
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
        """Read a file written by ``write``. Raises ValueError if the file does not contain a valid
        bank."""
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
        """Return vectors (n, d + 4) with the offset components, and concepts with zeros in these
        components. ``texts`` contains the sentences."""
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
    """Return, for each of ``vectors`` (n, d), the mean of its highest scores against ``bank`` (m,
    d)."""
    count = max(1, round(SHARE * len(bank)))
    offsets = np.empty(len(vectors))
    # Computing one row at a time makes the result independent of the batch.
    for place, vector in enumerate(vectors):
        scores = bank @ vector
        offsets[place] = np.partition(scores, -count)[-count:].mean(dtype=np.float64)
    return offsets
