"""Alignment scores by torch equal those of numpy, whatever is empty and however small the blocks are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from boc import plugins
from boc.errors import EncoderError
from boc.evaluate.runs import Gallery
from boc.rerank import alignment
from boc.types import Ragged
from encoders.runtime import alignments as on_device
from tests.helpers import boc

METRICS = ("mrsw", "mwsr", "symm", "mravgw")
WIDTH = 5


def sets_of(most: int) -> st.SearchStrategy[list[NDArray[np.float32]]]:
    values = st.integers(-4, 4).map(lambda n: n / 4)
    one = st.integers(0, 4).flatmap(lambda m: arrays(np.float32, (m, WIDTH), elements=values))
    return st.lists(one, max_size=most)


@pytest.mark.slow
@given(words=sets_of(5), regions=sets_of(5), metric=st.sampled_from(METRICS), cells=st.sampled_from([1, 40, 10_000]))
def test_alignments_match_numpy(
    words: list[NDArray[np.float32]], regions: list[NDArray[np.float32]], metric: str, cells: int
) -> None:
    texts, pictures = Ragged.from_sets(words, WIDTH), Ragged.from_sets(regions, WIDTH)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(on_device, "CELLS", cells)
        found = plugins.aligner().alignments(texts, pictures, metric, device="cpu")
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, alignment.alignments(texts, pictures, metric), atol=1e-5)


@pytest.mark.slow
def test_gallery_device(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gallery = Gallery.of(library / "photos.h5")
    asked: list[str] = []

    def pick(device: str) -> str:
        asked.append(device)
        return "cpu"

    monkeypatch.setattr(on_device, "pick", pick)
    for metric in METRICS:
        found, expected = gallery.scores(metric, device="cuda"), gallery.scores(metric)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-5)  # sums of float32, in another order
    assert set(asked) == {"cuda"}


def test_a_device_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    one = Ragged.from_sets([np.ones((2, 3), np.float32)], 3)
    with pytest.raises(EncoderError, match="no CUDA device works here; use --device cpu"):
        on_device.alignments(one, one, "mrsw", "cuda")


def test_dot_products_take_no_device(library: Path) -> None:
    result = boc("evaluate", library / "photos.h5", "--device", "cuda")
    assert result.exit_code == 2
    assert "--device computes alignments: give --score mrsw or another, or leave it out" in result.output
