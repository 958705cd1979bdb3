"""Regions from published bottom-up-attention features (Anderson et al., CVPR 2018), in two layouts.

``files:DIR`` follows the authors of TERN and TERAN, with one pair of files per picture: features in
``cocobu_att/ID.npz`` or ``bu_att/ID.npz`` (array ``feat``), or as plain ``.npy``; boxes in
``cocobu_box/ID.npy`` or ``bu_box/ID.npy``, in pixels of the upright picture. ID is the picture's
name, or its COCO number. Flickr30k pictures are numbered by their position in the file named by
``files:DIR?index=dataset_flickr30k.json``.

``scan:DIR`` reads the arrays of SCAN (Lee et al., ECCV 2018), ``NAME_ims.npy`` in one folder. The
source of the pictures must be an array ``NAME_ims.npy``. The arrays contain no boxes, which VSRN
does not need, so each box covers the whole picture.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from boc.atomic_files import open_whole, text_sha256
from boc.errors import EncoderError, ImageError, SourceError
from boc.foreign import DAMAGE, PACKED, read_archive, read_json, read_npy
from boc.inputs.images import image_size
from boc.inputs.scan_arrays import ARRAY, rows_of
from boc.types import Identity, ImageRef, Regions
from boc.vectors import Array

from ..networks.foreign import reading_model
from ._shared import parse_spec, write_spec


def known_as(image_id: str) -> list[str]:
    """Return the possible names of a picture's files: the id without folder and suffix and, for a
    COCO name (``COCO_val2014_000000391895``, or only its twelve digits), its number, ``391895``."""
    stem = PurePosixPath(image_id).stem
    number = re.fullmatch(r"(?:COCO_[a-z]+[0-9]{4}_)?([0-9]{12})", stem)
    if number is None:
        return [stem]
    return [stem, str(int(number[1]))]


def karpathy_places(path: Path) -> dict[str, str]:
    """Return the position, counted from 0, of each file name in the ``images`` list of a Karpathy
    file, such as ``dataset_flickr30k.json``. The authors of TERAN number the Flickr30k features by
    this position. Raises EncoderError for other files."""
    advice = "give Karpathy's dataset_flickr30k.json"
    with reading_model(
        lambda reason: f"{path}: not a list of images with file names ({reason}); {advice}",
    ):
        images = read_json(path)["images"]
        return {str(image["filename"]): str(place) for place, image in enumerate(images)}


@dataclass(frozen=True)
class PrecomputedOptions:
    """Options of the region source. ``index`` is a Karpathy file whose image positions number the
    features."""

    index: str = ""


def load_files(argument: str) -> FileRegions:
    """Return the source for the folder ``argument``. Raises EncoderError if the folder has neither
    layout."""
    name, options = parse_spec(argument, PrecomputedOptions)
    return FileRegions(Path(name), options.index)


class FileRegions:
    """Region source that reads the files named after a picture's id without its suffix. The order
    and the values of the regions are kept.

    An id with folders is looked up first in the same folders, then by file name only, and then by
    COCO number, as in the authors' files. With an ``index``, files are named only by the position
    of the picture in the index.
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
            raise EncoderError(
                f"{self._features}: no .npz or .npy files; put one file per picture there",
            )
        width = _read_array(self._features / names[0]).shape[-1]
        listing = "\n".join(f"{name} {(self._features / name).stat().st_size}" for name in names)
        self._index = index
        self._places: dict[str, str] = {}
        options = PrecomputedOptions()
        if index:
            self._places = karpathy_places(Path(index))
            listing += "".join(f"\n{name} {place}" for name, place in self._places.items())
            options = PrecomputedOptions(str(Path(index).resolve()))
        spec = write_spec("files", str(folder.resolve()), options)
        self.identity = Identity(spec, text_sha256(listing), int(width))

    def __call__(self, image: ImageRef) -> Regions:
        path = self._file(PurePosixPath(image.id))
        features = _read_array(path)
        boxes = _read_array(self._boxes / path.relative_to(self._features).with_suffix(".npy"))
        count = boxes.size / 4
        if features.shape != (count, self.identity.dim):
            raise ImageError(
                f"{path}: features {features.shape} and boxes {boxes.shape} do not match",
            )
        try:
            # Reading the size of the upright picture does not decode it.
            size = image_size(image.path)
        except ImageError as error:
            raise ImageError(f"{error} (its size is needed for the boxes)") from error
        # Each box consists of four numbers, in pixels of the picture.
        fractions = boxes.reshape(-1, 4) / np.array(size * 2, dtype=np.float64)
        return Regions(features.astype(np.float32), fractions.astype(np.float32))

    def _file(self, name: PurePosixPath) -> Path:
        """Return the path of a picture's features, which may not exist."""
        names = [str(name.with_suffix("")), *known_as(str(name))]
        if self._index:
            if name.name not in self._places:
                raise ImageError(
                    f"{name}: {self._index} does not list this picture; use the index of its data "
                    "set",
                )
            names = [self._places[name.name]]
        for stem in names:
            for suffix in (".npz", ".npy"):
                place = self._features / f"{stem}{suffix}"
                if place.exists():
                    return place
        return place


def _read_array(path: Path) -> Array:
    try:
        if path.suffix == ".npz":
            return read_archive(path, packed=PACKED)["feat"]
        with open_whole(path) as file:
            return read_npy(file.read())
    except FileNotFoundError:
        raise ImageError(
            f"{path}: no region features for this picture; extract them, or exclude the picture",
        ) from None
    except DAMAGE as error:
        raise ImageError(
            f"{path}: damaged region features ({error}); extract them again",
        ) from error


class ScanRegions:
    """Region source that reads the array row of a picture with the path ``NAME_ims.npy#ROW``. The
    order and the values of the regions are kept. Raises EncoderError if the folder contains no
    arrays."""

    boxes = False

    def __init__(self, argument: str) -> None:
        folder = Path(argument)
        arrays = sorted(folder.glob(f"*{ARRAY}"))
        if not arrays:
            raise EncoderError(
                f"{folder}: no SCAN arrays (testall_ims.npy); name the folder that contains the "
                "unpacked arrays",
            )
        try:
            rows_of(arrays[0])
        except SourceError as error:
            raise EncoderError(str(error)) from error
        listing = "\n".join(f"{path.name} {path.stat().st_size}" for path in arrays)
        width = np.load(arrays[0], mmap_mode="r", allow_pickle=False).shape[-1]
        self._folder = folder.resolve()
        self.identity = Identity(f"scan:{self._folder}", text_sha256(listing), int(width))

    def __call__(self, image: ImageRef) -> Regions:
        name, _, row = image.path.name.rpartition("#")
        if not row.isdecimal() or not name.endswith(ARRAY):
            raise ImageError(
                f"{image.path}: not a picture in a SCAN array; use an array ({ARRAY}) as the "
                "source",
            )
        path = self._folder / name
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
            features = array[int(row)].astype(np.float32)
        except DAMAGE as error:
            raise ImageError(
                f"{path}: no regions in row {row} ({error}); use the folder of this array",
            ) from error
        if features.ndim != 2 or features.shape[1] != self.identity.dim:
            raise ImageError(
                f"{path}: row {row} has the shape {features.shape}; regions are "
                f"{self.identity.dim} wide",
            )
        return Regions(features, np.array([[0, 0, 1, 1]], np.float32).repeat(len(features), axis=0))
