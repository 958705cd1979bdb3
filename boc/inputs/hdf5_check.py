"""Open feature files: read the header, and validate the layout before any contents are used.

HDF5 itself follows links to other files, and may loop forever in a damaged heap of strings. Files
with links or damaged heaps are therefore rejected.
"""

from __future__ import annotations

import json
import mmap
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
from numpy.typing import NDArray

from boc.errors import FeatureFileError, check_system
from boc.foreign import DAMAGE, parse_json
from boc.inputs.metadata import are_types
from boc.types import MODALITIES, WIDEST, FieldType, Identity
from boc.vectors import Ints

MAKE = "create it with <boc extract>"
FORMAT = 2
OPTIONAL = {"precision": "float32", "shard": "", "fields": ""}
"""Optional header entries and their defaults."""

HEAP = re.compile(b"GCOL\x01")  # signature at the beginning of a heap
HEADER = 16  # size of the headers of a heap and of each string in it, in bytes
SMALLEST = 4096  # minimum size of a heap in bytes
SCANNED = 1 << 28  # maximum bytes of a file whose arrays are searched for heaps


@dataclass(frozen=True)
class Header:
    """Header of a feature file.

    ``source`` is the digest of the list of source items, ``shard`` is the part of the full list,
    and ``precision`` is the precision of the encoder's matrix products, which cannot be derived
    from the vectors. ``fields`` is empty, or JSON that maps the metadata fields of the items to
    their types.
    """

    kind: Literal["regions", "embeddings"]
    spec: str
    digest: str
    dim: int
    dtype: str
    source: str
    format: int = FORMAT
    precision: str = "float32"
    shard: str = ""
    fields: str = ""

    @classmethod
    def of(
        cls,
        identity: Identity,
        dtype: str,
        source: str,
        types: Mapping[str, FieldType],
    ) -> Header:
        """Create the header for a file of embeddings. ``types`` declares the metadata fields of the
        items."""
        fields = json.dumps(types, sort_keys=True) if types else ""
        return cls(
            "embeddings",
            identity.spec,
            identity.digest,
            identity.dim,
            dtype,
            source,
            fields=fields,
        )

    @property
    def types(self) -> dict[str, FieldType]:
        """Return the types of the items' metadata fields."""
        return parse_json(self.fields) if self.fields else {}

    @property
    def identity(self) -> Identity:
        return Identity(self.spec, self.digest, self.dim)

    def entries(self) -> dict[str, Any]:
        """Return the entries that are written: all except optional entries with default values."""
        return {
            key: value
            for key, value in asdict(self).items()
            if key not in OPTIONAL or value != OPTIONAL[key]
        }


def open_checked(path: Path) -> tuple[h5py.File, Header]:
    """Open a feature file, and check that its arrays match its header. Raises FeatureFileError if
    the file is missing, damaged, not a feature file, or written by a newer version of boc."""
    with reporting_damage(path):
        try:
            file = h5py.File(path, "r")
        except FileNotFoundError:
            if path.with_name(f"{path.name}.parts").exists():
                raise FeatureFileError(
                    f"{path}: incomplete",
                    "run the same <boc extract> command again, which resumes the work",
                ) from None
            raise FeatureFileError(f"{path}: file does not exist", MAKE) from None
    try:
        with reporting_damage(path):
            heaps = check_heaps(path, file)
            header = _read_header(path, file.attrs)
            _check_layout(path, file, header, heaps)
    except FeatureFileError:
        file.close()
        raise
    return file, header


@contextmanager
def reporting_damage(path: Path) -> Iterator[None]:
    """Turn exceptions that HDF5 or UTF-8 decoding raises for a damaged file into
    FeatureFileError."""
    try:
        yield
    except DAMAGE as error:
        check_system(path, error, FeatureFileError)
        reason = "not a readable HDF5 file"
        if isinstance(error, UnicodeError):
            reason = "damaged (text that is not UTF-8)"
        raise FeatureFileError(f"{path}: {reason}", MAKE) from error


def check_values(path: Path, values: NDArray[Any]) -> None:
    """Raise FeatureFileError if a number is infinite or NaN, because the vector would have no valid
    distance to other vectors."""
    if not np.isfinite(values).all():
        raise FeatureFileError(f"{path}: contains infinite numbers or NaN", MAKE)


