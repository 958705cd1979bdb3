"""An index whose sentences and pictures share no terms says so."""

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from boc import build_index, plugins
from boc.clustering import make_codebook
from boc.errors import BocWarning
from boc.evaluate.verify import verify
from boc.inputs.features import FeatureFile
from boc.manage.facts import index_facts
from boc.manage.shared_terms import term_faults
from tests.boc.clustering.test_codebook import write
from tests.helpers import boc, run


@pytest.mark.parametrize("apart", [False, True])
def test_a_code_that_keeps_modalities_apart_is_told(tmp_path: Path, apart: bool) -> None:
    far = 50.0 if apart else 0.0
    pictures = [[[far + i % 5, i % 3], [far, 1.0]] for i in range(40)]
    captions = [(["dog", "runs"], [[i % 5, i % 3], [0.0, 1.0]]) for i in range(40)]
    path = write(tmp_path / "f.h5", pictures, captions)
    place = f"file:{tmp_path}"
    with FeatureFile(path) as file:
        make_codebook.cluster([file], 8).save(tmp_path / "c.npz")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        build_index("some", path, at=place, code=f"hard(codebook={tmp_path / 'c.npz'})")
    told = [str(each.message) for each in caught if issubclass(each.category, BocWarning)]
    assert len(told) == apart
    faults = term_faults(plugins.backend(place).open("some"))
    assert [f"some: {fault}" for fault in faults] == told


def test_an_index_without_terms_is_told_by_all_that_show_it(library: Path, tmp_path: Path) -> None:
    with FeatureFile(library / "photos.h5") as file:
        book = make_codebook.cluster([file], 8)
    thresholds = np.full((2, 2, 8), 1e6, np.float32)
    replace(book, thresholds=thresholds).save(tmp_path / "c.npz")
    at = f"file:{tmp_path}"
    with pytest.warns(BocWarning, match="bare: 100% of its items have no terms"):
        build_index(
            "bare",
            library / "photos.h5",
            at=at,
            code=f"learned(codebook={tmp_path / 'c.npz'})",
        )
    index = plugins.backend(at).open("bare")
    assert index_facts(index)["faults"]
    assert "100% of its items have no terms" in run("info", "bare", "--at", at).output
    assert not verify(index).right
    assert "note: 100% of its items" in boc("verify", "bare", "--at", at).output
    sound = plugins.backend(f"file:{library / 'index'}").open("photos")
    assert index_facts(sound)["faults"] == verify(sound).faults == []
