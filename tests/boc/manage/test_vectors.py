"""Indexes of rounded vectors: what they hold, through all that is done with an index."""

from pathlib import Path

import numpy as np
import pytest

from boc import build_index, copy_index, plugins
from boc.evaluate.verify import verify
from boc.inputs.features import FeatureFile
from boc.manage.build import add_items, delete_items
from boc.names import VECTOR_DTYPES
from boc.plugins import Engine
from boc.rerank.storage import round_trip


def assert_holds(index: Engine, features: Path, dtype: str) -> None:
    """That an index holds the vectors of a file rounded to ``dtype``, and terms of these."""
    assert index.manifest.vector_dtype == dtype
    with FeatureFile(features) as file:
        for modality in ("image", "text"):
            batch = file.batch(modality, 0, file.count(modality))
            found = index.vectors([item.id for item in batch.items])
            np.testing.assert_array_equal(found, round_trip(batch.embeddings.vectors, dtype))
    for files, against in (([], "vectors"), ([features], "features")):
        verified = verify(index, files=files)
        assert (verified.right, verified.against, verified.rounded) == (True, against, [])


@pytest.mark.slow
@pytest.mark.parametrize("code", ["dictionary:2/8(terms=16)", "bits:4/8"])
@pytest.mark.parametrize("dtype", VECTOR_DTYPES)
def test_rounding_survives_every_operation(
    library: Path,
    tmp_path: Path,
    dtype: str,
    code: str,
):
    features = library / "photos.h5"
    at = f"file:{tmp_path / 'here'}"
    to = f"file:{tmp_path / 'there'}"
    backend = plugins.backend(at)
    build_index("photos", features, at=at, code=code, vectors=dtype)
    assert_holds(backend.open("photos"), features, dtype)
    delete_items("photos", ["003.png", "004.png"], at=at)
    assert add_items("photos", features, at=at).replaced == 118
    assert_holds(backend.open("photos"), features, dtype)
    backend.compact("photos")
    assert_holds(backend.open("photos"), features, dtype)
    copy_index("photos", at=at, to=to)
    copy_index("photos", "coded", at=at, code="bits:8")
    copy_index("photos", at=at, to=tmp_path / "exported.zip")
    build_index("again", tmp_path / "exported.zip", at=to)
    for place, name in (
        (to, "photos"),
        (at, "coded"),
        (to, "again"),
    ):
        assert_holds(plugins.backend(place).open(name), features, dtype)
    assert build_index("photos", tmp_path / "exported.zip", at=at).up_to_date
