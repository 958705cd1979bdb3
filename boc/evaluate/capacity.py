"""What an index of many items will take, from loading a few of them: bytes, time, shards, memory.

A part of a sample and then the whole of it are loaded into temporary indexes; what both take alike, such as the arrays
of the code, is fixed, and the difference is what the items take.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from boc import plugins
from boc.build import build_index
from boc.codecs import SurrogateCodec
from boc.errors import BackendError, BocError
from boc.inputs.features import FeatureFiles
from boc.inputs.metadata import Metadata
from boc.manifest import Manifest
from boc.plugins import Backend
from boc.types import MODALITIES, Modality, Rows

BLOCK = 250  # items that lie together in a sample
PART = 5  # the smaller load is of a fifth
GB = 10**9
SHARD_BYTES = 30 * GB
SHARD_ITEMS = 10_000_000
SHARDS_PER_HEAP = 20
"""Shards for each GB of heap, beside one GB for loading and searching: Elastic's rule for versions before 8.3, the more
careful one."""


@dataclass(frozen=True)
class Load:
    """One load: ``items`` of them, in ``seconds``, into ``sizes`` bytes by part."""

    items: int
    seconds: float
    sizes: dict[str, int]


@dataclass(frozen=True)
class Estimate:
    """What ``items`` would take, extrapolated from two loads.

    ``bytes_each`` are of one item by part, ``fixed`` bytes what does not grow with the number of items. Bytes and
    seconds are of one copy; ``page_cache`` is memory for what searches read: postings, vectors and concept sets.
    """

    items: int
    measured: tuple[Load, Load]
    bytes_each: dict[str, float]
    fixed: int
    seconds: float

    @property
    def bytes(self) -> int:
        """Of all items, the fixed ones among them."""
        return self.fixed + math.ceil(self.items * sum(self.bytes_each.values()))

    @property
    def page_cache(self) -> int:
        """Bytes that searches read."""
        return math.ceil(self.items * sum(size for part, size in self.bytes_each.items() if part != "other"))

    @property
    def shards(self) -> int:
        """One for each 30 GB or 10 million items, whichever gives more."""
        return max(1, math.ceil(self.bytes / SHARD_BYTES), math.ceil(self.items / SHARD_ITEMS))

    @property
    def heap(self) -> int:
        """Bytes of Java heap over all nodes: 1 GB, and 1 GB for each 20 shards."""
        return GB * (1 + math.ceil(self.shards / SHARDS_PER_HEAP))


def extrapolate(part: Load, whole: Load, items: int) -> Estimate:
    """Lines through two loads, at ``items``; through the larger one and zero where they would fall.

    BocError unless ``part`` is of fewer items than ``whole``, and of at least one.
    """
    if not 0 < part.items < whole.items:
        raise BocError(f"an estimate needs loads of two sizes, got {part.items} and {whole.items} items")
    more = whole.items - part.items
    each = {
        name: max(0.0, (size - part.sizes[name]) / more) or size / whole.items for name, size in whole.sizes.items()
    }
    fixed = max(0, sum(whole.sizes.values()) - round(whole.items * sum(each.values())))
    rate = (whole.seconds - part.seconds) / more
    start = part.seconds - part.items * rate
    if rate <= 0 or start < 0:
        rate, start = whole.seconds / whole.items, 0.0
    return Estimate(items, (part, whole), each, fixed, start + items * rate)


class Sample(FeatureFiles):
    """About ``size`` items of feature files, in blocks evenly spread over each, with their metadata.

    It reads what ``whole`` has open, and is closed with it.
    """

    def __init__(self, whole: FeatureFiles, size: int, metadata: Metadata | None = None) -> None:
        self.files = whole.files
        self.path = whole.path
        self._share = min(1.0, size / sum(whole.count(modality) for modality in MODALITIES))
        self._metadata = metadata

    def count(self, modality: Modality) -> int:
        """Number of items of one modality in the sample."""
        return sum(stop - start for number in range(len(self.files)) for start, stop in self._spans(number, modality))

    def batches(self, modality: Modality, size: int = 1024, *, sets: bool = True) -> Iterator[Rows]:
        """The rows of the sample, at most ``size`` at a time."""
        for number, file in enumerate(self.files):
            for first, last in self._spans(number, modality):
                for start in range(first, last, size):
                    rows = file.rows(modality, start, min(start + size, last), sets=sets)
                    if self._metadata is not None:
                        items = [replace(item, fields=self._metadata.of(item)) for item in rows.items]
                        rows = replace(rows, items=items)
                    yield rows

    def _spans(self, number: int, modality: Modality) -> list[tuple[int, int]]:
        """First and behind the last item of each block of one file."""
        there = self.files[number].count(modality)
        wanted = math.ceil(there * self._share)
        blocks = math.ceil(wanted / BLOCK)
        spans = []
        for i in range(blocks):
            length = wanted * (i + 1) // blocks - wanted * i // blocks
            start = there * i // blocks
            spans.append((start, min(start + length, there)))
        return spans


def measure(
    file: FeatureFiles,
    at: str,
    codec: SurrogateCodec,
    manifest: Manifest,
    metadata: Metadata | None = None,
    *,
    size: int = 5000,
    tick: Callable[[int], object] = lambda items: None,
) -> tuple[Load, Load]:
    """Load a fifth of a sample of ``size`` items of ``file``, and then all of it, into temporary indexes at ``at``.

    ``codec`` is fitted; ``manifest`` is that of an index of all of ``file``; ``tick`` hears of items as they are
    loaded. Nothing stays there, however this ends. BocError if there are fewer than two items.
    """
    whole = Sample(file, size, metadata)
    part = Sample(file, max(1, size_of(whole) // PART), metadata)
    if size_of(part) >= size_of(whole):
        raise BocError(f"{file.path}: {size_of(whole)} items are too few to estimate from; give a larger sample")
    backend = plugins.backend(at)
    with _temporary(backend) as one, _temporary(backend) as other:
        times = [_timed(sample, at, name, codec, manifest, tick) for sample, name in ((part, one), (whole, other))]
        sizes = [backend.open(name).sizes() for name in (one, other)]
    return Load(size_of(part), times[0], sizes[0]), Load(size_of(whole), times[1], sizes[1])


def size_of(file: FeatureFiles) -> int:
    """Number of items."""
    return sum(file.count(modality) for modality in MODALITIES)


def _timed(
    file: FeatureFiles, at: str, name: str, codec: SurrogateCodec, manifest: Manifest, tick: Callable[[int], object]
) -> float:
    start, before = time.perf_counter(), 0
    for done in build_index(file, at, name, codec, manifest):
        tick(done - before)
        before = done
    return time.perf_counter() - start


@contextmanager
def _temporary(backend: Backend) -> Iterator[str]:
    """A name for an index that is removed at the end, finished or not."""
    name = f"boc-estimate-{uuid.uuid4().hex[:12]}"
    try:
        yield name
    finally:
        try:
            backend.remove(name)
        except BackendError as error:
            if backend.exists(name):
                raise BackendError(f"the temporary index {name} could not be removed ({error}); remove it") from error