def _read_header(path: Path, attributes: Mapping[str, Any]) -> Header:
    names = {field.name for field in fields(Header)}
    entries = {key: np.asarray(attributes[key]).tolist() for key in names & attributes.keys()}
    kind = entries.get("kind")
    if not isinstance(entries.get("format"), int) or kind not in ("regions", "embeddings"):
        raise FeatureFileError(f"{path}: an HDF5 file, but not a boc feature file", MAKE)
    if entries["format"] > FORMAT:
        raise FeatureFileError(
            f"{path}: feature format {entries['format']}, but this version of boc "
            f"reads up to {FORMAT}; upgrade boc",
        )
    if not names <= entries.keys() | OPTIONAL.keys():
        raise FeatureFileError(f"{path}: incomplete header", MAKE)
    kinds = dict.fromkeys(names, str) | {"format": int, "dim": int}
    odd = sorted(key for key, value in entries.items() if not isinstance(value, kinds[key]))
    if odd or not 0 < entries["dim"] < WIDEST or entries["dtype"] not in ("float16", "float32"):
        raise FeatureFileError(
            f"{path}: the header is damaged ({', '.join(odd) or 'dim or dtype'}); recreate the "
            "file",
        )
    header = Header(**entries)
    if header.fields and not are_types(header.fields):
        raise FeatureFileError(f"{path}: the header is damaged (fields); recreate the file")
    return header


def _check_layout(path: Path, file: h5py.File, header: Header, heaps: Ints) -> None:
    """Raise FeatureFileError unless all groups and arrays of a feature file are present, stored in
    this file, and consistent with each other and the header."""

    def expect(good: bool, name: str, rule: str) -> None:
        if not good:
            raise FeatureFileError(f"{path}: {name} is missing or not {rule}", MAKE)

    arrays = dict(_arrays(path, file, ""))
    size = path.stat().st_size
    held = sum(data.id.get_storage_size() for data in arrays.values())
    for data in arrays.values():
        # An array of strings stores the length of each string and its position in a heap.
        if _is_text(data) and data.size:
            places = np.memmap(path, "<u4,<u8,<u4", "r", data.id.get_offset(), data.size)
            held += int(places["f0"].sum(dtype=np.int64))
            # A heap that an array of numbers covers was not checked. An empty string has no heap.
            if not np.isin(places["f1"], np.append(heaps, 0)).all():
                raise FeatureFileError(f"{path}: damaged (strings without a heap)", MAKE)
    # If arrays shared bytes, a small file could expand to any size.
    if held > size:
        raise FeatureFileError(f"{path}: arrays have {held:,} bytes, the file only {size:,}", MAKE)
    failed = arrays.get("failed")
    expect(failed is not None and failed.ndim == 2 and _is_text(failed), "failed", "pairs")
    for modality in MODALITIES:
        if modality not in file:
            continue
        own = {
            name.removeprefix(f"{modality}/"): data
            for name, data in arrays.items()
            if name.startswith(f"{modality}/")
        }
        ids = own.get("ids")
        good = ids is not None and ids.ndim == 1 and _is_text(ids)
        expect(good, f"{modality}/ids", "one string per item")
        count = len(own["ids"])
        offsets = own.get("offsets")
        good = offsets is not None and offsets.shape == (count + 1,) and offsets.dtype == np.int64
        expect(good, f"{modality}/offsets", f"{count + 1} integers")
        ends = own["offsets"][:]
        good = ends[0] == 0 and bool((np.diff(ends) >= 0).all())
        expect(good, f"{modality}/offsets", "ascending from 0")
        rows = int(ends[-1])
        lengths = {"content": count, "group": count}
        if header.fields:
            lengths["fields"] = count
        if "words" in own:
            lengths["words"] = rows
        for name, length in lengths.items():
            data = own.get(name)
            good = data is not None and data.shape == (length,) and _is_text(data)
            expect(good, f"{modality}/{name}", f"{length} strings")
        for name, data in own.items():
            folder = name.partition("/")[0]
            if folder in ("dense", "ragged"):
                length = count if folder == "dense" else rows
                good = data.ndim == 2 and len(data) == length and data.dtype.kind == "f"
                expect(good, f"{modality}/{name}", f"{length} rows of floats")
        # In region files, captions are stored as plain text.
        needed = {"dense/vectors": header.dim}
        if header.kind == "regions":
            needed = {"ragged/features": header.dim, "ragged/boxes": 4}
        if count and (header.kind, modality) != ("regions", "text"):
            for name, width in needed.items():
                good = name in own and own[name].shape[1] == width
                expect(good, f"{modality}/{name}", f"{width} wide")


