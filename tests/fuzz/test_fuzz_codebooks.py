"""Forged codebooks: refused as a BocError of one line, or taken, and then codes of them are made.

BOC_FORGED sets how many are tried (default 100).
"""

from __future__ import annotations

import json
import random
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from boc.clustering.codebook import Codebook
from boc.codecs import parse_code
from boc.types import Embeddings, Ragged
from tests.boc.clustering.test_codebook import DIM, archive, made
from tests.fuzz.mutations import FORGED, damaged, verdict
from tests.fuzz.test_fuzz_indexes import ODD

VALUES = (0.0, -1.0, 1e-30, 1e15, 3e38, float("nan"), float("inf"), float("-inf"))


def forge(path: Path, rng: random.Random) -> None:
    if rng.random() < 0.3:
        archive(path)
        path.write_bytes(damaged(path.read_bytes(), rng))
        return
    arrays: dict[str, Any] = {
        "centroids": made().centroids.copy(),
        "means": np.zeros((2, DIM), np.float32),
        "axes": np.eye(DIM, dtype=np.float32),
    }
    if rng.random() < 0.5:
        array = arrays[rng.choice(list(arrays))]
        array[tuple(rng.randrange(size) for size in array.shape)] = rng.choice(VALUES)
    with np.load(archive(path), allow_pickle=False) as stored:
        tree = json.loads(stored["about"].tobytes())
    node = tree if rng.random() < 0.6 else tree[rng.choice(["identity", "options", "versions"])]
    node[rng.choice(list(node))] = rng.choice(ODD)
    archive(path, about=np.frombuffer(json.dumps(tree).encode(), np.uint8), **arrays)


def use(path: Path) -> None:
    Codebook.load(path)
    for kind in ("hard", "soft"):  # or refused: the file may be one of words, or of learned terms
        codec = parse_code(f"{kind}(codebook={path})").codec(DIM)
        vectors = made().centroids / np.linalg.norm(made().centroids, axis=1, keepdims=True)
        rows = Embeddings("image", vectors, Ragged.from_sets(list(vectors[:, None]), DIM))
        assert codec.fit(rows).encode_documents(rows).data.min(initial=1) > 0


@pytest.mark.slow
def test_forged_codebooks(tmp_path: Path) -> None:
    odd = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        for seed in range(FORGED):
            path = tmp_path / "book.npz"
            forge(path, random.Random(seed))
            answer = verdict(partial(use, path), "taken")
            if answer not in ("taken", "refused"):
                odd[seed] = answer
    assert odd == {}
