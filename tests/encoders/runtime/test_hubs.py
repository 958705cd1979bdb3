"""Offsets that correct hubs, against slow loops; banks of models, and what of them is refused."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.random import default_rng

from boc import plugins
from boc.errors import EncoderError
from boc.explain.score import explain
from boc.manage.build import build_index
from boc.manage.facts import index_facts
from boc.rerank.storage import restore_rows
from boc.search.searcher import Searcher
from boc.types import ImageRef, Ragged
from boc.vectors import Floats, unit_rows
from encoders.runtime.hubs import FEW, MORE, HubBank
from encoders.training.hub_bank import choose_bank

DIM = 8
NONE = Ragged(np.zeros((0, DIM), np.float32), np.zeros(1, np.int64))


def unit(count: int, seed: int, mean: float = 0.0) -> Floats:
    rng = default_rng(seed)
    return unit_rows(rng.standard_normal((count, DIM)) + mean)


def slow_offsets(
    vectors: Floats,
    bank: Floats,
    strength: float,
    mean: float,
    limit: float,
) -> list[float]:
    """The mean of the highest fiftieth of the scores, one score after the other."""
    offsets = []
    for vector in vectors:
        scores = sorted((float(np.dot(query, vector)) for query in bank), reverse=True)
        highest = scores[: max(1, round(len(scores) / 50))]
        offset = strength * (sum(highest) / len(highest) - mean)
        offsets.append(min(max(offset, -limit), limit))
    return offsets


@given(
    seed=st.integers(0, 99),
    strengths=st.tuples(*[st.sampled_from([0.0, 0.5, 1.0])] * 2),
    words=st.integers(1, 5),
)
def test_scores_of_extended_vectors(
    seed: int,
    strengths: tuple[float, float],
    words: int,
):
    bank = HubBank.of(
        unit(120, seed),
        unit(60, seed + 1),
        strengths,
    )
    texts = unit(5, seed + 2)
    images = unit(7, seed + 3)
    sentences = [" ".join(["word"] * words)] * len(texts)
    said = bank.extend("text", texts, NONE, sentences)[0]
    seen = bank.extend("image", images, NONE)[0]
    limit = float(bank.limit[0])
    asking = [restore_rows(bank.texts), restore_rows(bank.images)]
    of_images, of_texts = (
        slow_offsets(
            vectors,
            asking[side],
            strengths[side],
            float(bank.means[side]),
            limit,
        )
        for side, vectors in enumerate((images, texts))
    )
    counted = float(words >= FEW)
    expected = [
        [
            (np.dot(text, image) - counted * offset - own) / (1 + 2 * limit)
            for image, offset in zip(images, of_images, strict=True)
        ]
        for text, own in zip(texts, of_texts, strict=True)
    ]
    assert np.allclose(said @ seen.T, expected, atol=1e-5)
    for vectors in (said, seen):
        assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


def hubs(seed: int, count: int, hub: float) -> tuple[Floats, Floats]:
    """Pictures and their captions; every third picture is moved to where all captions lie."""
    rng = default_rng(seed)
    centre = np.ones(DIM) / DIM**0.5
    things = rng.standard_normal((count, DIM))
    noise = 1.2 * rng.standard_normal((count, DIM))
    texts = unit_rows(things + noise + centre)
    moved = hub * (np.arange(count) % 3 == 0)
    images = unit_rows(unit_rows(things) + moved[:, None] * centre)
    return texts, images


def test_bank_is_chosen_where_it_helps():
    bank_texts, bank_images = hubs(0, 400, 1.0)
    texts, images = hubs(1, 300, 1.0)
    owners = np.arange(300)
    bank = choose_bank(
        bank_texts,
        bank_images,
        texts,
        images,
        owners,
    )
    assert bank is not None
    assert bank.strengths[0] > 0
    sentence = ["one two three"] * 300
    said = bank.extend("text", texts, NONE, sentence)[0]
    seen = bank.extend("image", images, NONE)[0]

    def found(scores):
        own = scores.diagonal()[:, None]
        return int(((scores > own).sum(axis=1) < 10).sum())

    assert found(said @ seen.T) > found(texts @ images.T)
    # Captions that are their pictures gain nothing.
    assert (
        choose_bank(
            bank_texts,
            bank_images,
            images,
            images,
            owners,
        )
        is None
    )


@pytest.fixture
def folder(
    library: Path,
    tmp_path: Path,
) -> Path:
    """A model with a bank."""
    place = shutil.copytree(library / "model", tmp_path / "model")
    dim = plugins.encoder(f"tern:{library / 'model'}", "cpu").identity.dim
    rng = default_rng(0)
    rows = [unit_rows(rng.standard_normal((60, dim))) for _ in range(2)]
    HubBank.of(rows[0], rows[1], (0.5, 0.75)).write(place / "hubs.npz")
    return place


def test_encoder_of_a_model_with_a_bank(
    folder: Path,
    library: Path,
):
    plain = plugins.encoder(f"tern:{library / 'model'}", "cpu")
    encoder = plugins.encoder(f"tern:{folder}", "cpu")
    assert encoder.identity.has_offsets
    assert not plain.identity.has_offsets
    assert encoder.identity.dim == plain.identity.dim + MORE
    texts = ["a red box at the left", "box"]
    expected = plain.encode_texts(texts)
    found = encoder.encode_texts(texts)
    factor = found.vectors[0, 0] / expected.vectors[0, 0]
    assert np.allclose(
        found.vectors[:, :-MORE],
        factor * expected.vectors,
        atol=1e-6,
    )
    assert (found.vectors[:, -MORE] > 0).tolist() == [True, False]
    assert found.words == expected.words
    # Concepts get zeros.
    widened = np.pad(expected.concepts.values, ((0, 0), (0, MORE)))
    assert np.array_equal(found.concepts.values, widened)
    alone = plugins.encoder(f"tern:{folder}?alone", "cpu")
    assert np.array_equal(alone.encode_texts(texts).vectors, found.vectors)
    vectors = unit_rows(np.eye(60, plain.identity.dim) + 1)
    HubBank.of(vectors, vectors, (0.5, 0.5)).write(folder / "hubs.npz")
    changed = plugins.encoder(f"tern:{folder}", "cpu").identity
    assert changed.digest != encoder.identity.digest


@pytest.mark.parametrize(
    "change",
    [
        {"strengths": np.zeros(3)},
        {"means": np.full(2, np.nan)},
        {"other": np.zeros(2)},
    ],
)
def test_damaged_bank(
    folder: Path,
    change: dict[str, Any],
):
    with np.load(folder / "hubs.npz") as arrays:
        entries = dict(arrays)
    np.savez(folder / "hubs.npz", **{**entries, **change})
    with pytest.raises(EncoderError, match="damaged model"):
        plugins.encoder(f"tern:{folder}", "cpu")


def test_offset_of_an_explanation(
    folder: Path,
    library: Path,
    tmp_path: Path,
):
    at = f"file:{tmp_path / 'made'}"
    build_index(
        "made",
        library / "captions.csv",
        encoder=f"tern:{folder}",
        at=at,
    )
    searcher = Searcher.open("made", at)
    plain = plugins.encoder(f"tern:{library / 'model'}", "cpu")
    path = library / "images" / "003.png"
    vectors = plain.encode_images([plain.prepare(ImageRef("003.png", path))]).vectors
    bank = HubBank.read(folder / "hubs.npz")
    limit = float(bank.limit[0])
    (offset,) = slow_offsets(
        vectors,
        restore_rows(bank.texts),
        bank.strengths[0],
        bank.means[0],
        limit,
    )
    found = explain(searcher, "003.png", "a red box at the left").offset
    assert found == pytest.approx(-offset / (1 + 2 * limit), abs=1e-3)
    assert explain(searcher, "003.png", "box").offset == 0
    assert index_facts(searcher.index)["offsets"]
