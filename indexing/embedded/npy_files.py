"""Write files of arrays and strings with their digests, and memory-map them for reading."""

from __future__ import annotations

import hashlib
import math
import mmap
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from boc.errors import BackendError, ManifestError, check_system
from boc.vectors import Array, Ints

from . import fs
from .string_column import Strings

Files: TypeAlias = dict[str, tuple[int, str]]
"""Size and SHA-256 of each file, by name."""

SMALL = 1 << 16  # maximum size in bytes of a file that is read instead of mapped
DAMAGED = "rebuild the index with <boc index --replace>"
_HEADER = re.compile(
    rb"\x93NUMPY\x01\0..\{'descr': '([<|][a-zA-Z]\d+)', 'fortran_order': False, 'shape': \(([\d, "
    rb"]*)\), \} *\n",
    re.DOTALL,
)


class Output:
    """Write the files in a folder. Each file is synced to disk when its method returns."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: Files = {}

    def array(
        self,
        name: str,
        dtype: Any,
        shape: tuple[int, ...],
        blocks: Iterable[Array],
    ) -> None:
        with self.file(f"{name}.npy") as handle:
            write_header(handle, np.dtype(dtype), shape)
            for block in blocks:
                handle.write(np.ascontiguousarray(block, dtype).data)

    def strings(self, name: str, blocks: Iterable[Strings]) -> None:
        lengths = []
        with self.file(f"{name}.bin") as handle:
            for block in blocks:
                handle.write(block.data.data)
                lengths.append(np.diff(block.offsets))
        offsets = offsets_of(np.concatenate([np.zeros(0, np.int64), *lengths]))
        self.array(
            name,
            np.int64,
            offsets.shape,
            [offsets],
        )

    @contextmanager
    def file(self, name: str) -> Iterator[HashingFile]:
        with fs.create(self.folder / name) as file:
            handle = HashingFile(file)
            yield handle
        self.files[name] = (handle.size, handle.digest.hexdigest())


class HashingFile:
    """File that computes a digest of the data while writing it."""

    def __init__(self, handle: BinaryIO) -> None:
        self._handle = handle
        self.digest = hashlib.sha256()
        self.size = 0

    def write(self, data: Any) -> int:
        written = memoryview(data).cast("B") if len(data) else b""
        self.digest.update(written)
        self._handle.write(written)
        self.size += len(written)
        return len(written)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raise ManifestError if an index file cannot be read or is damaged."""
    try:
        yield
    except (OSError, ValueError, TypeError) as error:
        check_system(path, error, BackendError)
        raise ManifestError(f"{path}: damaged ({error})", DAMAGED) from error


def load_array(path: Path, *, scattered: bool = False) -> Array:
    """Map a .npy file in row-major order. Raises ManifestError if the file has another format or is
    truncated.

    The header is parsed here because NumPy parses it as a Python expression, which is slower and
    can fail in threads (CPython 3.11).
    """
    with reading(path):
        mapped = _map(path)
        header = _HEADER.match(mapped)
        if header is None:
            raise ValueError("its header does not describe an array")
        shape = tuple(int(length) for length in header[2].split(b",") if length.strip())
        array = np.frombuffer(
            mapped,
            np.dtype(header[1].decode()),
            math.prod(shape),
            header.end(),
        ).reshape(shape)
    if scattered and isinstance(mapped, mmap.mmap) and hasattr(mmap, "MADV_RANDOM"):
        mapped.madvise(mmap.MADV_RANDOM)  # otherwise, the system reads 100 kB around each row
    return array


def _map(path: Path) -> mmap.mmap | bytes:
    """Map a file into memory. Small files are read instead, because each map needs a file
    descriptor and edits create a lot of small files."""
    with path.open("rb") as handle:
        if os.fstat(handle.fileno()).st_size <= SMALL:
            return handle.read()
        return mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)


def release(array: Array) -> None:
    """Release the pages of a mapped array that have been read. They stay in the page cache, but no
    longer count as memory of the process. The function has no effect on arrays in memory or on
    systems without madvise."""
    owner: Any = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if isinstance(owner, memoryview):
        owner = owner.obj
    if isinstance(owner, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        owner.madvise(mmap.MADV_DONTNEED)


def rows_of(mask: NDArray[np.uint8] | None, n: int) -> Ints:
    """Return the rows among ``n`` rows that a mask selects, in ascending order. None selects all
    rows."""
    return np.arange(n) if mask is None else np.flatnonzero(mask)


def load_strings(folder: Path, name: str) -> Strings:
    """Map a column of strings. Raises ManifestError with the name of the file if a file is
    damaged."""
    offsets = load_array(folder / f"{name}.npy")
    path = folder / f"{name}.bin"
    with reading(path):
        mapped = _map(path)
    if offsets.ndim != 1 or offsets.dtype != np.int64:
        raise ManifestError(f"{folder / name}.npy: damaged (invalid offsets)", DAMAGED)
    return Strings(np.frombuffer(mapped, np.uint8), offsets)


def name_of(files: Files) -> str:
    """Return a name derived from the names, sizes and digests of ``files``."""
    listed = "".join(f"{name} {size} {digest}\n" for name, (size, digest) in sorted(files.items()))
    return hashlib.sha256(listed.encode()).hexdigest()[:12]


def write_header(handle: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(handle, header)


def offsets_of(lengths: Sequence[int] | Ints) -> Ints:
    """Return the offsets of concatenated sets with the given lengths, int64 (n + 1,)."""
    offsets: Ints = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return offsets


def spans(counts: NDArray[np.integer[Any]], most: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of consecutive lists with at most ``most`` entries in total, or with a single
    longer list. ``counts`` contains the lengths of the lists."""
    ends = np.cumsum(counts)
    first = 0
    while first < len(counts):
        before = ends[first - 1] if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + most, "right")))
        yield first, last
        first = last
