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
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boc.atomic_files import open_whole, replacing
from boc.errors import BocError, EncoderError, ImageError, SourceError
from boc.foreign import DAMAGE, PACKED, read_archive, read_json, read_npy
from boc.inputs.images import image_size
from boc.inputs.scan_arrays import ARRAY, rows_of
from boc.types import Identity, ImageRef, Regions

from ..networks.foreign import reading_model
from ._shared import Floats, parse_spec, write_spec


def known_as(image_id: str) -> list[str]:
    """Return the id of a picture without folder and suffix; then, if it is a name of COCO
    (``COCO_val2014_000000391895``, or those twelve digits alone), its number, ``391895``."""
    stem = PurePosixPath(image_id).stem
    number = re.fullmatch(r"(?:COCO_[a-z]+[0-9]{4}_)?([0-9]{12})", stem)
    if number is None:
        return [stem]
    return [stem, str(int(number[1]))]


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


@dataclass(frozen=True)
class PrecomputedOptions:
    """``index``: a Karpathy file, whose images number the features by their place."""

    index: str = ""


def load_files(argument: str) -> FileRegions:
    """Return the source over the folder ``argument``. EncoderError if it has neither layout."""
    name, options = parse_spec(argument, PrecomputedOptions)
    return FileRegions(Path(name), options.index)


class FileRegions:
    """Reads the features of the picture whose id, without its suffix, names the files. Order and
    values are kept.

    An id with folders is looked up in the same folders first, then by its last part alone, then by
    its number in COCO, as the authors store it. With an ``index`` only its place there names the
    files.
    """

    def __init__(self, folder: Path, index: str) -> None:
        for layout in ("cocobu", "bu"):
            self._features = folder / f"{layout}_att"
            self._boxes = folder / f"{layout}_box"
            if self._features.is_dir() and self._boxes.is_dir():
                break
        else:
            raise EncoderError(
                f"{folder}: no bottom-up features (cocobu_att with cocobu_box, or bu_att with "
                "bu_box)",
            )
        paths = [path for path in self._features.rglob("*.np[yz]") if path.is_file()]
        names = sorted(path.relative_to(self._features).as_posix() for path in paths)
        if not names:
            raise EncoderError(f"{self._features}: no .npz or .npy files; put one a picture there")
        width = _read_array(self._features / names[0]).shape[-1]
        listing = "\n".join(f"{name} {(self._features / name).stat().st_size}" for name in names)
        self._index = index
        self._places: dict[str, str] = {}
        options = PrecomputedOptions()
        if index:
            self._places = karpathy_places(Path(index))
            listing += "".join(f"\n{name} {place}" for name, place in self._places.items())
            options = PrecomputedOptions(str(Path(index).resolve()))
        digest = hashlib.sha256(listing.encode()).hexdigest()
        spec = write_spec("files", str(folder.resolve()), options)
        self.identity = Identity(spec, digest, int(width))

    def __call__(self, image: ImageRef) -> Regions:
        path = self._file(PurePosixPath(image.id))
        features = _read_array(path)
        boxes = _read_array(self._boxes / path.relative_to(self._features).with_suffix(".npy"))
        count = boxes.size / 4
        if features.shape != (count, self.identity.dim):
            raise ImageError(
                f"{path}: features {features.shape} and boxes {boxes.shape} do not belong together",
            )
        try:
            # The upright picture is not decoded.
            size = image_size(image.path)
        except ImageError as error:
            raise ImageError(f"{error} (boxes are in its pixels)") from error
        return _in_fractions(features, boxes, *size)

    def _file(self, name: PurePosixPath) -> Path:
        """Return the path of the features of the picture with this id, whether it exists or not."""
        names = [str(name.with_suffix("")), *known_as(str(name))]
        if self._index:
            if name.name not in self._places:
                raise ImageError(
                    f"{name}: {self._index} lists no such picture; give the file of this data set",
                )
            names = [self._places[name.name]]
        for stem in names:
            for suffix in (".npz", ".npy"):
                place = self._features / f"{stem}{suffix}"
                if place.exists():
                    return place
        return place


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


def _in_fractions(
    features: NDArray[Any],
    boxes: NDArray[Any],
    width: int,
    height: int,
) -> Regions:
    """Return regions whose boxes, four numbers each, are in pixels of a picture of this size."""
    scale = np.array([width, height] * 2, dtype=np.float64)
    fractions = boxes.reshape(-1, 4) / scale
    return Regions(features.astype(np.float32), fractions.astype(np.float32))


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
        digest = hashlib.sha256(listing.encode()).hexdigest()
        width = np.load(arrays[0], mmap_mode="r", allow_pickle=False).shape[-1]
        self._folder = folder.resolve()
        self.identity = Identity(f"scan:{self._folder}", digest, int(width))

    def __call__(self, image: ImageRef) -> Regions:
        name, _, row = image.path.name.rpartition("#")
        if not row.isdecimal() or not name.endswith(ARRAY):
            raise ImageError(
                f"{image.path}: no picture of an array of SCAN; give an array ({ARRAY}) as the "
                "source",
            )
        path = self._folder / name
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
            features = array[int(row)].astype(np.float32)
        except DAMAGE as error:
            raise ImageError(
                f"{path}: no regions in row {row} ({error}); give the folder of this array",
            ) from error
        if features.ndim != 2 or features.shape[1] != self.identity.dim:
            raise ImageError(
                f"{path}: row {row} has the shape {features.shape}; regions are "
                f"{self.identity.dim} wide",
            )
        whole = np.array([[0, 0, 1, 1]], np.float32)
        return Regions(features, whole.repeat(len(features), axis=0))


