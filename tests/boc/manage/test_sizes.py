"""Codes learned from feature files, and bytes of planned indexes: a larger one takes what a smaller
one predicts."""

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from boc import plugins
from boc.codecs import SurrogateCodec, global_code
from boc.inputs.features import FeatureFiles
from boc.manage.build import build_index
from boc.manage.facts import planned_sizes
from boc.manage.learn import fit_code, held_out
from boc.types import MODALITIES, Batch, Embeddings, Identity, Item, Modality
from tests.helpers import boc
from tests.oracles import random_units, write_features

IDENTITY = Identity("tern:somewhere", "ab" * 32, 24)


def write(path: Path, counts: dict[Modality, int], source: str = "cd") -> Path:
    """A feature file of that many items of each modality."""
    batches = []
    for modality, count in counts.items():
        items = [
            Item(f"{source}-{modality}-{i:06d}", modality, f"item number {i:06d}")
            for i in range(count)
        ]
        batches.append(Batch(items, Embeddings(modality, random_units(count, count, IDENTITY.dim))))
    return write_features(
        path,
        *batches,
        spec=IDENTITY.spec,
        digest=IDENTITY.digest,
        source=source * 32,
    )


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("many") / "many.h5", {"image": 1500, "text": 3500})


@pytest.mark.slow
@pytest.mark.parametrize("code", ["scalar:8", "dictionary(terms=64)"])
def test_planned_sizes_equal_real_sizes(many: Path, tmp_path: Path, code: str) -> None:
    at = f"file:{tmp_path}"
    few = write(tmp_path / "few.h5", {"image": 600, "text": 1400})
    for name, path in (("few", few), ("many", many)):
        build_index(name, path, at=at, code=code)
    backend = plugins.backend(at)
    planned = planned_sizes(backend.open("few"), 5000)
    real = backend.open("many").sizes()
    assert sum(planned.values()) == pytest.approx(sum(real.values()), rel=0.1)
    assert planned["vectors"] == pytest.approx(real["vectors"], rel=0.01)
    assert planned["code"] > 0


def test_info_items_command(many: Path, tmp_path: Path) -> None:
    at = f"--at=file:{tmp_path}"
    assert boc("index", "many", many, at).exit_code == 0
    whole = json.loads(boc("info", "many", "--items", 10_000, at, "--json").stdout)
    lines = boc("info", "many", "--items", 10_000, at).stdout.splitlines()
    assert [line.split()[0] for line in lines] == [
        *(part for part, size in whole["bytes"].items() if size),
        "in",
    ]
    assert boc("info", at).stdout.splitlines()[-1].split() == ["indexes", "many"]


def test_items_without_an_index_are_refused() -> None:
    refused = boc("info", "--items", 5)
    assert refused.exit_code == 2
    assert "--items goes with an index" in refused.stderr


def test_code_is_learned_from_evenly_spread_items(
    many: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever the blocks it is read in; and memory is reported before, if it is much."""
    ticks: list[tuple[str, int, int]] = []

    def fit(file: FeatureFiles) -> SurrogateCodec:
        return fit_code(
            file,
            global_code("dictionary", terms=64),
            lambda *tick: ticks.append(tick),
            sample=100,
        )

    def spread(count: int, size: int) -> NDArray[np.int64]:
        return np.arange(size) * count // size

    with FeatureFiles([many]) as file:
        apart = {modality: held_out(file.count(modality)) for modality in MODALITIES}
        samples = [
            Embeddings(
                m,
                next(iter(file.sample(m, np.setdiff1d(spread(file.count(m), size), apart[m])))),
            )
            for m, size in (("image", 231), ("text", 538))
        ]
        fit(file)
        assert not ticks
        monkeypatch.setattr("boc.manage.learn.MUCH", 0)
        monkeypatch.setattr("boc.inputs.features.SAMPLED", 50)
        codec = fit(file)
    rows = sum(map(len, samples))
    assert ticks == [
        (f"learning from {rows} items, 0.0 GB of memory", done, rows) for done in (0, rows)
    ]
    expected = global_code("dictionary", terms=64).fit(*samples, n_items=5000)
    for name, array in expected.arrays().items():
        assert np.array_equal(codec.arrays()[name], array)
