"""Codes learned from feature files: from items spread evenly, whatever the blocks they are read
in."""

from pathlib import Path

import numpy as np
from hypothesis import example, given, strategies as st

from boc.codecs import global_code
from boc.inputs.features import FeatureFiles
from boc.manage.learn import fit_code, held_out
from boc.types import MODALITIES, Batch, Embeddings, Item
from tests.oracles import random_units, write_features


@given(count=st.integers(0, 3000))
@example(249)
@example(250)
@example(1250)
def test_held_out_rows_are_a_fifth_at_most_and_spread_evenly(count: int):
    rows = held_out(count)
    assert len(rows) <= min(250, count / 5)
    assert len(rows) + 1 > min(250, count / 5) or count < 250
    assert bool(len(rows)) == (count >= 250)
    gaps = np.diff([*rows, count])
    assert rows[:1].sum() == 0
    assert np.ptp(gaps) <= 1 if len(rows) else not len(gaps)


def test_code_is_learned_from_evenly_spread_items(
    tmp_path: Path,
    monkeypatch,
):
    counts = {"image": 1500, "text": 3500}
    batches = []
    for modality in MODALITIES:
        n = counts[modality]
        items = [Item(f"{modality}-{i}", modality, "") for i in range(n)]
        batches.append(Batch(items, Embeddings(modality, random_units(n, n, 24))))
    path = write_features(tmp_path / "many.h5", *batches)
    ticks = []

    def fit(file):
        return fit_code(
            file,
            global_code("dictionary", terms=64),
            lambda *tick: ticks.append(tick),
            sample=100,
        )

    def spread(count, size):
        return np.arange(size) * count // size

    with FeatureFiles([path]) as file:
        samples = []
        for modality, size in (("image", 231), ("text", 538)):
            count = counts[modality]
            rows = np.setdiff1d(spread(count, size), held_out(count))
            samples.append(Embeddings(modality, next(iter(file.sample(modality, rows)))))
        monkeypatch.setattr("boc.inputs.features.SAMPLED", 50)
        codec = fit(file)
    rows = sum(map(len, samples))
    assert ticks == [("learning", done, rows) for done in (0, rows)]
    expected = global_code("dictionary", terms=64).fit(*samples, n_items=5000)
    for name, array in expected.arrays().items():
        assert np.array_equal(codec.arrays()[name], array)
