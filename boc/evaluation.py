"""How good a ranking is: Recall@K and median rank, sentences to pictures and pictures to sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from boc.errors import BocError

CUTOFFS = (1, 5, 10)
FOLD = 1000  # pictures of a fold of the "1K" protocol
BLOCK = 1024  # queries scored at a time


@dataclass(frozen=True)
class Recall:
    """Percentages of queries whose right answer is among the first 1, 5, 10, and the median rank (from 1)."""

    r1: float
    r5: float
    r10: float
    median_rank: float

    @property
    def total(self) -> float:
        """R@1 + R@5 + R@10."""
        return self.r1 + self.r5 + self.r10

    @classmethod
    def of(cls, ranks: NDArray[np.int64]) -> Recall:
        """From the rank of each query's first right answer, counted from 0."""
        r1, r5, r10 = (100 * float(np.mean(ranks < k)) for k in CUTOFFS)
        return cls(r1, r5, r10, float(np.floor(np.median(ranks))) + 1)

    @classmethod
    def mean(cls, recalls: Sequence[Recall]) -> Recall:
        """Average over folds."""
        return cls(*np.mean([[r.r1, r.r5, r.r10, r.median_rank] for r in recalls], axis=0).tolist())


@dataclass(frozen=True)
class Recalls:
    """Both directions."""

    text_to_image: Recall
    image_to_text: Recall

    @property
    def total(self) -> float:
        """The sum of the six recalls ("rsum")."""
        return self.text_to_image.total + self.image_to_text.total


def text_to_image_ranks(
    images: NDArray[np.float32], texts: NDArray[np.float32], owners: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Rank (from 0) of each sentence's own picture, ``owners`` (n_texts,), among all by dot product.

    Equal scores are ordered by position, as a stable sort does.
    """
    ranks = np.empty(len(texts), dtype=np.int64)
    for start in range(0, len(texts), BLOCK):
        own = owners[start : start + BLOCK]
        scores = texts[start : start + BLOCK] @ images.T
        best = scores[np.arange(len(own)), own][:, None]
        before = np.arange(len(images)) < own[:, None]
        ranks[start : start + BLOCK] = ((scores > best) | ((scores == best) & before)).sum(axis=1)
    return ranks


def image_to_text_ranks(
    images: NDArray[np.float32], texts: NDArray[np.float32], owners: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Best rank (from 0) among each picture's own sentences; every picture needs one."""
    ranks = np.empty(len(images), dtype=np.int64)
    for start in range(0, len(images), BLOCK):
        scores = images[start : start + BLOCK] @ texts.T
        own = owners == np.arange(start, start + len(scores))[:, None]
        best = np.where(own, scores, -np.inf).argmax(axis=1)
        level = scores[np.arange(len(scores)), best][:, None]
        before = np.arange(len(texts)) < best[:, None]
        ranks[start : start + BLOCK] = ((scores > level) | ((scores == level) & before)).sum(axis=1)
    return ranks


def evaluate(
    images: NDArray[np.float32], texts: NDArray[np.float32], owners: NDArray[np.int64], fold: int | None = None
) -> Recalls:
    """Recalls over the whole gallery, or averaged over contiguous folds of ``fold`` pictures with their sentences.

    ``images`` is (n, d), ``texts`` (m, d), ``owners`` (m,) the number of each sentence's picture. BocError unless
    ``fold`` is between 1 and n.
    """
    if fold is None:
        return _whole(images, texts, owners)
    if not 1 <= fold <= len(images):
        raise BocError(f"fold must be between 1 and the number of pictures, {len(images)}; got {fold}")
    folds = [_whole(images[part], texts[mine], owners[mine] - part.start) for part, mine in _folds(owners, fold)]
    return Recalls(
        Recall.mean([r.text_to_image for r in folds]),
        Recall.mean([r.image_to_text for r in folds]),
    )


def owners_of(images: Sequence[str], groups: Sequence[str]) -> NDArray[np.int64]:
    """The number of each sentence's picture, from picture ids and the sentences' groups.

    BocError if a sentence belongs to no picture or a picture has no sentence: neither has a right answer.
    """
    number = {key: i for i, key in enumerate(images)}
    lost = next((group for group in groups if group not in number), None)
    if lost is not None:
        raise BocError(f"a caption belongs to {lost!r}, which is not among the pictures; extract both together")
    owners = np.array([number[group] for group in groups], dtype=np.int64)
    bare = np.setdiff1d(np.arange(len(images)), owners)
    if len(bare):
        raise BocError(
            f"{len(bare)} pictures have no caption (such as {images[bare[0]]!r}); give a CSV of image,caption"
        )
    return owners


def _whole(images: NDArray[np.float32], texts: NDArray[np.float32], owners: NDArray[np.int64]) -> Recalls:
    return Recalls(
        Recall.of(text_to_image_ranks(images, texts, owners)), Recall.of(image_to_text_ranks(images, texts, owners))
    )


def _folds(owners: NDArray[np.int64], fold: int) -> Iterator[tuple[slice, NDArray[np.int64]]]:
    """Whole folds only: a shorter rest would be an easier gallery."""
    for start in range(0, int(owners.max()) + 2 - fold, fold):
        yield slice(start, start + fold), np.flatnonzero((owners >= start) & (owners < start + fold))
