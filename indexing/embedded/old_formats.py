"""Indexes of the formats 1 to 3, which are read and become segments when they are edited.

``NAME/CURRENT`` names a folder with ``manifest.json``, the arrays of a segment but for the posting lists, learned
arrays in ``codec/*.npy``, and ``files.json``, the size of each file. The posting list of term j is
rows[indptr[j]:indptr[j + 1]] (int32), with its frequencies.
"""

from __future__ import annotations

import json
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from boc.errors import ManifestError
from boc.manifest import Manifest
from boc.types import StoredConcepts

from .npy_files import DAMAGED, load_strings
from .postings import Postings
from .segment import TEXTS, Segment


def load(folder: Path) -> tuple[Manifest, dict[str, NDArray[Any]], Segment]:
    """Manifest, learned arrays and rows. ManifestError naming the file that is missing or damaged."""
    _check_files(folder)
    manifest = Manifest.from_json((folder / "manifest.json").read_text(encoding="utf-8"), where=str(folder))
    found = {path.stem: _mapped(path) for path in folder.glob("*.npy")}
    shape = len(found["modality"]), len(found["indptr"]) - 1
    try:
        lists = sparse.csc_array((found["frequencies"].astype(np.int32), found["rows"], found["indptr"]), shape=shape)
        lists.check_format()
    except ValueError as error:
        raise ManifestError(f"{folder / 'rows.npy'}: damaged ({error}); {DAMAGED}") from error
    concepts = None
    if manifest.concept_dtype is not None:
        concepts = StoredConcepts(found["concepts"], found["concept_offsets"], found.get("concept_scales"))
    texts = {name: load_strings(folder, name) for name in TEXTS if name in found}
    arrays = {path.stem: _mapped(path) for path in sorted((folder / "codec").glob("*.npy"))}
    postings = Postings.from_matrix(lists.tocsr())
    return manifest, arrays, Segment(postings, found["vectors"], concepts, found["modality"], texts)


def _mapped(path: Path) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except (OSError, ValueError, SyntaxError, TokenError) as error:  # the last two of a header that numpy parses
        raise ManifestError(f"{path}: damaged ({error}); {DAMAGED}") from error
    return array


def _check_files(folder: Path) -> None:
    try:
        sizes = json.loads((folder / "files.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ManifestError(f"{folder}: its list of files cannot be read ({error}); {DAMAGED}") from error
    for name, size in sizes.items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != size:
            raise ManifestError(f"{path}: missing or cut short; {DAMAGED}")
