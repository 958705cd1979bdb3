"""How sound data are damaged."""

import os
import traceback
from collections.abc import Callable
from random import Random
from typing import Any

import h5py
import numpy as np
from hypothesis import strategies as st

from boc.errors import BocError

LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
JSON = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(max_size=4),
            inner,
            max_size=3,
        )
    ),
)


FORGED = int(os.environ.get("BOC_FORGED", "100"))
"""How many forged files are tried."""


def verdict(work: Callable[[], object], success: str) -> str:
    """``success``, "refused" if ``work`` raises a BocError of one line, else the error that is none
    of ours."""
    try:
        work()
    except BocError as error:
        return (
            "refused"
            if "\n" not in str(error) and str(error)
            else f"not one line: {str(error)[:300]}"
        )
    except Exception:
        return " | ".join(traceback.format_exc().splitlines()[-7:])
    return success


def damages(sound: bytes) -> st.SearchStrategy[bytes]:
    """Some bytes changed, put in or taken out; mostly at the beginning, where headers are."""
    places = st.integers(
        0,
        max(0, min(len(sound), 400) - 1),
    ) | st.integers(
        0,
        max(0, len(sound) - 1),
    )
    edit = st.tuples(
        places,
        st.integers(0, 4),
        st.binary(max_size=4),
    )
    whole = st.lists(edit, max_size=6).map(lambda edits: _edited(sound, edits))
    return whole | st.tuples(whole, places).map(lambda given: given[0][: given[1]])


def damaged(sound: bytes, chance: Random) -> bytes:
    """One of ``damages``, by a generator: thousands of times as fast."""

    def place():
        return chance.randrange(min(len(sound), 400) if chance.random() < 0.5 else len(sound))

    news = [chance.randbytes(chance.randrange(5)) for _ in range(chance.randint(1, 4))]
    moving = chance.random() < 0.3  # else what follows stays where it is
    data = _edited(
        sound,
        [
            (
                place(),
                chance.randrange(5) if moving else len(new),
                new,
            )
            for new in news
        ],
    )
    return data[: place()] if chance.random() < 0.2 else data


def _edited(sound: bytes, edits: list[tuple[int, int, bytes]]) -> bytes:
    data = bytearray(sound)
    for place, length, new in edits:
        data[place : place + length] = new
    return bytes(data)


def replaced_leaf(data: st.DataObject, tree: Any, value: object) -> Any:
    """``tree`` of JSON with one of its values, at any depth, replaced or removed."""
    if not isinstance(tree, (dict, list)) or not tree or data.draw(st.integers(0, 4)) == 0:
        return value
    keys = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
    key = data.draw(st.sampled_from(keys))
    found = tree.copy()
    if data.draw(st.integers(0, 9)) == 0:
        del found[key]
    else:
        found[key] = replaced_leaf(data, tree[key], value)
    return found


NUMBERS = (
    -1,
    0,
    1,
    2,
    127,
    128,
    2**31 - 1,
    -(2**31),
)
REALS = (
    0.0,
    -1.0,
    1.0,
    1e-30,
    1e30,
    -1e38,
    float("nan"),
    float("inf"),
)
TEXTS = (
    "",
    "x",
    "\0",
    "../x",
    "{}",
    "[]",
    "null",
    '{"size": []}',
    '{"size": 1e999}',
    "é" * 70_000,
)


def arrays(file: h5py.File) -> list[str]:
    found = []
    file.visititems(
        lambda name, entry: found.append(name) if isinstance(entry, h5py.Dataset) else None,
    )
    return found


def forge_header(file: h5py.File, rng: Random) -> str:
    """Change an entry of the header."""
    name = rng.choice([*file.attrs])
    value = rng.choice(
        [
            "",
            "x",
            "float16",
            "[]",
            '{"size": "text"}',
            -1,
            0,
            1,
            10**12,
            1.5,
        ],
    )
    file.attrs[name] = value
    return f"{name} = {value!r}"


def forge_array(file: h5py.File, rng: Random) -> str:
    """Change a value of an array, its length or its type, or remove it."""
    name = rng.choice(arrays(file))
    data = file[name]
    what = rng.choice(["value", "value", "value", "value", "length", "type", "gone"])
    if what == "value" and data.size:
        at = tuple(rng.randrange(size) for size in data.shape)
        kind = data.dtype.kind
        value = rng.choice(TEXTS if kind == "O" else REALS if kind == "f" else NUMBERS)
        if kind in "iuf":
            with np.errstate(over="ignore"):
                value = np.array(value).astype(data.dtype)
        if kind == "O":
            value = value.replace("\0", "\n")
        data[at] = value
        return f"{name}{list(at)} = {str(value)[:20]!r}"
    values = data[:]
    text = h5py.string_dtype() if data.dtype.kind == "O" else None
    del file[name]
    if what == "length":
        values = (
            values[: len(values) // 2]
            if rng.random() < 0.5
            else np.concatenate([values, values[:1]])
        )
    elif what == "type" and text is None:
        values = values.astype(
            rng.choice(["int8", "int64", "float64", "uint16", "complex64", "bool"]),
        )
    elif what == "gone":
        return f"{name} removed"
    file.create_dataset(
        name,
        data=values,
        dtype=text,
    )
    return f"{what} of {name}"