def _arrays(path: Path, group: h5py.Group, prefix: str) -> Iterator[tuple[str, h5py.Dataset]]:
    """Yield all arrays with their names. Raises FeatureFileError for an array that is not stored
    contiguously in this file."""
    for name in group:
        where = f"{prefix}{name}"
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            raise FeatureFileError(f"{path}: {where} is a link, but links are not supported", MAKE)
        entry = group[name]
        if isinstance(entry, h5py.Group) and where.count("/") < 2:
            yield from _arrays(path, entry, f"{where}/")
        elif isinstance(entry, h5py.Dataset):
            if entry.is_virtual or entry.external:
                raise FeatureFileError(
                    f"{path}: the numbers of {where} are stored in another file",
                    MAKE,
                )
            start = entry.id.get_offset()
            # Compressed arrays are always stored in chunks.
            if entry.chunks is not None or (entry.size and start is None):
                raise FeatureFileError(
                    f"{path}: {where} is compressed or not contiguous; rewrite the file with: "
                    "h5repack -f NONE -l CONTI OLD NEW",
                )
            if entry.size and start + entry.id.get_storage_size() > path.stat().st_size:
                raise FeatureFileError(f"{path}: {where} is truncated", MAKE)
            yield where, entry
        else:
            raise FeatureFileError(f"{path}: {where} is not an array", MAKE)


def _is_text(data: h5py.Dataset) -> bool:
    kind = h5py.check_string_dtype(data.dtype)
    return kind is not None and kind.length is None


def check_heaps(path: Path, file: h5py.File) -> Ints:
    """Raise FeatureFileError unless the entries of each string heap are stored one after another,
    up to the end of the heap, and no attribute is a list.

    HDF5 itself moves from entry to entry without checks, and may loop forever if an entry is
    damaged. Call this function before reading any string or attribute. The arrays of numbers in
    a large file are not searched for heaps. Return the offsets of the heaps in the file.
    """
    with path.open("rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
        # In a sound file, heaps are located between the arrays.
        marks = []
        begin = 0
        arrays = sorted(_numbers(file)) if len(data) > SCANNED else []
        for start, stop in [*arrays, (len(data), len(data))]:
            marks += [found.start() for found in HEAP.finditer(data, begin, start)]
            begin = max(begin, stop)
        starts = np.array(marks, np.int64)
        view = np.frombuffer(data, np.uint8)
        try:
            good = _are_whole(view, starts)
        finally:
            del view  # the file cannot be closed while a view exists
    if not good:
        raise FeatureFileError(
            f"{path}: damaged (its strings are not stored one after another)",
            MAKE,
        )
    for key in file.attrs:
        # HDF5 crashes when it reads a string whose damaged type is a list.
        if isinstance(file.attrs.get_id(key).get_type(), h5py.h5t.TypeVlenID):
            raise FeatureFileError(f"{path}: damaged ({key} is not a string)", MAKE)
    return starts


def _numbers(group: h5py.Group) -> Iterator[tuple[int, int]]:
    """Yield the file offsets at which each array of numbers below ``group`` begins and ends."""
    for name in group:
        if isinstance(group.get(name, getlink=True), h5py.HardLink):
            entry = group[name]
            if isinstance(entry, h5py.Group):
                yield from _numbers(entry)
            elif entry.dtype.kind in "fiu" and entry.id.get_offset() is not None:
                yield entry.id.get_offset(), entry.id.get_offset() + entry.id.get_storage_size()


def _are_whole(data: NDArray[np.uint8], starts: Ints) -> bool:
    """Return whether the entries of each heap lead to its end. All heaps advance together, one
    entry at a time."""

    def word(places: Ints) -> NDArray[np.uint64]:
        return np.ascontiguousarray(data[places[:, None] + np.arange(8)]).view("<u8")[:, 0]

    # HDF5 itself rejects a heap of another size, which follows the signature.
    starts = starts[starts + 2 * HEADER <= len(data)]
    sizes = word(starts + 8)
    possible = (sizes >= SMALLEST) & (sizes <= (len(data) - starts).astype(np.uint64))
    starts = starts[possible]
    ends = starts + sizes[possible].astype(np.int64)
    places = starts + HEADER
    while True:
        left = places + HEADER <= ends
        places = places[left]
        ends = ends[left]
        if not len(places):
            return True
        used = word(places) & 0xFFFF != 0
        sizes = word(places + 8)
        if (sizes > len(data)).any():
            return False
        steps = sizes.astype(np.int64)
        steps = np.where(used, HEADER + (steps + 7) // 8 * 8, steps)
        places = places + steps
        if (steps < HEADER).any() or (places > ends).any():
            return False
