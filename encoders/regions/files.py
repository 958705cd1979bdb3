"""Precomputed regions: bottom-up-attention features, one pair of files per picture.

Layouts of the authors of TERN and TERAN: features in ``cocobu_att/ID.npz`` or ``bu_att/ID.npz`` (array ``feat``), or
as plain ``.npy``; boxes in ``cocobu_box/ID.npy`` or ``bu_box/ID.npy``, in pixels of the upright picture. ID is the
name of the picture, or its number in COCO. Those of Flickr30k are numbered by their place in a file, which
``files:DIR?index=dataset_flickr30k.json`` names.
"""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boc.errors import EncoderError, ImageError
from boc.inputs.images import image_size
from boc.types import Identity, ImageRef, Regions

from . import _options
from ._names import karpathy_places, known_as

ARGUMENT = "DIR"
EXTRA = "encoders"
FOLDERS = (("cocobu_att", "cocobu_box"), ("bu_att", "bu_box"))


@dataclass(frozen=True)
class Options:
    """``index``: a Karpathy file, whose images number the features by their place."""

    index: str = ""


def load(argument: str) -> FileRegions:
    """The source over the folder ``argument``. EncoderError if it has neither layout."""
    name, options = _options.parse(argument, Options)
    return FileRegions(Path(name), Path(options.index) if options.index else None)


class FileRegions:
    """Reads the features of the picture whose id, without its suffix, names the files. Order and values are kept.

    An id with folders is looked up in the same folders first, then by its last part alone, then by its number in COCO,
    as the authors store it. With an ``index`` only its place there names the files.
    """

    def __init__(self, folder: Path, index: Path | None = None) -> None:
        pairs = [(folder / a, folder / b) for a, b in FOLDERS if (folder / a).is_dir() and (folder / b).is_dir()]
        if not pairs:
            raise EncoderError(f"{folder}: no bottom-up features (cocobu_att with cocobu_box, or bu_att with bu_box)")
        self._features, self._boxes = pairs[0]
        paths = (p for p in self._features.rglob("*.np[yz]") if p.is_file())
        names = sorted(p.relative_to(self._features).as_posix() for p in paths)
        if not names:
            raise EncoderError(f"{self._features}: no .npz or .npy files; put one a picture there")
        width = _read(self._features / names[0]).shape[-1]
        listing = "\n".join(f"{name} {(self._features / name).stat().st_size}" for name in names)
        self._index = index
        self._places = None if index is None else karpathy_places(index)
        if self._places is not None:
            listing += "".join(f"\n{name} {place}" for name, place in self._places.items())
        digest = hashlib.sha256(listing.encode()).hexdigest()
        spec = _options.spec("files", str(folder.resolve()), Options(str(index.resolve()) if index else ""))
        self.identity = Identity(spec, digest, int(width))

    def __call__(self, image: ImageRef) -> Regions:
        path = self._file(PurePosixPath(image.id))
        features = _read(path)
        boxes = _read(self._boxes / path.relative_to(self._features).with_suffix(".npy"))
        if features.ndim != 2 or features.shape[1] != self.identity.dim or boxes.size != 4 * len(features):
            raise ImageError(f"{path}: features {features.shape} and boxes {boxes.shape} do not belong together")
        scale = np.array(_size(image.path) * 2, dtype=np.float64)
        return Regions(features.astype(np.float32), (boxes.reshape(-1, 4) / scale).astype(np.float32))

    def _file(self, name: PurePosixPath) -> Path:
        """The path of the features of the picture with this id, whether it exists or not."""
        names = [str(name.with_suffix("")), *known_as(str(name))]
        if self._places is not None:
            if name.name not in self._places:
                raise ImageError(f"{name}: {self._index} lists no such picture; give the file of this data set")
            names = [self._places[name.name]]
        places = [self._features / f"{name}{suffix}" for name in names for suffix in (".npz", ".npy")]
        return next((place for place in places if place.exists()), places[-1])


def _read(path: Path) -> NDArray[Any]:
    try:
        with path.open("rb") as handle:
            found: Any = np.load(handle, allow_pickle=False)
            array: NDArray[Any] = found["feat"] if path.suffix == ".npz" else found
    except FileNotFoundError:
        raise ImageError(
            f"{path}: no region features for this picture; extract them or leave it out with --ids"
        ) from None
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise ImageError(f"{path}: damaged region features ({error}); extract them again") from error
    return array


def _size(path: Path) -> tuple[int, int]:
    """Width and height of the upright picture by its orientation tag, without decoding it."""
    try:
        return image_size(path)
    except ImageError as error:
        raise ImageError(f"{error} (boxes are in its pixels)") from error
