"""Checks that an HDF5 file is laid out as a feature file, before anything in it is used.

HDF5 follows links to other files and never comes back from a damaged heap. No file of boc has
these.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from boc.errors import FeatureFileError
from boc.types import MODALITIES

STRINGS = ("ids", "content", "group")
REMAKE = "make it with boc extract"
REPACK = "rewrite it with: h5repack -f NONE -l CONTI OLD NEW"
HEAP = b"GCOL\x01\0\0\0"  # what a heap of strings begins with; its size follows, then its strings
HEADER = 16  # bytes before the strings of a heap, and before each of them


def check_layout(path: Path, file: h5py.File) -> None:
    """FeatureFileError unless groups and arrays are those of a feature file, in this file, and fit
    each other."""
    arrays = dict(_arrays(path, file, ""))
    size = path.stat().st_size
    texts = [data for data in arrays.values() if _is_text(data)]
    held = sum(data.id.get_storage_size() for data in arrays.values()) + sum(
        _characters(path, data) for data in texts
    )
    if held > size:  # several places of the same bytes: a small file could become any size
        raise FeatureFileError(
            f"{path}: its arrays have {held:,} bytes, the file {size:,}; {REMAKE} again",
        )
    _expect(
        path,
        "failed" in arrays and arrays["failed"].ndim == 2 and _is_text(arrays["failed"]),
        "failed",
        "pairs",
    )
    for modality in MODALITIES:
        if modality in file:
            begin = f"{modality}/"
            own = {
                name.removeprefix(begin): data
                for name, data in arrays.items()
                if name.startswith(begin)
            }
            _check_modality(path, modality, own, fields=bool(file.attrs.get("fields")))


def check_values(path: Path, values: NDArray[Any]) -> None:
    """FeatureFileError if a number is infinite, or none at all: such a vector is near to
    nothing."""
    if not np.isfinite(values).all():
        raise FeatureFileError(
            f"{path}: some of its numbers are infinite or none at all; {REMAKE} again",
        )


def _arrays(path: Path, group: h5py.Group, prefix: str) -> Iterator[tuple[str, h5py.Dataset]]:
    """Yield all arrays by their names; only such as lie in one piece in this file."""
    for name in group:
        where = f"{prefix}{name}"
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            raise FeatureFileError(
                f"{path}: {where} is a link to another place, which is not followed; {REMAKE}",
            )
        entry = group[name]
        if isinstance(entry, h5py.Group) and where.count("/") < 2:
            yield from _arrays(path, entry, f"{where}/")
        elif isinstance(entry, h5py.Dataset):
            if entry.is_virtual or entry.external:
                raise FeatureFileError(
                    f"{path}: the numbers of {where} stand in another file; {REMAKE}",
                )
            if (
                entry.chunks is not None
                or entry.compression is not None
                or (entry.size and entry.id.get_offset() is None)
            ):
                raise FeatureFileError(
                    f"{path}: {where} is compressed, or not in one piece; {REPACK}",
                )
            if (
                entry.size
                and entry.id.get_offset() + entry.id.get_storage_size() > path.stat().st_size
            ):
                raise FeatureFileError(f"{path}: {where} is cut short; {REMAKE}")
            yield where, entry
        else:
            raise FeatureFileError(f"{path}: {where} is no array; {REMAKE} again")


def _check_modality(
    path: Path,
    modality: str,
    arrays: dict[str, h5py.Dataset],
    *,
    fields: bool,
) -> None:
    for name in STRINGS:
        good = name in arrays and arrays[name].ndim == 1 and _is_text(arrays[name])
        _expect(path, good, f"{modality}/{name}", "one string per item")
    count = len(arrays["ids"])
    for name in STRINGS:
        _expect(path, len(arrays[name]) == count, f"{modality}/{name}", f"{count} strings")
    rows = _last(path, f"{modality}/offsets", arrays.get("offsets"), count)
    for name, data in arrays.items():
        folder = name.partition("/")[0]
        if folder in ("dense", "ragged"):
            length = count if folder == "dense" else rows
            good = data.ndim == 2 and len(data) == length and data.dtype.kind == "f"
            _expect(path, good, f"{modality}/{name}", f"{length} rows of floats")
    if fields:
        good = (
            "fields" in arrays and arrays["fields"].shape == (count,) and _is_text(arrays["fields"])
        )
        _expect(path, good, f"{modality}/fields", f"{count} strings")
    if "words" in arrays:
        good = arrays["words"].shape == (rows,) and _is_text(arrays["words"])
        _expect(path, good, f"{modality}/words", f"{rows} strings")


def _last(path: Path, name: str, data: h5py.Dataset | None, count: int) -> int:
    """Return the last of the offsets of ``count`` items, which rise from 0: the number of their
    rows."""
    good = data is not None and data.shape == (count + 1,) and data.dtype == np.int64
    _expect(path, good, name, f"{count + 1} integers")
    assert data is not None
    offsets = data[:]
    _expect(path, offsets[0] == 0 and bool((np.diff(offsets) >= 0).all()), name, "rising from 0")
    return int(offsets[-1])


def _is_text(data: h5py.Dataset) -> bool:
    kind = h5py.check_string_dtype(data.dtype)
    return kind is not None and kind.length is None


def _characters(path: Path, data: h5py.Dataset) -> int:
    """Return the bytes of the strings that an array refers to: each by its length, and its place in
    a heap."""
    if not data.size:
        return 0
    references = np.memmap(path, "<u4,<u8,<u4", "r", data.id.get_offset(), data.size)
    return int(references["f0"].sum(dtype=np.int64))


def _expect(path: Path, good: bool, name: str, rule: str) -> None:
    if not good:
        raise FeatureFileError(f"{path}: {name} is missing or not {rule}; {REMAKE} again")


def check_heaps(path: Path, file: h5py.File) -> None:
    """FeatureFileError if the entries of a heap of strings do not follow each other to its end.

    HDF5 itself takes each step for granted, and never ends where one leads nowhere. To be called
    before any string or attribute is read. What numbers take up of the file is not looked through.
    """
    with path.open("rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
        starts = np.array(
            [p for span in _gaps(_numbers(file), len(data)) for p in _heaps(data, *span)],
            np.int64,
        )
        view = np.frombuffer(data, np.uint8)
        try:
            good = _whole(view, starts)
        finally:
            del view  # or the file could not be closed
    if not good:
        raise FeatureFileError(
            f"{path}: damaged (its strings do not follow each other); {REMAKE} again",
        )


def _numbers(group: h5py.Group) -> Iterator[tuple[int, int]]:
    """Find where the arrays of numbers below ``group`` begin and end in the file."""
    for name in group:
        if isinstance(group.get(name, getlink=True), h5py.HardLink):
            entry = group[name]
            if isinstance(entry, h5py.Group):
                yield from _numbers(entry)
            elif entry.dtype.kind in "fiu" and entry.id.get_offset() is not None:
                yield entry.id.get_offset(), entry.id.get_offset() + entry.id.get_storage_size()


def _gaps(taken: Iterable[tuple[int, int]], size: int) -> Iterator[tuple[int, int]]:
    begin = 0
    for start, stop in sorted(taken):
        yield begin, start
        begin = max(begin, stop)
    yield begin, size


def _heaps(data: mmap.mmap, start: int, stop: int) -> Iterator[int]:
    place = data.find(HEAP, start, stop)
    while place >= 0:
        yield place
        place = data.find(HEAP, place + 1, stop)


def _whole(data: NDArray[np.uint8], starts: NDArray[np.int64]) -> bool:
    """Return whether the entries of all heaps lead to their ends; one step of all heaps at a
    time."""
    starts = starts[starts + 2 * HEADER <= len(data)]
    ends = starts + _word(data, starts + 8).astype(np.int64)
    if (ends > len(data)).any() or (ends < starts + HEADER).any():
        return False
    places = starts + HEADER
    while True:
        left = places + HEADER <= ends
        places = places[left]
        ends = ends[left]
        if not len(places):
            return True
        used = _word(data, places) & 0xFFFF != 0
        sizes = _word(data, places + 8)
        if (sizes > len(data)).any():
            return False
        steps = sizes.astype(np.int64)
        steps = np.where(used, HEADER + (steps + 7) // 8 * 8, steps)
        places = places + steps
        if (steps < HEADER).any() or (places > ends).any():
            return False


def _word(data: NDArray[np.uint8], places: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the 64-bit numbers that stand at some places."""
    words: NDArray[np.uint64] = np.ascontiguousarray(data[places[:, None] + np.arange(8)]).view(
        "<u8",
    )[:, 0]
    return words