COLUMNS = {
    6: ("id", "width", "height", "count", "boxes", "features"),
    10: ("id", "height", "width", "", "", "", "", "count", "boxes", "features"),
}
"""The columns of a row by their number."""
# Bytes per row: 100 boxes of 2,048 values take 1.1 MB.
LONGEST = 1 << 26


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
        self._offsets: dict[str, int] = {}
        for name, offset in zip(index.ids, index.offsets.tolist(), strict=True):
            self._offsets.setdefault(name, offset)
        self.identity = Identity(f"tsv:{self._path}", index.digest, index.dim)

    def __call__(self, image: ImageRef) -> Regions:
        names = known_as(image.id)
        name = next((name for name in names if name in self._offsets), None)
        if name is None:
            raise ImageError(
                f"{self._path}: no row for {image.id} (image_id {' or '.join(names)}); "
                "extract its regions, or leave it out",
            )
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


def _parse_row(
    line: bytes,
    name: str,
    dim: int | None = None,
) -> Regions:
    """Parse the regions of a row. ValueError says what is wrong."""
    cells = line.rstrip(b"\r\n").split(b"\t")
    if len(cells) not in COLUMNS:
        raise ValueError(f"{len(cells)} columns, not {' or '.join(map(str, COLUMNS))}")
    row = dict(zip(COLUMNS[len(cells)], cells, strict=True))
    if row["id"] != name.encode():
        raise ValueError(f"the row is of {row['id'][:40]!r}, the table was changed")
    count, width, height = (int(row[key]) for key in ("count", "width", "height"))
    boxes = _floats(row["boxes"])
    features = _floats(row["features"])
    if count < 0 or min(width, height) < 1 or len(boxes) != 4 * count:
        raise ValueError(
            f"{count} boxes on {width} x {height} pixels, but {len(boxes)} numbers for boxes",
        )
    if dim is None:
        dim = len(features) // max(count, 1)
    if len(features) != count * dim:
        raise ValueError(f"{len(features)} numbers for features of {count} boxes, each {dim} wide")
    if not (np.isfinite(boxes).all() and np.isfinite(features).all()):
        raise ValueError("not all numbers are finite")
    return _in_fractions(features.reshape(count, dim), boxes, width, height)


def _floats(cell: bytes) -> Floats:
    try:
        return np.frombuffer(base64.b64decode(cell, validate=True), "<f4").astype(np.float32)
    except binascii.Error as error:
        raise ValueError(f"base64: {error}") from error


def _index(path: Path) -> _RowOffsets:
    """Return the index of the table: the one beside it, or a new one, kept if the folder is
    writable."""
    status = path.stat()
    cache = path.with_name(f".{path.name}.index.npz")
    # The first number is the version of the index.
    stamp = np.array([1, status.st_size, status.st_mtime_ns], dtype=np.int64)
    # A missing or damaged index is made again, as an outdated one.
    with suppress(*DAMAGE):
        arrays = read_archive(cache)
        if np.array_equal(arrays["stamp"], stamp):
            return _RowOffsets(
                arrays["ids"].tolist(),
                arrays["offsets"],
                str(arrays["digest"]),
                int(arrays["dim"]),
            )
    index = _index_table(path)
    # In a read-only folder the next use scans again.
    with suppress(BocError), replacing(cache) as temporary, temporary.open("wb") as handle:
        np.savez(handle, stamp=stamp, **asdict(index))
    return index


def _index_table(path: Path) -> _RowOffsets:
    """One pass over the table, row by row. EncoderError if it is no table of regions."""
    digest = hashlib.sha256()
    ids = []
    offsets = []
    at = 0
    widths: Counter[int] = Counter()
    with path.open("rb") as handle:
        while line := handle.readline(LONGEST):
            if len(line) == LONGEST:
                raise EncoderError(
                    f"{path}: a line longer than {LONGEST:,} bytes; give a bottom-up-attention "
                    ".tsv",
                )
            digest.update(line)
            name, tab, _ = line.partition(b"\t")
            if tab and name not in (b"image_id", b"img_id") and len(name) <= 256:
                ids.append(name.decode("utf-8", "replace"))
                offsets.append(at)
                # The first row may be damaged, so that nine decide the width.
                if widths.total() < 9:
                    with suppress(ValueError):
                        row = _parse_row(line, ids[-1])
                        if len(row):
                            widths[row.features.shape[1]] += 1
            at += len(line)
    if not widths:
        raise EncoderError(
            f"{path}: no table of regions: no whole row of the columns image_id, image_w, "
            "image_h, num_boxes, boxes, "
            "features; give a bottom-up-attention .tsv",
        )
    [(width, _)] = widths.most_common(1)
    return _RowOffsets(
        ids,
        np.array(offsets, np.int64),
        digest.hexdigest(),
        width,
    )
