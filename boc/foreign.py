"""Reads JSON and arrays that anybody may have written: nesting, names and sizes are bounded before they cost memory."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def parse_json(text: str | bytes) -> Any:
    """Parse JSON as ``json.loads`` does. ValueError for other text, and for what is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_arrays(path: Path, names: Collection[str]) -> dict[str, NDArray[Any]]:
    """Read an uncompressed ``.npz`` archive of arrays, some of ``names``.

    ValueError for other names, one name twice, pickles, and an archive that claims to hold more bytes than it has:
    compressed zeros would fill the memory. What else it raises for damage: OSError, EOFError, LookupError,
    MemoryError, NotImplementedError, zipfile.BadZipFile.
    """
    with path.open("rb") as handle, zipfile.ZipFile(handle) as archive:
        entries = archive.infolist()
        known = {entry.filename.removesuffix(".npy"): entry for entry in entries}
        if len(known) < len(entries) or not known.keys() <= set(names):
            raise ValueError("arrays of other names")
        if sum(entry.file_size for entry in entries) > os.fstat(handle.fileno()).st_size:
            raise ValueError("larger than its file")
        arrays = {}
        for name, entry in known.items():
            with archive.open(entry) as member:
                arrays[name] = np.lib.format.read_array(member, allow_pickle=False)
        return arrays
