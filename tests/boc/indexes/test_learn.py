"""Codes learned from feature files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from boc.codecs import global_code
from boc.indexes.learn import fit_code
from boc.inputs.feature_files import FeatureFiles
from boc.types import Embeddings
from tests.boc.indexes.test_sizes import write


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("many") / "many.h5", {"image": 3000, "text": 7000})


def test_code_is_learned_from_evenly_spread_items(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the blocks it is read in; and memory is told before, if it is much."""
    told: list[tuple[str, int, int]] = []
    with FeatureFiles([many]) as file:
        samples = [
            Embeddings(m, next(iter(file.sample(m, np.arange(size) * file.count(m) // size))))
            for m, size in (("image", 231), ("text", 538))
        ]
        fit_code(file, global_code("dictionary", terms=64), lambda *progress: told.append(progress), sample=100)
        assert not told
        monkeypatch.setattr("boc.indexes.learn.MUCH", 0)
        monkeypatch.setattr("boc.inputs.features.SAMPLED", 50)
        found = fit_code(file, global_code("dictionary", terms=64), lambda *progress: told.append(progress), sample=100)
    assert told == [("learning from 769 items, 0.0 GB of memory", done, 769) for done in (0, 769)]
    expected = global_code("dictionary", terms=64).fit(*samples, n_items=10_000)
    for name, array in expected.arrays().items():
        assert np.array_equal(found.arrays()[name], array)
