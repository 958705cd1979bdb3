"""An index whose sentences and pictures share no terms says so."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from boc import build_index, plugins
from boc.clustering import make_codebook
from boc.errors import BocWarning
from boc.indexes.shared_terms import shared_terms
from boc.inputs.features import FeatureFile
from tests.boc.clustering.test_codebook import write


@pytest.mark.parametrize("apart", [False, True])
def test_a_code_that_keeps_modalities_apart_is_told(tmp_path: Path, apart: bool) -> None:
    far = 50.0 if apart else 0.0
    pictures = [[[far + i % 5, i % 3], [far, 1.0]] for i in range(40)]
    captions = [(["dog", "runs"], [[i % 5, i % 3], [0.0, 1.0]]) for i in range(40)]
    path, place = write(tmp_path / "f.h5", pictures, captions), f"file:{tmp_path}"
    with FeatureFile(path) as file:
        make_codebook.cluster([file], 8).save(tmp_path / "c.npz")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        build_index("some", path, at=place, code=f"hard(codebook={tmp_path / 'c.npz'})")
    told = [str(each.message) for each in caught if issubclass(each.category, BocWarning)]
    assert len(told) == apart
    share = shared_terms(plugins.backend(place).open("some"))
    assert share is not None
    assert (share < 0.1) == apart
