"""Bytes of an index of many items, computed from those of a smaller one."""

from __future__ import annotations

import math
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from boc import plugins
from boc.codecs import parse_code
from boc.errors import BackendError, FeatureFileError
from boc.indexes.learn import fit_code
from boc.indexes.load import load_index, new_manifest
from boc.inputs.features import FeatureFiles, LazyBatch
from boc.plugins import Index
from boc.types import MODALITIES, Modality

SAMPLE = 25_000  # items, at most, that are loaded to measure


def planned_sizes(index: Index, items: int) -> dict[str, int]:
    """Return the bytes by part that ``items`` like those of ``index`` take with its code.

    ``code`` are the arrays of the code, which do not grow; all else grows with the number of items.
    """
    code = sum(array.nbytes for array in index.arrays().values())
    measured = dict(index.sizes())
    if not measured:
        raise BackendError("the server does not tell this user the size of the index; ask for the right monitor on it")
    code = min(code, measured.get("other", 0))
    measured["other"] = measured.get("other", 0) - code
    count = max(1, sum(index.manifest.items.values()))
    return {part: round(size * items / count) for part, size in measured.items()} | {"code": code}


def sampled_sizes(sources: Sequence[Path], items: int, sample: int = SAMPLE) -> dict[str, int]:
    """Return ``planned_sizes`` of the default code for items like those of feature files with vectors.

    The first items of the files, ``sample`` at most, are loaded into an index in a temporary folder, which is removed.
    FeatureFileError for files of regions.
    """
    with _Beginning(sources, sample) as file, tempfile.TemporaryDirectory(prefix="boc-info-") as folder:
        if file.header.kind != "embeddings":
            raise FeatureFileError(f"{file.path} holds no vectors; make a file of them with boc extract --encoder")
        codec = fit_code(file, parse_code("dictionary").codec(file.dim), n_items=items)
        deque(load_index(file, f"file:{folder}", "sample", codec, new_manifest(file, codec)), 0)
        return planned_sizes(plugins.backend(f"file:{folder}").open("sample"), items)


class _Beginning(FeatureFiles):
    """The first items of each of several feature files, about ``sample`` in all, with equal shares of all of them."""

    def __init__(self, paths: Sequence[Path], sample: int) -> None:
        super().__init__(paths)
        total = sum(file.count(modality) for file in self.files for modality in MODALITIES)
        self._share = min(1.0, sample / max(1, total))

    def count(self, modality: Modality) -> int:
        return sum(math.ceil(self._share * file.count(modality)) for file in self.files)

    def lazy_batches(self, modality: Modality, size: int, *, sets: bool) -> Iterator[LazyBatch]:
        for file in self.files:
            count = math.ceil(self._share * file.count(modality))
            for start in range(0, count, size):
                stop = min(start + size, count)
                ids = partial(file.ids, modality, start, stop)
                yield stop - start, ids, partial(file.batch, modality, start, stop, sets=sets)

    def contents(self, *, sets: bool) -> str:
        return ""  # the digest of an index that nobody compares
