"""Regions from the tables of bottom-up attention (Anderson et al., CVPR 2018): one row per picture, many GB per file.

Columns, separated by tabs, without a header: image_id, image_w, image_h, num_boxes, boxes, features; or those of
LXMERT (Tan and Bansal, EMNLP 2019): img_id, img_h, img_w, objects_id, objects_conf, attrs_id, attrs_conf, num_boxes,
boxes, features. Boxes and features are little-endian float32 in base64, boxes in pixels of the picture.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import zipfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from boc.atomic_files import replacing
from boc.errors import BocError, EncoderError, ImageError
from boc.types import Identity, ImageRef, Regions

from ._names import known_as

ARGUMENT = "FILE"
EXTRA = "encoders"
WIDE: dict[int, tuple[str, ...]] = {6: ("id", "width", "height", "count", "boxes", "features")}
WIDE[10] = ("id", "height", "width", "", "", "", "", "count", "boxes", "features")
HEADERS = frozenset({b"image_id", b"img_id"})
LONGEST = 1 << 26  # bytes per row; 100 boxes of 2,048 values take 1.1 MB
FORMAT = 1
LONGEST_ID = 256
VOTERS = 9  # rows that decide the width of features, since the first one may be damaged


def load(argument: str) -> TsvRegions:
    """The source over the table ``argument``. EncoderError if it is missing or no such table."""
    path = Path(argument)
    if not argument or not path.is_file():
        raise EncoderError(f"{argument or 'tsv'}: no such table; write tsv:FILE, for example tsv:trainval_36.tsv")
    return TsvRegions(path)


@dataclass(frozen=True)
class _Index:
    """Offsets of rows: ``ids`` and ``offsets`` (n,) int64 in the order of the file; ``digest`` of its bytes."""

    ids: list[str]
    offsets: NDArray[np.int64]
    digest: str
    dim: int


class TsvRegions:
    """Reads the row of a picture; order and values are kept.

    The image_id of the row is the id of the picture without folder and suffix, or, for a name of COCO
    (``COCO_val2014_000000391895``, or those twelve digits alone), its number; the first such row is used. Sizes are
    those of the row; the picture is not opened.

    The first use reads the whole file to index its rows and compute its digest. The index is kept in
    ``.NAME.index.npz`` beside the file, if the folder is writable, and is valid while size and time of the file do not
    change.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.resolve()
        index = _index(self._path)
        self._offsets = dict(zip(reversed(index.ids), reversed(index.offsets.tolist()), strict=True))
        self.identity = Identity(f"tsv:{self._path}", index.digest, index.dim)

    def __call__(self, image: ImageRef) -> Regions:
        name = self._row_name(image)
        try:
            with self._path.open("rb") as handle:
                handle.seek(self._offsets[name])
                line = handle.readline(LONGEST)
            return _parse(line, name, self.identity.dim)
        except (OSError, ValueError) as error:
            raise ImageError(
                f"{self._path}: damaged row {name} at byte {self._offsets[name]} ({error}); fetch the table again"
            ) from error

    def _row_name(self, image: ImageRef) -> str:
        names = known_as(image.id)
        found = next((name for name in names if name in self._offsets), None)
        if found is None:
            raise ImageError(
                f"{self._path}: no row for {image.id} (image_id {' or '.join(names)}); "
                "extract its regions or leave it out with --ids"
            )
        return found


