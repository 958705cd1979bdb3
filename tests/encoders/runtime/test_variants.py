"""The variant of an encoder whose concepts have no context."""

from pathlib import Path

import numpy as np
import pytest

from boc import plugins
from boc.errors import EncoderError
from boc.types import Identity, ImageRef, Regions


@pytest.fixture(scope="module")
def folder(library: Path) -> str:
    return f"tern:{library / 'model'}"


@pytest.fixture(scope="module")
def pictures(
    folder: str,
    library: Path,
) -> list[Regions]:
    encoder = plugins.encoder(folder, "cpu")
    found = [
        encoder.prepare(ImageRef(p.name, p)) for p in sorted((library / "images").iterdir())[:3]
    ]
    return [*found, Regions(found[0].features[:0], found[0].boxes[:0])]


TEXTS = ["a red box at the left", "red", "", "unheardof box", "box box"]


def test_alone_regions(
    folder: str,
    pictures: list[Regions],
):
    plain = plugins.encoder(folder, "cpu")
    alone = plugins.encoder(f"{folder}?alone", "cpu")
    whole = plain.encode_images(pictures)
    found = alone.encode_images(pictures)
    assert np.array_equal(found.vectors, whole.vectors)
    assert found.concepts.offsets.tolist() == whole.concepts.offsets.tolist()
    for i, each in enumerate(pictures):
        for j in range(0, len(each), 5):
            one = plain.encode_images([Regions(each.features[j : j + 1], each.boxes[j : j + 1])])
            np.testing.assert_allclose(
                found.concepts[i][j],
                one.concepts[0][0],
                atol=1e-5,
            )
    assert not np.allclose(found.concepts.values, whole.concepts.values, atol=1e-3)


def test_alone_words(folder: str):
    plain = plugins.encoder(folder, "cpu")
    alone = plugins.encoder(f"{folder}?alone", "cpu")
    whole = plain.encode_texts(TEXTS)
    found = alone.encode_texts(TEXTS)
    assert np.array_equal(found.vectors, whole.vectors)
    assert found.words == whole.words
    assert [len(found.concepts[i]) for i in range(len(TEXTS))] == [
        len(words) for words in found.words
    ]
    place = {}
    for i, words in enumerate(found.words):
        for piece, vector in zip(words, found.concepts[i], strict=True):
            np.testing.assert_allclose(
                vector,
                place.setdefault(piece, vector),
                atol=1e-5,
            )
    single = plain.encode_texts(["red"]).concepts
    np.testing.assert_allclose(
        place["red"],
        single[0][0],
        atol=1e-5,
    )


def test_no_input_is_no_output(folder: str):
    encoder = plugins.encoder(f"{folder}?alone", "cpu")
    for found in (encoder.encode_images([]), encoder.encode_texts([])):
        assert found.vectors.shape == (0, encoder.identity.dim)
        assert len(found.concepts) == 0


def test_identity_of_variants(folder: str):
    plain = plugins.encoder(folder, "cpu").identity
    identity = plugins.encoder(f"{folder}?alone", "cpu").identity
    assert identity == Identity(
        f"{plain.spec}?alone",
        f"alone:{plain.digest}",
        plain.dim,
    )
    with pytest.raises(EncoderError, match=r"'other'.*FOLDER or FOLDER\?alone"):
        plugins.encoder(f"{folder}?other", "cpu")
