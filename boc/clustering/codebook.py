"""Define codebooks of concepts and their file format.

A codebook file is an ``.npz`` archive without pickles. It contains ``centroids`` float32 (p, d);
``words`` (p,), an array of strings, if the centroids represent words; the arrays ``labels``,
``origin``, ``thresholds``, ``means`` and ``axes`` of a ``Codebook``, if present; and ``about``,
which contains the other fields as JSON in UTF-8.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from boc import __version__
from boc.atomic_files import replacing
from boc.clustering.kmeans import center, nearest
from boc.errors import BocError, ManifestError, check_system
from boc.foreign import DAMAGE, are_moderate, parse_json, read_archive, typed
from boc.labels import unpack_labels
from boc.types import Identity, Modality
from boc.vectors import Array, Bytes, Floats, Ints, unit_rows

BEGINS = (b"PK\x03\x04", b"about.npy")  # byte sequences by which codebook files are recognised
FORMAT = 2
MAKE = "build one with <boc build-codebook>"
ARRAYS = ("centroids", "words", "labels", "origin", "thresholds", "means", "axes")


@dataclass(frozen=True)
class Codebook:
    """Centroids of concepts, with a record of their origin.

    ``centroids`` is float32 (p, d). ``identity`` identifies the encoder. ``sources`` contains one
    digest per feature file, computed from its list of items. ``options`` and ``concepts`` are the
    options with which the codebook was built and the number of vectors used. ``words`` contains the
    words of the centroids if they represent words. ``labels`` uint8 contains the labels of the
    centroids, packed by ``boc.labels``. ``origin`` float32 (d,) is the mean caption; the vectors of
    a vocabulary are differences from the mean caption. ``thresholds`` float32 (2, 2, p) contains
    the thresholds of learned terms for each modality and kind of row. Before concepts are compared
    with centroids, ``means`` float32 (2, d), the mean concepts of pictures and of sentences, are
    subtracted from the concepts, and the result is multiplied by the matrix ``axes`` float32 (d,
    d)."""

    centroids: Floats
    identity: Identity
    sources: tuple[str, ...]
    options: dict[str, Any]
    concepts: int
    words: tuple[str, ...] | None = None
    labels: Bytes | None = None
    versions: dict[str, str] = field(
        default_factory=lambda: {"boc": __version__, "numpy": np.__version__},
    )
    origin: Floats | None = None
    thresholds: Floats | None = None
    means: Floats | None = None
    axes: Floats | None = None

    def __len__(self) -> int:
        return len(self.centroids)

    @property
    def kind(self) -> str:
        """Return the kind of terms: "concepts", "words" (a vocabulary) or "learned"."""
        if self.origin is not None:
            return "words"
        return "concepts" if self.thresholds is None else "learned"

    @property
    def spherical(self) -> bool:
        """Return whether concepts must be scaled to unit length before they are compared with
        centroids."""
        return bool(self.options.get("spherical", False))

    def assign(
        self,
        concepts: Floats,
        modality: Modality,
    ) -> tuple[Ints, Floats]:
        """Return the nearest centroid (n,) and the squared distance (n,) of each concept, after the
        transformation that the codebook prescribes."""
        rows = center(
            concepts,
            modality,
            self.means,
            self.axes,
        )
        if self.spherical:
            rows = unit_rows(rows)
        columns, squared = nearest(rows, self.centroids, 1)
        return columns[:, 0], squared[:, 0]

    def save(self, path: Path) -> None:
        """Write the codebook to a file atomically. An existing file is replaced."""
        about = {key: value for key, value in asdict(self).items() if key not in ARRAYS}
        text = json.dumps({"kind": "codebook", "format": FORMAT, **about}, sort_keys=True)
        arrays: dict[str, Array] = {
            "about": np.frombuffer(text.encode(), np.uint8),
            "centroids": np.asarray(self.centroids, np.float32),
        }
        for name in ARRAYS[2:]:
            if getattr(self, name) is not None:
                arrays[name] = getattr(self, name)
        if self.words is not None:
            arrays["words"] = np.array(self.words, dtype=np.str_)
        with replacing(path) as temporary, temporary.open("wb") as handle:
            # The type checker confuses the arrays with the parameter allow_pickle.
            np.savez(handle, **arrays)  # type: ignore[arg-type]

    @classmethod
    def load(cls, path: Path | str) -> Codebook:
        """Read a file written by ``save``. Raises BocError if the file does not exist, is not a
        codebook, is damaged, or has a newer format."""
        try:
            arrays = read_archive(Path(path), ("about", *ARRAYS))
            about = parse_json(arrays.pop("about").tobytes())
            form = about.pop("format")
            if about.pop("kind") != "codebook" or not isinstance(form, int):
                raise ValueError("of another kind")
        except FileNotFoundError:
            raise BocError(
                f"{path}: codebook file does not exist",
                MAKE,
            ) from None
        except DAMAGE as error:
            check_system(path, error)
            raise BocError(
                f"{path}: not a codebook of boc, or damaged",
                MAKE,
            ) from error
        if form > FORMAT:
            raise BocError(
                f"{path}: codebook format {form}, but this version of boc supports formats up to "
                f"{FORMAT}; upgrade boc",
            )
        # Format 1 contains an obsolete entry.
        about.pop("spread", None)
        words = {"words": arrays.pop("words").tolist()} if "words" in arrays else {}
        try:
            codebook = typed({**about, **arrays, **words}, cls)
            codebook._check_arrays()
        except (ValueError, ArithmeticError, ManifestError) as error:
            raise BocError(
                f"{path}: codebook contains invalid entries ({error})",
                MAKE,
            ) from error
        return codebook

    def _check_arrays(self) -> None:
        """Raise ValueError if an array does not match the number of centroids and the dimension of
        the encoder."""
        rows = len(self)
        dim = self.identity.dim
        shapes = {
            "centroids": (max(rows, 1), dim),
            "origin": (dim,),
            "thresholds": (2, 2, rows),
            "means": (2, dim),
            "axes": (dim, dim),
        }
        for name, shape in shapes.items():
            array = getattr(self, name)
            if array is None:
                continue
            if array.dtype != np.float32 or array.shape != shape or not are_moderate(array):
                raise ValueError(
                    f"{name} must be float32 {shape} with moderate values, got {array.dtype} "
                    f"{array.shape}",
                )
        if self.axes is not None and self.means is None:
            raise ValueError("axes need means")
        if self.words is not None and len(self.words) != rows:
            raise ValueError(f"{len(self.words)} words for {rows} centroids")
        if self.labels is not None and len(unpack_labels(self.labels)) != rows:
            raise ValueError(f"the number of labels is not {rows}")

    def check(self, identity: Identity) -> None:
        """Raise BocError if the codebook was not built for the concept space of the encoder
        ``identity``.

        Variants of an encoder, such as ``tern:FOLDER`` and ``tern:FOLDER?alone``, share a concept
        space.
        """
        if (weights(self.identity), self.identity.dim) != (weights(identity), identity.dim):
            raise BocError(
                f"the codebook is for {self.identity.spec}, but the concepts are from "
                f"{identity.spec}, which has different weights",
                "build a codebook for this encoder with <boc build-codebook>",
            )


def weights(identity: Identity) -> str:
    """Return the digest of the weights, which all variants of an encoder share. The digest of a
    variant has the form VARIANT:DIGEST."""
    return identity.digest.rpartition(":")[2]


def variant(identity: Identity) -> str:
    """Return the name of the variant of an encoder, or "" for the encoder itself."""
    return identity.digest.rpartition(":")[0]
