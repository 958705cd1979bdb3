"""The alignment of the words of a sentence with the regions of a picture, and the attention of the picture's vector.

Sources: the alignment of TERAN (Messina et al., TOMM 2021, section 8.5 and fig. 7), the attention map of VSRN++
(Li et al., TPAMI 2022, section 4.5).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from boc.errors import BocError
from boc.labels import content_words, whole_words
from boc.types import ImageRef
from boc.vectors import unit_rows

if TYPE_CHECKING:
    from boc.plugins import Encoder
    from boc.types import Embeddings

EMPHASIS = 50  # lambda of VSRN++


@dataclass(frozen=True)
class Alignment:
    """The alignment of a sentence with a picture.

    ``words`` are the whole words of the sentence, ``boxes`` float32 (n, 4) those of the regions, x1 y1 x2 y2 as
    fractions of the picture (values slightly outside [0, 1] are kept). ``cosines`` float32 (words, n) are those of
    words and regions, the maximum over the word-pieces of a word. ``scores`` int64 (n,) are the attention of the
    picture's vector to each region.
    """

    words: list[str]
    boxes: NDArray[np.float32]
    cosines: NDArray[np.float32]
    scores: NDArray[np.int64]

    @cached_property
    def best(self) -> NDArray[np.int64]:
        """The index (words,) of the region with the largest cosine for each word, ties to the earlier region."""
        best: NDArray[np.int64] = self.cosines.argmax(axis=1)
        return best

    @cached_property
    def content(self) -> list[int]:
        """Indices of the words that are not stop-words, numbers or punctuation, in order."""
        return [i for i, word in enumerate(self.words) if content_words(word)]

    def attention(self, width: int, height: int) -> NDArray[np.int64]:
        """The attention map (height, width): at each pixel the sum of the scores of the regions that cover it."""
        rows, columns = covered(self.boxes, width, height)
        # exact, since all values are integers far below 2 ** 53
        sums: NDArray[np.float64] = (rows.T * self.scores) @ columns
        return sums.astype(np.int64)

    def heat(self, word: int, width: int, height: int) -> NDArray[np.float64]:
        """The mean cosine (height, width) of ``word`` with the regions that cover a pixel; NaN if none does."""
        rows, columns = covered(self.boxes, width, height)
        sums, counts = (rows.T * self.cosines[word].astype(np.float64)) @ columns, rows.T @ columns
        means: NDArray[np.float64] = np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)
        return means


def align(images: Embeddings, texts: Embeddings) -> Alignment:
    """The alignment of the only picture of ``images`` with the only sentence of ``texts``.

    BocError if regions, their boxes or words are missing.
    """
    if images.concepts is None or texts.concepts is None:
        raise BocError("the encoder gives vectors of whole pictures and sentences only; use one that gives concepts")
    if images.boxes is None or texts.words is None:
        missing = "where regions lie" if images.boxes is None else "which words it read"
        raise BocError(f"the encoder does not tell {missing}; use one that gives boxes and words")
    regions, pieces = images.concepts[0], texts.concepts[0]
    if not len(regions):
        raise BocError("the picture has no region to show; use a region source that finds some")
    if not len(pieces):
        raise BocError("the encoder reads no word in this sentence; write what the picture shows")
    words, of = whole_words(texts.words[0])
    cosines: NDArray[np.float32] = unit_rows(pieces) @ unit_rows(regions).T
    starts = np.searchsorted(of, np.arange(len(words)))
    scores = attention_scores(regions, images.vectors[0])
    return Alignment(words, images.boxes[0], np.maximum.reduceat(cosines, starts, axis=0), scores)


def show(encoder: Encoder, image: ImageRef, text: str) -> Alignment:
    """The alignment of a sentence with a picture by ``encoder``.

    ImageError if the picture cannot be used, BocError for an empty sentence and as in ``align``.
    """
    if not text.strip():
        raise BocError("the sentence is empty; write what the picture shows")
    return align(encoder.encode_images([encoder.prepare(image)]), encoder.encode_texts([text]))


def attention_scores(regions: NDArray[np.float32], vector: NDArray[np.float32]) -> NDArray[np.int64]:
    """50 (k - r)^2 for each of k regions (k, d), int64: r is its rank from 1 by inner product with the picture's own
    ``vector`` (d,), ties to the earlier region (VSRN++, section 4.5)."""
    order = np.argsort(-(regions @ vector), kind="stable")
    behind = np.empty(len(regions), dtype=np.int64)
    behind[order] = np.arange(len(regions))[::-1]
    return EMPHASIS * behind**2


def covered(boxes: NDArray[np.float32], width: int, height: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Which pixel rows (n, height) and columns (n, width) each box covers, as 1 or 0.

    A pixel belongs to a box that contains its centre, without the right and lower edge, so grid cells share no pixel.
    """
    x1, y1, x2, y2 = boxes.astype(np.float64).T[:, :, None]
    x, y = (np.arange(width) + 0.5) / width, (np.arange(height) + 0.5) / height
    return ((y1 <= y) & (y < y2)).astype(np.float64), ((x1 <= x) & (x < x2)).astype(np.float64)