def _parse(line: bytes, name: str, dim: int | None = None) -> Regions:
    """Parse the regions of a row. ValueError says what is wrong."""
    cells = line.rstrip(b"\r\n").split(b"\t")
    if len(cells) not in WIDE:
        raise ValueError(f"{len(cells)} columns, not {' or '.join(map(str, WIDE))}")
    row = dict(zip(WIDE[len(cells)], cells, strict=True))
    if row["id"] != name.encode():
        raise ValueError(f"the row is of {row['id'][:40]!r}, the table was changed")
    count, width, height = (int(row[key]) for key in ("count", "width", "height"))
    boxes, features = _floats(row["boxes"]), _floats(row["features"])
    if count < 0 or min(width, height) < 1 or len(boxes) != 4 * count:
        raise ValueError(f"{count} boxes on {width} x {height} pixels, but {len(boxes)} numbers for boxes")
    dim = len(features) // max(count, 1) if dim is None else dim
    if len(features) != count * dim:
        raise ValueError(f"{len(features)} numbers for features of {count} boxes, each {dim} wide")
    if not (np.isfinite(boxes).all() and np.isfinite(features).all()):
        raise ValueError("not all numbers are finite")
    scale = np.array([width, height] * 2, dtype=np.float64)
    return Regions(features.reshape(count, dim), (boxes.reshape(count, 4) / scale).astype(np.float32))


def _floats(cell: bytes) -> NDArray[np.float32]:
    try:
        return np.frombuffer(base64.b64decode(cell, validate=True), "<f4").astype(np.float32)
    except binascii.Error as error:
        raise ValueError(f"base64: {error}") from error


def _index(path: Path) -> _Index:
    """The index of the table: the one beside it, or a new one, kept if the folder is writable."""
    status, kept = path.stat(), path.with_name(f".{path.name}.index.npz")
    stamp = np.array([FORMAT, status.st_size, status.st_mtime_ns], dtype=np.int64)
    index = _read(kept, stamp)
    if index is None:
        index = _scan(path)
        arrays: dict[str, Any] = {"stamp": stamp, "ids": np.array(index.ids), "offsets": index.offsets}
        try:
            with replacing(kept) as temporary, temporary.open("wb") as handle:
                np.savez(handle, digest=np.array(index.digest), dim=np.array(index.dim), **arrays)
        except BocError:
            return index  # read-only folder: the next use scans again
    return index


def _read(path: Path, stamp: NDArray[np.int64]) -> _Index | None:
    """The kept index, or None if it is missing, damaged, or outdated."""
    try:
        with path.open("rb") as handle, np.load(handle, allow_pickle=False) as arrays:
            if not np.array_equal(arrays["stamp"], stamp):
                return None
            ids, offsets = arrays["ids"].tolist(), arrays["offsets"]
            return _Index(ids, offsets, str(arrays["digest"]), int(arrays["dim"]))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None


def _scan(path: Path) -> _Index:
    """One pass over the table, row by row. EncoderError if it is no table of regions."""
    digest, ids, offsets, at = hashlib.sha256(), [], [], 0
    widths: Counter[int] = Counter()
    with path.open("rb") as handle:
        while line := _line(handle, path):
            digest.update(line)
            name, tab, _ = line.partition(b"\t")
            if tab and name not in HEADERS and len(name) <= LONGEST_ID:
                ids.append(name.decode("utf-8", "replace"))
                offsets.append(at)
                if widths.total() < VOTERS:
                    widths.update(_widths(line, ids[-1]))
            at += len(line)
    if not widths:
        raise EncoderError(
            f"{path}: no table of regions: no whole row of the columns image_id, image_w, image_h, num_boxes, boxes, "
            "features; give a bottom-up-attention .tsv"
        )
    return _Index(ids, np.array(offsets, dtype=np.int64), digest.hexdigest(), widths.most_common(1)[0][0])


def _line(handle: BinaryIO, path: Path) -> bytes:
    line = handle.readline(LONGEST)
    if len(line) == LONGEST:
        raise EncoderError(f"{path}: a line longer than {LONGEST:,} bytes; give a bottom-up-attention .tsv")
    return line


def _widths(line: bytes, name: str) -> list[int]:
    """The width of the features of a row; empty if it has none, or is damaged."""
    try:
        row = _parse(line, name)
    except ValueError:
        return []
    return [row.features.shape[1]] if len(row) else []
