"""How sound data are damaged."""

import os
import traceback
from collections.abc import Callable
from random import Random
from typing import Any

from hypothesis import strategies as st

from boc.errors import BocError

LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
JSON = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
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
    places = st.integers(0, max(0, min(len(sound), 400) - 1)) | st.integers(
        0,
        max(0, len(sound) - 1),
    )
    edit = st.tuples(places, st.integers(0, 4), st.binary(max_size=4))
    whole = st.lists(edit, max_size=6).map(lambda edits: _edited(sound, edits))
    return whole | st.tuples(whole, places).map(lambda given: given[0][: given[1]])


def damaged(sound: bytes, chance: Random) -> bytes:
    """One of ``damages``, by a generator: thousands of times as fast."""

    def place() -> int:
        return chance.randrange(min(len(sound), 400) if chance.random() < 0.5 else len(sound))

    news = [chance.randbytes(chance.randrange(5)) for _ in range(chance.randint(1, 4))]
    moving = chance.random() < 0.3  # else what follows stays where it is
    data = _edited(
        sound,
        [(place(), chance.randrange(5) if moving else len(new), new) for new in news],
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
