"""Learning terms: the head is that of the codec, and what is learned finds more than what it began
with."""

import sys

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray

from boc import plugins
from boc.clustering.codebook import Codebook
from boc.codecs.learned import LearnedTerms, item_rows
from boc.errors import BocError
from boc.types import MODALITIES, Embeddings, Identity, Modality, Ragged
from boc.vectors import unit_rows
from encoders.training.learned_terms import Head, ItemPairs, first_head, train

WIDTH = 5


def gaussian(*shape: int, seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=6),
    st.sampled_from(MODALITIES),
    st.integers(1, 9),
    st.integers(0, 999),
)
def test_head_equals_codec_step(
    counts: list[int],
    modality: Modality,
    z: int,
    seed: int,
):
    sets = Ragged.from_sets(
        [gaussian(count, WIDTH, seed=seed + i) for i, count in enumerate(counts)],
        WIDTH,
    )
    items = Embeddings(
        modality,
        unit_rows(gaussian(len(counts), WIDTH, seed=seed + 99)),
        sets,
    )
    thresholds = 0.3 * gaussian(
        2,
        2,
        7,
        seed=seed + 1,
    )
    book = Codebook(
        gaussian(7, WIDTH, seed=seed),
        Identity("", "", WIDTH),
        (),
        {},
        7,
        thresholds=thresholds,
    )
    step = LearnedTerms.from_codebook(
        book,
        z=z,
        query_z=z,
    )
    rows = step.encode_documents(step.read(items), modality).toarray()
    activations = (
        Head(step.directions_, step.thresholds_)(
            item_rows(items),
            modality,
            z,
        )
        .detach()
        .numpy()
    )
    lengths = np.linalg.norm(
        rows,
        axis=1,
        keepdims=True,
    )
    np.testing.assert_allclose(
        activations,
        rows / np.maximum(lengths, 1e-6),
        atol=0.01,
    )


def pairs_of(
    count: int,
    seed: int,
) -> ItemPairs:
    """Pictures and two captions each, which lie apart, and differ in two components that say
    nothing."""
    vectors = gaussian(count, WIDTH, seed=seed)
    texts = np.repeat(
        vectors,
        2,
        axis=0,
    )
    texts[:, :2] = gaussian(
        2 * count,
        2,
        seed=seed + 1,
    )
    texts[:, 2] += 1
    rows = {
        "image": item_rows(Embeddings("image", vectors)),
        "text": item_rows(Embeddings("text", texts)),
    }
    return ItemPairs(rows, {i: np.array([2 * i, 2 * i + 1]) for i in range(count)})


def first_share(
    head: Head,
    pairs: ItemPairs,
) -> float:
    """The share of captions whose own picture is first."""
    pictures, captions = (
        head(
            pairs.rows[modality],
            modality,
            4,
        )
        .detach()
        .numpy()
        for modality in MODALITIES
    )
    return float(((captions @ pictures.T).argmax(axis=1) == np.arange(len(captions)) // 2).mean())


@pytest.mark.slow
def test_training_improves_recall_in_shared_terms():
    pairs = pairs_of(64, 0)
    head, again = (first_head(pairs, 24) for _ in range(2))
    before = first_share(head, pairs)
    losses, repeated = (
        list(
            train(
                each,
                pairs,
                z=4,
                query_z=4,
                epochs=30,
                rate=0.02,
            ),
        )
        for each in (head, again)
    )
    assert losses[-1] < losses[0] - 0.5
    assert losses == repeated
    assert first_share(head, pairs) > 1.5 * before  # chance is 1 / 64
    used = [
        (
            head(
                pairs.rows[modality],
                modality,
                4,
            )
            > 0
        ).any(dim=0)
        for modality in MODALITIES
    ]
    assert (used[0] & used[1]).sum() >= 0.8 * (used[0] | used[1]).sum()


def test_error_without_torch(monkeypatch):
    monkeypatch.delitem(sys.modules, "encoders.training.learned_terms")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(
        BocError,
        match=r"needs the package torch; install it with: pip install 'boc\[encoders\]'",
    ):
        plugins.tool("learned_terms")
