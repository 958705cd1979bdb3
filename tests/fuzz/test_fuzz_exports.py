"""Forged exported indexes and stored facts of files: every value may be another, of another type,
or missing.

What ``boc index`` makes of an exported index, and ``sync`` of an index, is right, or refused as a
BocError. BOC_FORGED sets how many exports are tried (default 100).
"""

import json
import random
import shutil
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from boc import Searcher, build_index
from boc.evaluate.verify import verify
from boc.inputs.features import FeatureFile
from boc.manage.copy import copy_index
from tests.fuzz.mutations import FORGED, verdict
from tests.fuzz.test_fuzz_indexes import ODD

NUMBERS = (-1, 0, 1, 2, 127, 128, 2**31 - 1, -(2**31))
REALS = (0.0, -1.0, 1.0, 1e-30, 1e30, -1e38, float("nan"), float("inf"))
TEXTS = ("", "x", "\0", "../x", "{}", "[]", "null", '{"size": []}', '{"size": 1e999}', "é" * 70_000)


def arrays(file: h5py.File) -> list[str]:
    found: list[str] = []
    file.visititems(
        lambda name, entry: found.append(name) if isinstance(entry, h5py.Dataset) else None,
    )
    return found


def forge_header(file: h5py.File, rng: random.Random) -> str:
    """Change an entry of the header, or of the manifest in it."""
    name = rng.choice([*file.attrs, *(["index"] * 3 if "index" in file.attrs else [])])
    if name != "index" or rng.random() < 0.1:
        value = rng.choice(["", "x", "float16", "[]", '{"size": "text"}', -1, 0, 1, 10**12, 1.5])
        file.attrs[name] = value
        return f"{name} = {value!r}"
    tree = json.loads(file.attrs["index"])
    node = tree
    keys = []
    while isinstance(node, (dict, list)) and node:
        above = node
        keys.append(rng.choice(list(node) if isinstance(node, dict) else range(len(node))))
        node = node[keys[-1]]
        if rng.random() < 0.3:
            break
    above[keys[-1]] = rng.choice(ODD)
    file.attrs["index"] = json.dumps(tree)
    return f"index/{'/'.join(map(str, keys))} = {above[keys[-1]]!r}"


def forge_array(file: h5py.File, rng: random.Random) -> str:
    """Change a value of an array, its length or its type, or remove it."""
    name = rng.choice(arrays(file))
    data = file[name]
    what = rng.choice(["value", "value", "value", "value", "length", "type", "gone"])
    if what == "value" and data.size:
        at = tuple(rng.randrange(size) for size in data.shape)
        kind = data.dtype.kind
        value: Any = rng.choice(TEXTS if kind == "O" else REALS if kind == "f" else NUMBERS)
        if kind in "iu":
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
    file.create_dataset(name, data=values, dtype=text)
    return f"{what} of {name}"


def use(path: Path, at: str) -> None:
    """Index a forged export, and ask the index."""
    with FeatureFile(path) as file:
        file.failures  # noqa: B018 - it reads
    build_index("forged", path, at=at, replace=True)
    searcher = Searcher.open("forged", at)
    assert sum(searcher.index.manifest.items.values()) > 0
    for item in list(searcher.index.items())[:3]:
        searcher.search_vectors(searcher.embeddings(item.id), k=5)
    verify(searcher.index)


@pytest.fixture(scope="module")
def exports(library: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("exports")
    (folder / "table.csv").write_text("id,year:integer,tag\n000.png,2019,a|b\n")
    found = []
    for name, options in {
        "plain": {},
        "sets": {"concepts": "int8"},
        "code": {"code": "dictionary:1/4"},
    }.items():
        build_index(
            name,
            library / "photos.h5",
            at=f"file:{folder}",
            metadata=folder / "table.csv",
            **options,
        )
        found.append(folder / f"{name}.h5")
        copy_index(name, at=f"file:{folder}", to=found[-1])
    return found


@pytest.mark.slow
def test_a_forged_export_is_refused_or_answered(exports: list[Path], tmp_path: Path) -> None:
    verdicts: dict[str, str] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(FORGED):
            rng = random.Random(number)
            path = tmp_path / "forged.h5"
            shutil.copy(rng.choice(exports), path)
            with h5py.File(path, "r+") as file:
                told = (forge_header if rng.random() < 0.4 else forge_array)(file, rng)
            verdicts[f"{number}: {told}"] = verdict(
                partial(use, path, f"file:{tmp_path / 'at'}"),
                "answered",
            )
    wrong = {
        what: became for what, became in verdicts.items() if became not in ("refused", "answered")
    }
    assert not wrong, "\n".join(map(str, wrong.items()))
    assert set(verdicts.values()) == {"refused", "answered"}
