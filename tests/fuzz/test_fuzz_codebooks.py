"""Forged codebooks: every value may be another, of another type, packed, nested or missing.

One is refused as a BocError, or makes a code. BOC_FORGED sets how many are tried (default 100).
"""

import io
import json
import random
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from boc.clustering.codebook import Codebook
from boc.codecs import parse_code
from boc.labels import Label, pack_labels
from boc.types import MODALITIES, Embeddings, Identity, Ragged
from tests.fuzz.mutations import FORGED, NUMBERS, REALS, damaged, verdict
from tests.fuzz.test_fuzz_indexes import ODD

DIM = 4
ROWS = 6


def kinds(rng: np.random.Generator) -> dict[str, Codebook]:
    def rows(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    labels = pack_labels([Label(("dog",), ())] * ROWS)
    plain = partial(
        Codebook,
        rows(ROWS, DIM),
        Identity("tern:x", "ab", DIM),
        ("cd",),
        {"spherical": True},
        9,
    )
    return {
        "soft": plain(
            labels=labels,
            means=rows(2, DIM),
            axes=rows(DIM, DIM),
        ),
        "hard": plain(),
        "words": plain(tuple("abcdef"), origin=rows(DIM)),
        "learned": plain(
            tuple("abcdef"),
            labels,
            thresholds=rows(2, 2, ROWS),
        ),
    }


def forge(arrays: dict[str, NDArray[Any]], rng: random.Random) -> str:
    """Change one of the arrays, or an entry of the JSON in one."""
    name = rng.choice(list(arrays))
    array = arrays[name]
    if name in ("about", "labels") and rng.random() < 0.8:
        tree = json.loads(array.tobytes())
        key = rng.choice(list(tree) if isinstance(tree, dict) else range(len(tree)))
        node = tree[key]
        inside = isinstance(node, dict) and node and rng.random() < 0.5
        owner, key = (node, rng.choice(list(node))) if inside else (tree, key)
        owner[key] = rng.choice(ODD)
        arrays[name] = np.frombuffer(
            json.dumps(tree).encode(),
            np.uint8,
        )
        return f"{name}/{key} = {str(owner[key])[:20]}"
    what = rng.choice(["value", "value", "value", "length", "type", "gone"])
    if what == "gone":
        del arrays[name]
    elif what == "type":
        arrays[name] = array.astype(
            rng.choice(["f2", "f8", "i8", "U3"] if array.dtype.kind != "U" else ["S3", "U9"]),
        )
    elif what == "length":
        arrays[name] = (
            array[: len(array) // 2] if rng.random() < 0.5 else np.concatenate([array, array[:1]])
        )
    elif array.dtype.kind == "f":
        arrays[name] = array.copy()
        arrays[name].flat[rng.randrange(array.size)] = rng.choice(REALS)
    elif array.dtype.kind == "u":
        arrays[name] = array.copy()
        arrays[name].flat[rng.randrange(array.size)] = np.array(rng.choice(NUMBERS)).astype(
            np.uint8,
        )
    return f"{what} of {name}"


def save(path: Path, arrays: dict[str, NDArray[Any]], rng: random.Random) -> None:
    """Write the archive; a few are packed, or have a header of another shape."""
    packing = zipfile.ZIP_DEFLATED if rng.random() < 0.05 else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", packing) as file:
        for name, array in arrays.items():
            data = io.BytesIO()
            np.save(data, array, allow_pickle=False)
            lying = rng.random() < 0.05
            whole = (
                data.getvalue().replace(
                    b"(6, ",
                    b"(66666, ",
                )
                if lying
                else data.getvalue()
            )
            file.writestr(f"{name}.npy", whole)


def use(path: Path, code: str) -> None:
    book = parse_code(f"{code}(codebook='{path}')")
    vectors = np.eye(DIM, dtype=np.float32)
    sets = Ragged(vectors, np.arange(DIM + 1))
    samples = [
        Embeddings(
            modality,
            vectors,
            sets,
            words=[["dog"]] * DIM,
        )
        for modality in MODALITIES
    ]
    codec = book.codec(DIM).fit(*samples)
    for sample in samples:
        assert (
            codec.encode_documents(sample).shape[1]
            == codec.encode_queries(sample).shape[1]
            == codec.n_terms
        )


@pytest.mark.slow
def test_a_forged_codebook_is_refused_or_makes_a_code(tmp_path: Path):
    verdicts = {}
    for number in range(FORGED):
        rng = random.Random(number)
        code = rng.choice(["soft", "hard", "words", "learned"])
        kinds(np.random.default_rng(number))[code].save(tmp_path / "book.npz")
        with np.load(tmp_path / "book.npz") as stored:
            arrays = dict(stored)
        told = forge(arrays, rng)
        save(tmp_path / "book.npz", arrays, rng)
        if rng.random() < 0.1:
            (tmp_path / "book.npz").write_bytes(
                damaged(
                    (tmp_path / "book.npz").read_bytes(),
                    rng,
                ),
            )
        verdicts[f"{number}: {code}, {told}"] = verdict(
            partial(use, tmp_path / "book.npz", code),
            "made",
        )
    wrong = {what: became for what, became in verdicts.items() if became not in ("refused", "made")}
    assert not wrong, "\n".join(map(str, wrong.items()))
    assert set(verdicts.values()) == {"refused", "made"}
