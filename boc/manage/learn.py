"""Learn codes from a sample of a collection."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np

from boc.codecs import SurrogateCodec
from boc.errors import BocError, FeatureFileError
from boc.manage.load import VectorSource
from boc.progress import Progress, silent
from boc.types import MODALITIES, Embeddings, Modality, Ragged
from boc.vectors import Ints

# Number of vectors per modality from which a code is learned, unless its steps need more.
FIT_SAMPLE = 100_000
# Number of concept sets per modality from which a code is learned.
FIT_SETS = 2000
# Number of items per modality that are held out to evaluate a dictionary.
HELD_OUT = 250


@dataclass(frozen=True)
class VectorSample:
    """Vectors of ``size`` evenly spaced items of one modality in ``file``, except the rows in
    ``without``."""

    file: VectorSource
    modality: Modality
    size: int
    without: Ints

    @cached_property
    def rows(self) -> Ints:
        """Row numbers of the sampled items."""
        return np.setdiff1d(
            np.arange(self.size) * self.file.count(self.modality) // self.size,
            self.without,
        )

    def __len__(self) -> int:
        return len(self.rows)

    def blocks(self) -> Iterator[Embeddings]:
        """Yield the vectors, a few thousand at a time."""
        for vectors in self.file.sample(self.modality, self.rows):
            yield Embeddings(self.modality, vectors)


def held_out(count: int) -> Ints:
    """Return the rows to hold out when a dictionary is learned from the ``count`` items of a
    modality: at most a fifth of the rows, and no rows if ``count`` is below 250.

    The centroids of a dictionary lie close to the vectors from which it was learned, so a recall
    measured on these vectors would be too high.
    """
    size = min(HELD_OUT, count // 5) if count >= HELD_OUT else 0
    return np.arange(size) * count // max(1, size)


def fit_code(
    file: VectorSource,
    codec: SurrogateCodec,
    progress: Progress = silent,
    *,
    sample: int = FIT_SAMPLE,
) -> SurrogateCodec:
    """Fit ``codec`` on evenly spaced items of ``file``: on ``sample`` vectors per modality, or more
    if its steps need more, and on 2,000 concept sets per modality if the codec learns from concept
    sets.

    ``progress`` is called before and after the fit.
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
                    f"{file.path}: no concept vectors; extract the file again with concepts",
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
        raise FeatureFileError(f"{file.path}: contains no items to index")
    size = sum(map(len, samples))
    progress("learning", 0, size)
    try:
        codec.fit(*samples, n_items=total)
    except ValueError as error:
        raise BocError(f"the code cannot be learned: {error}") from error
    progress("learning", size, size)
    return codec
