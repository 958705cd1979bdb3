"""Regions that others computed: bottom-up-attention features (Anderson et al., CVPR 2018), in three
layouts.

``files:DIR`` is that of the authors of TERN and TERAN, one pair of files per picture: features in
``cocobu_att/ID.npz`` or ``bu_att/ID.npz`` (array ``feat``), or as plain ``.npy``; boxes in
``cocobu_box/ID.npy`` or ``bu_box/ID.npy``, in pixels of the upright picture. ID is the name of the
picture, or its number in COCO. Those of Flickr30k are numbered by their place in a file, which
``files:DIR?index=dataset_flickr30k.json`` names.

``scan:DIR`` are the arrays of SCAN (Lee et al., ECCV 2018), ``NAME_ims.npy`` in one folder. The
pictures are those of a source ``NAME_ims.npy``. The arrays hold no boxes, which VSRN does not need:
every region has the whole picture as its box.

``tsv:FILE`` is a table with one row per picture, many GB per file. Columns, separated by tabs,
without a header: image_id, image_w, image_h, num_boxes, boxes, features; or those of LXMERT (Tan
and Bansal, EMNLP 2019): img_id, img_h, img_w, objects_id, objects_conf, attrs_id, attrs_conf,
num_boxes, boxes, features. Boxes and features are little-endian float32 in base64, boxes in pixels
of the picture.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from boc.atomic_files import open_whole, replacing
from boc.errors import BocError, EncoderError, ImageError, SourceError
from boc.foreign import DAMAGE, PACKED, read_archive, read_json, read_npy
from boc.inputs.images import image_size
from boc.inputs.scan_arrays import ARRAY, rows_of
from boc.types import Identity, ImageRef, Regions

from ..networks.foreign import reading_model
from ._shared import parse_spec, write_spec

COCO = re.compile(r"(?:COCO_[a-z]+[0-9]{4}_)?([0-9]{12})")


def known_as(image_id: str) -> list[str]:
    """Return the id of a picture without folder and suffix; then, if it is a name of COCO
    (``COCO_val2014_000000391895``, or those twelve digits alone), its number, ``391895``."""
    stem = PurePosixPath(image_id).stem
    number = COCO.fullmatch(stem)
    return [stem, *([str(int(number[1]))] if number else [])]


def karpathy_places(path: Path) -> dict[str, str]:
    """Return the place from 0 of each file name in the ``images`` of a Karpathy file, such as
    ``dataset_flickr30k.json``: the authors of TERAN number the features of Flickr30k by it.
    EncoderError if it is no such file."""
    advice = "give Karpathy's dataset_flickr30k.json"
    with reading_model(
        lambda reason: f"{path}: no list of images with their filename ({reason}); {advice}",
    ):
        images = read_json(path)["images"]
        return {str(image["filename"]): str(place) for place, image in enumerate(images)}


FOLDERS = (("cocobu_att", "cocobu_box"), ("bu_att", "bu_box"))


@dataclass(frozen=True)
class PrecomputedOptions:
    """``index``: a Karpathy file, whose images number the features by their place."""

    index: str = ""


def load_files(argument: str) -> FileRegions:
    """Return the source over the folder ``argument``. EncoderError if it has neither layout."""
    name, options = parse_spec(argument, PrecomputedOptions)
    return FileRegions(Path(name), Path(options.index) if options.index else None)


class FileRegions:
    """Reads the features of the picture whose id, without its suffix, names the files. Order and
    values are kept.

    An id with folders is looked up in the same folders first, then by its last part alone, then by
    its number in COCO, as the authors store it. With an ``index`` only its place there names the
    files.
    """

    def __init__(self, folder: Path, index: Path | None = None) -> None:
        pairs = [
            (folder / a, folder / b)
            for a, b in FOLDERS
            if (folder / a).is_dir() and (folder / b).is_dir()
        ]
        if not pairs:
            raise EncoderError(
                f"{folder}: no bottom-up features (cocobu_att with cocobu_box, or bu_att with "
                "bu_box)",
            )
        self._features, self._boxes = pairs[0]
        paths = (p for p in self._features.rglob("*.np[yz]") if p.is_file())
        names = sorted(p.relative_to(self._features).as_posix() for p in paths)
        if not names:
            raise EncoderError(f"{self._features}: no .npz or .npy files; put one a picture there")
        width = _read_array(self._features / names[0]).shape[-1]
        listing = "\n".join(f"{name} {(self._features / name).stat().st_size}" for name in names)
        self._index = index
        self._places = None if index is None else karpathy_places(index)
        if self._places is not None:
            listing += "".join(f"\n{name} {place}" for name, place in self._places.items())
        digest = hashlib.sha256(listing.encode()).hexdigest()
        spec = write_spec(
            "files",
            str(folder.resolve()),
            PrecomputedOptions(str(index.resolve()) if index else ""),
        )
        self.identity = Identity(spec, digest, int(width))

    def __call__(self, image: ImageRef) -> Regions:
        path = self._file(PurePosixPath(image.id))
        features = _read_array(path)
        boxes = _read_array(self._boxes / path.relative_to(self._features).with_suffix(".npy"))
        if (
            features.ndim != 2
            or features.shape[1] != self.identity.dim
            or boxes.size != 4 * len(features)
        ):
            raise ImageError(
                f"{path}: features {features.shape} and boxes {boxes.shape} do not belong together",
            )
        scale = np.array(_size(image.path) * 2, dtype=np.float64)
        return Regions(
            features.astype(np.float32),
            (boxes.reshape(-1, 4) / scale).astype(np.float32),
        )

    def _file(self, name: PurePosixPath) -> Path:
        """Return the path of the features of the picture with this id, whether it exists or not."""
        names = [str(name.with_suffix("")), *known_as(str(name))]
        if self._places is not None:
            if name.name not in self._places:
                raise ImageError(
                    f"{name}: {self._index} lists no such picture; give the file of this data set",
                )
            names = [self._places[name.name]]
        places = [
            self._features / f"{name}{suffix}" for name in names for suffix in (".npz", ".npy")
        ]
        return next((place for place in places if place.exists()), places[-1])


def _read_array(path: Path) -> NDArray[Any]:
    try:
        if path.suffix == ".npz":
            return read_archive(path, packed=PACKED)["feat"]
        with open_whole(path) as file:
            return read_npy(file.read())
    except FileNotFoundError:
        raise ImageError(
            f"{path}: no region features for this picture; extract them, or leave it out",
        ) from None
    except DAMAGE as error:
        raise ImageError(
            f"{path}: damaged region features ({error}); extract them again",
        ) from error


def _size(path: Path) -> tuple[int, int]:
    """Return the width and height of the upright picture by its orientation tag, without decoding
    it."""
    try:
        return image_size(path)
    except ImageError as error:
        raise ImageError(f"{error} (boxes are in its pixels)") from error


def load_scan(argument: str) -> ScanRegions:
    """Return the source over the arrays in the folder ``argument``. EncoderError if there are
    none."""
    return ScanRegions(Path(argument))


class ScanRegions:
    """Reads the row of a picture whose path is ``NAME_ims.npy#ROW``; order and values are kept."""

    boxes = False

    def __init__(self, folder: Path) -> None:
        arrays = sorted(folder.glob(f"*{ARRAY}"))
        if not arrays:
            raise EncoderError(
                f"{folder}: no arrays of SCAN (testall_ims.npy); name the folder they were "
                "unpacked in",
            )
        try:
            rows_of(arrays[0])
        except SourceError as error:
            raise EncoderError(str(error)) from error
        listing = "\n".join(f"{path.name} {path.stat().st_size}" for path in arrays)
        self._folder = folder.resolve()
        width = np.load(arrays[0], mmap_mode="r", allow_pickle=False).shape[-1]
        self.identity = Identity(
            f"scan:{self._folder}",
            hashlib.sha256(listing.encode()).hexdigest(),
            int(width),
        )

    def __call__(self, image: ImageRef) -> Regions:
        name, mark, row = image.path.name.rpartition("#")
        if not mark or not row.isdecimal() or not name.endswith(ARRAY):
            raise ImageError(
                f"{image.path}: no picture of an array of SCAN; give an array ({ARRAY}) as the "
                "source",
            )
        path = self._folder / name
        try:
            features = np.load(path, mmap_mode="r", allow_pickle=False)[int(row)].astype(np.float32)
        except DAMAGE as error:
            raise ImageError(
                f"{path}: no regions in row {row} ({error}); give the folder of this array",
            ) from error
        if features.ndim != 2 or features.shape[1] != self.identity.dim:
            raise ImageError(
                f"{path}: row {row} has the shape {features.shape}; regions are "
                f"{self.identity.dim} wide",
            )
        return Regions(features, np.tile(np.array([0, 0, 1, 1], np.float32), (len(features), 1)))


