"""Read values from untrusted bytes, and allocate memory only for data that the bytes actually
contain."""

import io
import json
import math
import os
import re
import zipfile
import zlib
from collections.abc import Collection
from dataclasses import fields, is_dataclass
from pathlib import Path
from tokenize import TokenError
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from boc.atomic_files import open_whole

T = TypeVar("T")

DEEPEST = 32  # maximum nesting depth of lists and objects
LARGEST = 10**15  # maximum magnitude of a learned number, small enough to keep products finite
Count: TypeAlias = Annotated[int, Meta(ge=0, le=LARGEST)]
Number: TypeAlias = Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]
DAMAGE = (
    OSError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    MemoryError,
    EOFError,
    RuntimeError,
    TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
"""Errors that libraries raise when a file of arrays is damaged."""
# Maximum ratio of an untrusted array's size in memory to its size on disk. Real data rarely
# compresses better.
PACKED = 16


def parse_json(text: str | bytes) -> Any:
    """Parse JSON. Raises ValueError if the text is not valid JSON, or is nested so deeply that
    Python would fail on the value later."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("lists and objects are nested too deeply") from None
    level = [value]
    for _ in range(DEEPEST):
        inner = [
            each.values() if isinstance(each, dict) else each
            for each in level
            if isinstance(each, (dict, list))
        ]
        if not inner:
            return value
        level = [each for some in inner for each in some]
    raise ValueError(f"lists and objects are nested more than {DEEPEST} deep")


def read_json(path: Path) -> Any:
    """Read a JSON file. Raises the same errors as ``parse_json`` and ``open_whole``."""
    with open_whole(path) as file:
        return parse_json(file.read())


def typed(value: Any, kind: type[T], *, strict: bool = True) -> T:
    """Convert a JSON value to ``kind``, whose annotations declare the entries. For an invalid type,
    a value out of range, or a missing or unknown entry, raises a ValueError that names the entry,
    the value and the rule. Unless ``strict`` is set, strings are converted to numbers and
    booleans."""
    if is_dataclass(kind) and isinstance(value, dict):
        unknown = value.keys() - {field.name for field in fields(kind)}
        if unknown:
            raise ValueError(f"unknown entries: {', '.join(sorted(unknown))}")
    try:
        return msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError as error:
        rule, _, path = str(error).partition(" - at ")
        rule = rule[0].lower() + rule[1:]
        name = re.search(r"\$\.(\w+)", path)
        if name is None:
            raise ValueError(rule) from None
        raise ValueError(f"{name[1]} is {value[name[1]]!r:.60} ({rule})") from None


def read_npy(data: bytes) -> NDArray[Any]:
    """Return the array in the bytes of an .npy file, as a read-only array. Raises ValueError unless
    the header matches the bytes exactly."""
    file = io.BytesIO(data)
    header = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    version = np.lib.format.read_magic(file)
    if version not in header:
        raise ValueError(f"an array of format {version}")
    shape, by_columns, dtype = header[version](file)
    if (
        dtype.hasobject
        or not dtype.itemsize
        or math.prod(shape) * dtype.itemsize != len(data) - file.tell()
    ):
        raise ValueError(
            f"a header of shape {shape} and type {dtype} does not match {len(data)} bytes",
        )
    flat: NDArray[Any] = np.frombuffer(
        data,
        dtype,
        math.prod(shape),
        file.tell() if math.prod(shape) else 0,
    )
    return flat.reshape(shape, order="F" if by_columns else "C")


def read_archive(
    path: Path,
    names: Collection[str] | None = None,
    packed: int = 1,
) -> dict[str, NDArray[Any]]:
    """Return the arrays in an ``.npz`` file. Raises ValueError for an array that is not in
    ``names``, and for an archive that unpacks to more than ``packed`` times its file size, because
    compressed zeros could fill the memory. Raises ``zipfile`` errors for a damaged archive."""
    with open_whole(path) as whole, zipfile.ZipFile(whole) as archive:
        members = archive.infolist()
        known = {member.filename.removesuffix(".npy"): member for member in members}
        if len(known) < len(members) or not known.keys() <= set(known if names is None else names):
            raise ValueError("unexpected array names")
        most = packed * os.fstat(whole.fileno()).st_size
        forms = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
        if (
            sum(member.file_size for member in members) > most
            or not {each.compress_type for each in members} <= forms
        ):
            raise ValueError(
                f"it unpacks to more than {packed} times its file size, or uses a compression "
                "method that NumPy does not use",
            )
        # Never unpack more than the declared size of a member.
        return {
            name: read_npy(archive.open(each).read(each.file_size)) for name, each in known.items()
        }


def are_moderate(array: NDArray[Any]) -> bool:
    """Return whether all numbers in an array are finite and small enough for multiplication."""
    return array.dtype.kind in "bSU" or float(np.abs(array).max(initial=0)) <= LARGEST
