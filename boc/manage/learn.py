"""Codes learned from a sample of a collection."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from boc.codecs import SurrogateCodec
from boc.errors import BocError, FeatureFileError
from boc.manage.load import VectorSource
from boc.progress import Progress, silent
from boc.types import MODALITIES, Embeddings, Modality, Ragged

FIT_SAMPLE = 100_000  # vectors per modality that a code is learned from, if its steps need no more
FIT_SETS = 2000  # concept sets per modality that a code is learned from
HELD_OUT = (
    250  # items of each modality that no dictionary is learned from, so that they can judge it
)


@dataclass(frozen=True)
class VectorSample:
    """Return vectors of ``size`` items of one modality, spread evenly over ``file``, not of the
    rows ``without``."""

    file: VectorSource
    modality: Modality
    size: int
    without: NDArray[np.int64]

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """The numbers of the items."""
        return np.setdiff1d(
            np.arange(self.size) * self.file.count(self.modality) // self.size,
            self.without,
        )

    def __len__(self) -> int:
        return len(self.rows)

    def blocks(self) -> Iterator[Embeddings]:
        """Yield the vectors, some thousand at a time."""
        for vectors in self.file.sample(self.modality, self.rows):
            yield Embeddings(self.modality, vectors)


def held_out(count: int) -> NDArray[np.int64]:
    """Return the rows of the ``count`` items of a modality, of a fifth at most and no row of fewer
    than 250, that no dictionary is learned from. It has centroids near to what it is learned from,
    and would promise too much."""
    size = min(HELD_OUT, count // 5) if count >= HELD_OUT else 0
    return np.arange(size) * count // max(1, size)


def fit_code(
    file: VectorSource,
    codec: SurrogateCodec,
    progress: Progress = silent,
    *,
    sample: int = FIT_SAMPLE,
) -> SurrogateCodec:
    """Fit ``codec`` on items of ``file``, spread evenly: their vectors, ``sample`` per modality or
    as many as its steps need; their concept sets, of 2,000 per modality, if it learns from these.

    ``progress`` is called before and after.
    """
    counts = {modality: file.count(modality) for modality in MODALITIES}
    total = sum(counts.values())
    samples: list[Embeddings | VectorSample] = []
    for modality, count in counts.items():
        if count and codec.reads_concepts and not all(step.frozen for step in codec.steps):
            rows = [
                read().embeddings
                for each in getattr(file, "files", [file])
                for *_, read in islice(
                    each.lazy_batches(modality, 1, sets=True),
                    0,
                    None,
                    math.ceil(count / FIT_SETS),
                )
            ]
            sets = [row.concepts for row in rows if row.concepts is not None]
            if len(sets) < len(rows):
                raise FeatureFileError(
                    f"{file.path}: holds no concept vectors; extract it again, with concepts",
                )
            samples.append(
                Embeddings(
                    modality,
                    np.concatenate([row.vectors for row in rows]),
                    Ragged.concatenate(sets),
                ),
            )
        elif count:
            share = math.ceil(codec.sample_rows(total) * count / total)
            without = np.empty(0, np.int64) if codec.query_budget is None else held_out(count)
            samples.append(VectorSample(file, modality, min(count, max(sample, share)), without))
    if not samples:
        raise FeatureFileError(f"{file.path}: holds no items; there is nothing to index")
    size = sum(map(len, samples))
    progress("learning", 0, size)
    try:
        codec.fit(*samples, n_items=total)
    except ValueError as error:
        raise BocError(f"this code cannot be made: {error}") from error
    progress("learning", size, size)
    return codec
