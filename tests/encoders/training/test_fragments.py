"""Fragments of captions, which pictures are their negatives, and captions turned round."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.random import default_rng

from boc.errors import EncoderError
from encoders.training.config import TrainConfig
from encoders.training.data import CaptionPairs
from encoders.training.fragments import Fragments, exchange_opposites

START = 1
END = 2
STOP = 3
ROWS = st.lists(
    st.integers(STOP, 12),
    min_size=0,
    max_size=8,
).map(lambda ids: [START, *ids, END])
A, RED, BLUE, GREEN, BOAT, SHIP, CAT, AND = range(3, 11)


def pairs(
    count: int,
    per_picture: int,
) -> CaptionPairs:
    numbers = np.arange(count * per_picture).reshape(count, per_picture)
    return CaptionPairs(np.arange(count) + 7, list(numbers))


@given(rows=st.lists(ROWS, min_size=1, max_size=6), seed=st.integers(0, 99))
def test_fragment_is_run_with_content(
    rows: list[list[int]],
    seed: int,
):
    fragments = Fragments(
        rows,
        pairs(len(rows), 1),
        [STOP],
        share=1.0,
    )
    for row, cut in zip(
        rows,
        fragments.cut(range(len(rows)), default_rng(seed)),
        strict=True,
    ):
        inner = cut[1:-1]
        assert (cut[0], cut[-1]) == (START, END)
        assert any(row[i : i + len(inner)] == inner for i in range(1, len(row) - len(inner)))
        assert set(inner) - {STOP} or not set(row[1:-1]) - {STOP}
    whole = Fragments(
        rows,
        pairs(len(rows), 1),
        [STOP],
        share=0.0,
    )
    assert whole.cut(range(len(rows)), default_rng(seed)) == rows


def test_all_runs_occur():
    fragments = Fragments(
        [[START, 4, 5, 6, END]],
        pairs(1, 1),
        [],
        share=1.0,
    )
    rng = default_rng(0)
    runs = {tuple(fragments.cut([0], rng)[0][1:-1]) for _ in range(300)}
    assert runs == {(4,), (5,), (6,), (4, 5), (5, 6), (4, 5, 6)}


@given(
    rows=st.lists(
        ROWS,
        min_size=6,
        max_size=6,
    ),
    texts=st.lists(
        ROWS,
        min_size=1,
        max_size=4,
    ),
)
def test_negatives_lack_a_word(
    rows: list[list[int]],
    texts: list[list[int]],
):
    fragments = Fragments(
        rows,
        pairs(3, 2),
        [STOP],
        share=1.0,
    )
    negatives = fragments.apart(np.array([7, 8, 9]), texts).tolist()
    for picture, flags in enumerate(negatives):
        own = rows[2 * picture] + rows[2 * picture + 1]
        assert flags == [any(id not in own and id != STOP for id in row[1:-1]) for row in texts]


OPPOSITES = {A: RED, RED: A, BOAT: SHIP, SHIP: BOAT}


@given(rows=st.lists(ROWS, max_size=6), stops=st.sets(st.integers(STOP, 12), max_size=3))
def test_exchange_opposites(
    rows: list[list[int]],
    stops: set[int],
):
    places, turned = exchange_opposites(rows, OPPOSITES, stops)
    expected = []
    for place, row in enumerate(rows):
        where = [id for id in row if id in OPPOSITES]
        what = [id for id in row[1:-1] if id not in OPPOSITES and id not in stops]
        if where and what:
            expected.append(place)
    assert places == expected
    for place, row in zip(places, turned, strict=True):
        for old, new in zip(rows[place], row, strict=True):
            assert new == OPPOSITES.get(old, old)
    assert exchange_opposites(turned, OPPOSITES, stops)[1] == [
        rows[place] for place in places
    ]  # twice is not at all


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"loss": "guess"}, "loss must be one of hinge, contrast, got 'guess'"),
        ({"keep": "first"}, "keep must be one of best, last, got 'first'"),
        (
            {"opposites": 1.0, "text_lr": 1.0},
            "opposites need alignment, which objective=matching does not include",
        ),
        ({"choose": "spice"}, "choose must be one of recall, ndcg, ndcg-image, got 'spice'"),
    ],
)
def test_invalid_settings(
    settings: dict[str, object],
    words: str,
):
    with pytest.raises(EncoderError, match=words):
        TrainConfig(**settings)  # type: ignore[arg-type]
