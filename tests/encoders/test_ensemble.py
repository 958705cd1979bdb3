"""Several encoders as one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from boc import plugins
from boc.errors import EncoderError
from boc.types import ImageRef
from boc.vectors import unit_rows

TEXTS = ["a red box at the left", "top: something blue", ""]


@pytest.mark.slow
def test_its_scores_are_the_mean_of_its_members(library: Path) -> None:
    plain, alone = f"tern:{library / 'model'}", f"tern:{library / 'model'}?alone"
    both = plugins.encoder(f"ensemble:{plain},{alone}", "cpu")
    members = [plugins.encoder(spec, "cpu") for spec in (plain, alone)]
    refs = [ImageRef(path.name, path) for path in sorted((library / "images").iterdir())[:5]]
    images = both.encode_images([both.prepare(ref) for ref in refs])
    texts = both.encode_texts(TEXTS)
    theirs = [(m.encode_images([m.prepare(ref) for ref in refs]), m.encode_texts(TEXTS)) for m in members]
    mean = np.mean([i.vectors @ t.vectors.T for i, t in theirs], axis=0)
    assert np.abs(images.vectors @ texts.vectors.T - mean).max() <= 1e-5
    assert np.abs(np.linalg.norm(images.vectors, axis=1) - 1).max() <= 1e-5
    assert both.identity.dim == images.vectors.shape[1] == 32
    cosines = [unit_rows(i.concepts[0]) @ unit_rows(t.concepts[0]).T for i, t in theirs]
    assert np.abs(images.concepts[0] @ texts.concepts[0].T - np.mean(cosines, axis=0)).max() <= 1e-5
    assert texts.words == theirs[0][1].words


def test_a_shared_region_source_is_asked_once(library: Path) -> None:
    spec = f"tern:{library / 'model'}"
    encoder = plugins.encoder(f"ensemble:{spec},{spec}?alone", "cpu")
    assert len(encoder.preparer.distinct) == 1
    path = next((library / "images").iterdir())
    one, other = encoder.prepare(ImageRef(path.name, path))
    assert one is other


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("tern:x", "is no ensemble"),
        ("tern:x,y", "is no ensemble"),
        ("tern:x,wern:y", "no encoder 'x'|no model folder"),
        ("ensemble:a,tern:b", "no encoder 'ensemble'"),
    ],
)
def test_what_is_no_ensemble_is_refused(argument: str, words: str) -> None:
    with pytest.raises(EncoderError, match=words):
        plugins.encoder(f"ensemble:{argument}", "cpu")
