"""Capacity planning: estimates bytes, time, shards and memory of a large index by loading a sample.

A part of a sample and then the whole sample are loaded into temporary indexes. What both need equally, such as the
arrays of the code, is fixed; the difference is the cost of the items. Searches: ``boc/evaluate/search_time.py``.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from itertools import accumulate

import numpy as np

from boc import plugins
from boc.codecs import SurrogateCodec
from boc.errors import BackendError, BocError
from boc.evaluate.search_time import Searching, search_seconds, time_searches
from boc.indexes.learn import fit_code, sampled
from boc.indexes.load import load_index
from boc.inputs.features import FeatureFile, FeatureFiles, LazyBatch
from boc.inputs.metadata import Metadata
from boc.manifest import Manifest
from boc.plugins import Backend
from boc.search.searcher import Searcher
from boc.types import MODALITIES, Batch, Embeddings, Modality, Ragged

BLOCK = 250  # consecutive items per block of a sample
PART = 5  # the smaller load has one fifth of the sample
GB = 10**9
SHARD_BYTES = 30 * GB
SHARD_ITEMS = 10_000_000
SHARDS_PER_HEAP = 20
"""Shards per GB of heap, beside one GB for loading and searching: Elastic's rule for versions before 8.3, which is the
more cautious one."""


@dataclass(frozen=True)
class Load:
    """The result of a load: ``items`` loaded in ``seconds``, ``sizes``, bytes by part, and seconds of ``merging`` them
    once more; and ``searching`` in them, if it was measured."""

    items: int
    seconds: float
    sizes: dict[str, int]
    merging: float = 0.0
    searching: Searching | None = None


@dataclass(frozen=True)
class Learning:
    """What learning the code takes: seconds, and bytes of memory beside those of the program; and how many times as
    many terms the planned index has as the one that was measured."""

    seconds: float = 0.0
    memory: int = 0
    terms: float = 1.0


@dataclass(frozen=True)
class Estimate:
    """The cost of ``items``, extrapolated from two loads.

    ``bytes_each`` are the bytes per item by part, ``fixed`` the bytes that do not grow with the number of items. Bytes
    and seconds are for one copy. ``table`` are the bytes of the table of posting lists, which grows with terms and
    items. ``page_cache`` is memory for what searches read: postings, vectors, concept sets. ``search`` is the median
    time of a query in seconds, one at a time on one thread with all in memory; None where it cannot be told.
    """

    items: int
    measured: tuple[Load, Load]
    bytes_each: dict[str, float]
    fixed: int
    seconds: float
    table: int = 0
    learning: Learning = Learning()
    search: float | None = None

    @property
    def bytes(self) -> int:
        """Total bytes, including the fixed ones."""
        return self.fixed + self.table + math.ceil(self.items * sum(self.bytes_each.values()))

    @property
    def page_cache(self) -> int:
        """Bytes of the parts that searches read."""
        each = sum(size for part, size in self.bytes_each.items() if part != "other")
        return self.table + math.ceil(self.items * each)

    @property
    def shards(self) -> int:
        """Number of shards: one per 30 GB or per 10 million items, whichever gives more."""
        return max(1, math.ceil(self.bytes / SHARD_BYTES), math.ceil(self.items / SHARD_ITEMS))

    @property
    def heap(self) -> int:
        """Bytes of Java heap over all nodes: 1 GB, plus 1 GB per 20 shards."""
        return GB * (1 + math.ceil(self.shards / SHARDS_PER_HEAP))


Growth = Callable[[int, int, int], tuple[int, float]]
"""That of a back end, see ``boc.plugins.Backend.growth``."""


def extrapolate(
    part: Load,
    whole: Load,
    items: int,
    *,
    growth: Growth = lambda items, size, n_terms: (0, 0),
    n_terms: int = 0,
    codec_bytes: int = 0,
    learning: Learning = Learning(),
) -> Estimate:
    """Extrapolate linearly from two loads; from zero and the larger load where the line would fall.

    What does not grow along a line is told by ``growth``, for a code of ``n_terms`` terms whose arrays take
    ``codec_bytes``: the table of posting lists, and how often items are merged. BocError unless ``part`` has at least
    one item and fewer than ``whole``.
    """
    part, whole = (_without_table(load, growth, n_terms) for load in (part, whole))
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
    fixed += round(codec_bytes * (learning.terms - 1))
    size = round(items * sum(each.values()))
    table, merges = growth(items, size, round(n_terms * learning.terms))
    merging = max(0.0, whole.merging - part.merging) / more or whole.merging / whole.items
    seconds = start + items * (rate + merges * merging)
    search = None
    if part.searching is not None and whole.searching is not None:
        search = search_seconds(part.searching, whole.searching, items, learning.terms)
    return Estimate(items, (part, whole), each, fixed, seconds, table, learning, search)


def _without_table(load: Load, growth: Growth, n_terms: int) -> Load:
    """A load without the bytes of the table of its posting lists."""
    table = growth(load.items, 0, n_terms)[0]
    sizes = load.sizes | ({"postings": max(0, load.sizes["postings"] - table)} if table else {})
    return replace(load, sizes=sizes)


def learn(file: FeatureFiles, codec: SurrogateCodec, items: int) -> tuple[SurrogateCodec, Learning]:
    """``codec`` fitted to ``file`` for an index of ``items``, and what learning it takes."""
    import_module("sklearn.utils.validation")  # the first fit would import it, which takes as long as a small one
    begun = time.perf_counter()
    codec = fit_code(file, codec, n_items=items)
    return codec, learning_of(file, codec, items, time.perf_counter() - begun)


def learning_of(file: FeatureFiles, codec: SurrogateCodec, items: int, seconds: float) -> Learning:
    """What learning ``codec`` for ``items`` takes, which was fitted in ``seconds`` to what there is of ``file``."""
    counts = [file.count(modality) for modality in MODALITIES]
    here = sum(sampled(codec, count, sum(counts), items) for count in counts if count)
    there = sum(sampled(codec, math.ceil(count * items / sum(counts)), items, items) for count in counts if count)
    terms = codec.terms_at(items) / codec.n_terms
    work = codec.learning_work(there, items) / max(codec.learning_work(here, items), 1)
    return Learning(seconds * work, codec.learning_bytes(there, file.header.dim, items), terms)


class SampledFiles(FeatureFiles):
    """About ``size`` items of feature files, in blocks spread evenly over each, with their metadata.

    It reads the open files of ``whole``, and is closed with it.
    """

    def __init__(self, whole: FeatureFiles, size: int, metadata: Metadata | None = None) -> None:
        self.files = whole.files
        self.path = whole.path
        self._share = min(1.0, size / sum(whole.count(modality) for modality in MODALITIES))
        self._metadata = metadata

    def count(self, modality: Modality) -> int:
        """Number of items of one modality in the sample."""
        return sum(stop - start for number in range(len(self.files)) for start, stop in self._spans(number, modality))

    def lazy_batches(self, modality: Modality, size: int, *, sets: bool) -> Iterator[LazyBatch]:
        """The rows of the sample, at most ``size`` of one file at a time, still to be read."""
        for number, file in enumerate(self.files):
            spans = self._spans(number, modality)
            ends = list(accumulate((stop - start for start, stop in spans), initial=0))
            for first in range(0, ends[-1], size):
                last = min(first + size, ends[-1])
                pieces = [
                    (start + max(0, first - before), min(stop, start + last - before))
                    for (start, stop), before in zip(spans, ends[:-1], strict=True)
                    if before < last and first < before + stop - start
                ]
                yield last - first, partial(self._read, file, modality, pieces, sets=sets)

    def _read(self, file: FeatureFile, modality: Modality, pieces: list[tuple[int, int]], *, sets: bool) -> Batch:
        """Rows as one batch: a load takes longer for many small ones."""
        parts = [file.batch(modality, start, stop, sets=sets) for start, stop in pieces]
        items = [item for part in parts for item in part.items]
        if self._metadata is not None:
            items = [replace(item, fields={**item.fields, **self._metadata.of(item)}) for item in items]
        concepts = [part.embeddings.concepts for part in parts if part.embeddings.concepts is not None]
        vectors = np.concatenate([part.embeddings.vectors for part in parts])
        return Batch(items, Embeddings(modality, vectors, Ragged.concatenate(concepts) if concepts else None))

    def _spans(self, number: int, modality: Modality) -> list[tuple[int, int]]:
        """Start and end of each block of one file."""
        there = self.files[number].count(modality)
        total = math.ceil(there * self._share)
        blocks = math.ceil(total / BLOCK)
        spans = []
        for i in range(blocks):
            length = total * (i + 1) // blocks - total * i // blocks
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
    size: int = 25_000,
    searches: bool = False,
    tick: Callable[[int], object] = lambda items: None,
) -> tuple[Load, Load]:
    """Load a fifth of a sample of ``size`` items of ``file``, and then all of it, into temporary indexes at ``at``.

    The fifth is loaded once before, for what only a first load takes: a server compiles its code while it runs.
    ``codec`` is fitted; ``manifest`` is that of an index of all of ``file``; ``tick`` is called with the number of
    items loaded; with ``searches`` they are searched too. The indexes are removed however this ends. BocError if there
    are fewer than two items.
    """
    whole = SampledFiles(file, size, metadata)
    part = SampledFiles(file, max(1, size_of(whole) // PART), metadata)
    if size_of(part) >= size_of(whole):
        raise BocError(f"{file.path}: {size_of(whole)} items are too few to estimate from; give a larger sample")
    backend = plugins.backend(at)
    with _temporary(backend) as first, _temporary(backend) as one, _temporary(backend) as other:
        _timed(part, at, first, codec, manifest, lambda items: None)
        loads = []
        for sample, name in ((part, one), (whole, other)):
            seconds = _timed(sample, at, name, codec, manifest, tick)
            index = backend.open(name)
            searching = time_searches(Searcher(index), sample) if searches else None
            loads.append(Load(size_of(sample), seconds, index.sizes(), _merging(backend, name), searching))
    return loads[0], loads[1]


def size_of(file: FeatureFiles) -> int:
    """Number of items."""
    return sum(file.count(modality) for modality in MODALITIES)


def _timed(
    file: FeatureFiles, at: str, name: str, codec: SurrogateCodec, manifest: Manifest, tick: Callable[[int], object]
) -> float:
    start, before = time.perf_counter(), 0
    for done in load_index(file, at, name, codec, manifest):
        tick(done - before)
        before = done
    return time.perf_counter() - start


def _merging(backend: Backend, name: str) -> float:
    """Seconds of writing the items of an index once more; 0 if the back end does not merge while it loads."""
    index = backend.open(name)
    if not backend.growth(1 << 40, 1 << 50, 1)[1] or sum(index.manifest.items.values()) < 2:
        return 0.0
    with backend.edit(name) as editor:
        editor.delete([next(iter(index.items())).id])  # else there is nothing to merge
        editor.commit(index.manifest.source)
    start = time.perf_counter()
    backend.compact(name)
    return time.perf_counter() - start


@contextmanager
def _temporary(backend: Backend) -> Iterator[str]:
    """The name of a temporary index, which is removed at the end, finished or not."""
    name = f"boc-estimate-{uuid.uuid4().hex[:12]}"
    try:
        yield name
    finally:
        try:
            backend.remove(name)
        except BackendError as error:
            if backend.exists(name):
                raise BackendError(f"the temporary index {name} could not be removed ({error}); remove it") from error