WIDE: dict[int, tuple[str, ...]] = {6: ("id", "width", "height", "count", "boxes", "features")}
WIDE[10] = ("id", "height", "width", "", "", "", "", "count", "boxes", "features")
HEADERS = frozenset({b"image_id", b"img_id"})
LONGEST = 1 << 26  # bytes per row; 100 boxes of 2,048 values take 1.1 MB
FORMAT = 1
LONGEST_ID = 256
VOTERS = 9  # rows that decide the width of features, since the first one may be damaged


def load_tsv(argument: str) -> TsvRegions:
    """Return the source over the table ``argument``. EncoderError if it is missing or no such
    table."""
    path = Path(argument)
    if not argument or not path.is_file():
        raise EncoderError(
            f"{argument or 'tsv'}: no such table; write tsv:FILE, for example tsv:trainval_36.tsv",
        )
    return TsvRegions(path)


@dataclass(frozen=True)
class _RowOffsets:
    """Offsets of rows: ``ids`` and ``offsets`` (n,) int64 in the order of the file; ``digest`` of
    its bytes."""

    ids: list[str]
    offsets: NDArray[np.int64]
    digest: str
    dim: int


class TsvRegions:
    """Reads the row of a picture; order and values are kept.

    The image_id of the row is the id of the picture without folder and suffix, or, for a name of
    COCO (``COCO_val2014_000000391895``, or those twelve digits alone), its number; the first such
    row is used. Sizes are those of the row; the picture is not opened.

    The first use reads the whole file to index its rows and compute its digest. The index is kept
    in ``.NAME.index.npz`` beside the file, if the folder is writable, and is valid while size and
    time of the file do not change.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.resolve()
        index = _index(self._path)
        self._offsets = dict(
            zip(reversed(index.ids), reversed(index.offsets.tolist()), strict=True),
        )
        self.identity = Identity(f"tsv:{self._path}", index.digest, index.dim)

    def __call__(self, image: ImageRef) -> Regions:
        name = self._row_name(image)
        try:
            with self._path.open("rb") as handle:
                handle.seek(self._offsets[name])
                line = handle.readline(LONGEST)
            return _parse_row(line, name, self.identity.dim)
        except (OSError, ValueError) as error:
            raise ImageError(
                f"{self._path}: damaged row {name} at byte {self._offsets[name]} ({error}); "
                "fetch the table again",
            ) from error

    def _row_name(self, image: ImageRef) -> str:
        names = known_as(image.id)
        row = next((name for name in names if name in self._offsets), None)
        if row is None:
            raise ImageError(
                f"{self._path}: no row for {image.id} (image_id {' or '.join(names)}); "
                "extract its regions, or leave it out",
            )
        return row


def _parse_row(line: bytes, name: str, dim: int | None = None) -> Regions:
    """Parse the regions of a row. ValueError says what is wrong."""
    cells = line.rstrip(b"\r\n").split(b"\t")
    if len(cells) not in WIDE:
        raise ValueError(f"{len(cells)} columns, not {' or '.join(map(str, WIDE))}")
    row = dict(zip(WIDE[len(cells)], cells, strict=True))
    if row["id"] != name.encode():
        raise ValueError(f"the row is of {row['id'][:40]!r}, the table was changed")
    count, width, height = (int(row[key]) for key in ("count", "width", "height"))
    boxes = _floats(row["boxes"])
    features = _floats(row["features"])
    if count < 0 or min(width, height) < 1 or len(boxes) != 4 * count:
        raise ValueError(
            f"{count} boxes on {width} x {height} pixels, but {len(boxes)} numbers for boxes",
        )
    dim = len(features) // max(count, 1) if dim is None else dim
    if len(features) != count * dim:
        raise ValueError(f"{len(features)} numbers for features of {count} boxes, each {dim} wide")
    if not (np.isfinite(boxes).all() and np.isfinite(features).all()):
        raise ValueError("not all numbers are finite")
    scale = np.array([width, height] * 2, dtype=np.float64)
    return Regions(
        features.reshape(count, dim),
        (boxes.reshape(count, 4) / scale).astype(np.float32),
    )


def _floats(cell: bytes) -> NDArray[np.float32]:
    try:
        return np.frombuffer(base64.b64decode(cell, validate=True), "<f4").astype(np.float32)
    except binascii.Error as error:
        raise ValueError(f"base64: {error}") from error


def _index(path: Path) -> _RowOffsets:
    """Return the index of the table: the one beside it, or a new one, kept if the folder is
    writable."""
    status = path.stat()
    cache = path.with_name(f".{path.name}.index.npz")
    stamp = np.array([FORMAT, status.st_size, status.st_mtime_ns], dtype=np.int64)
    index = _read_index(cache, stamp)
    if index is None:
        index = _index_table(path)
        arrays: dict[str, Any] = {
            "stamp": stamp,
            "ids": np.array(index.ids),
            "offsets": index.offsets,
        }
        try:
            with replacing(cache) as temporary, temporary.open("wb") as handle:
                np.savez(handle, digest=np.array(index.digest), dim=np.array(index.dim), **arrays)
        except BocError:
            return index  # read-only folder: the next use scans again
    return index


def _read_index(path: Path, stamp: NDArray[np.int64]) -> _RowOffsets | None:
    """Return the kept index, or None if it is missing, damaged, or outdated."""
    try:
        arrays = read_archive(path)
        if not np.array_equal(arrays["stamp"], stamp):
            return None
        return _RowOffsets(
            arrays["ids"].tolist(),
            arrays["offsets"],
            str(arrays["digest"]),
            int(arrays["dim"]),
        )
    except DAMAGE:
        return None


def _index_table(path: Path) -> _RowOffsets:
    """One pass over the table, row by row. EncoderError if it is no table of regions."""
    digest = hashlib.sha256()
    ids = []
    offsets = []
    at = 0
    widths: Counter[int] = Counter()
    with path.open("rb") as handle:
        while line := _line(handle, path):
            digest.update(line)
            name, tab, _ = line.partition(b"\t")
            if tab and name not in HEADERS and len(name) <= LONGEST_ID:
                ids.append(name.decode("utf-8", "replace"))
                offsets.append(at)
                if widths.total() < VOTERS:
                    widths.update(_width_of(line, ids[-1]))
            at += len(line)
    if not widths:
        raise EncoderError(
            f"{path}: no table of regions: no whole row of the columns image_id, image_w, "
            "image_h, num_boxes, boxes, "
            "features; give a bottom-up-attention .tsv",
        )
    return _RowOffsets(
        ids,
        np.array(offsets, dtype=np.int64),
        digest.hexdigest(),
        widths.most_common(1)[0][0],
    )


def _line(handle: BinaryIO, path: Path) -> bytes:
    line = handle.readline(LONGEST)
    if len(line) == LONGEST:
        raise EncoderError(
            f"{path}: a line longer than {LONGEST:,} bytes; give a bottom-up-attention .tsv",
        )
    return line


def _width_of(line: bytes, name: str) -> list[int]:
    """Return the width of the features of a row; empty if it has none, or is damaged."""
    try:
        row = _parse_row(line, name)
    except ValueError:
        return []
    return [row.features.shape[1]] if len(row) else []
