"""Recall and median rank against slow stable sorts, and worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from boc.errors import BocError
from boc.evaluation import BLOCK, Recall, Recalls, evaluate, image_to_text_ranks, owners_of, text_to_image_ranks

Gallery = tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int64]]


@st.composite
def galleries(draw: st.DrawFn, most: int = 6) -> Gallery:
    """Pictures, sentences and owners; small whole numbers, so that scores are exact and many are equal."""
    n = draw(st.integers(1, most))
    spare = draw(st.lists(st.integers(0, n - 1), max_size=6))
    owners = np.array(draw(st.permutations([*range(n), *spare])), dtype=np.int64)
    whole = st.integers(-1, 1).map(np.float32)
    images, texts = (draw(arrays(np.float32, (count, 2), elements=whole)) for count in (n, len(owners)))
    return images, texts, owners


def slow_rank(query: NDArray[np.float32], gallery: NDArray[np.float32], right: set[int]) -> int:
    """Place (from 0) of the first right answer when all are sorted by falling score, equal ones by position."""
    scores = [sum(float(a) * float(b) for a, b in zip(query, row, strict=True)) for row in gallery]
    order = sorted(range(len(gallery)), key=lambda i: -scores[i])
    return next(place for place, i in enumerate(order) if i in right)


def own_texts(owners: NDArray[np.int64], picture: int) -> set[int]:
    return {j for j, owner in enumerate(owners.tolist()) if owner == picture}


@given(gallery=galleries())
def test_ranks_equal_those_of_a_stable_sort(gallery: Gallery) -> None:
    images, texts, owners = gallery
    found = text_to_image_ranks(images, texts, owners)
    assert found.tolist() == [slow_rank(t, images, {o}) for t, o in zip(texts, owners.tolist(), strict=True)]
    found = image_to_text_ranks(images, texts, owners)
    assert found.tolist() == [slow_rank(v, texts, own_texts(owners, i)) for i, v in enumerate(images)]


def test_ranks_are_right_across_blocks() -> None:
    rng = np.random.default_rng(0)
    n = BLOCK + 20
    images = rng.integers(-2, 3, (n, 3)).astype(np.float32)
    owners = rng.permutation(np.arange(2 * n) % n)
    texts = rng.integers(-2, 3, (2 * n, 3)).astype(np.float32)
    to_image, to_text = text_to_image_ranks(images, texts, owners), image_to_text_ranks(images, texts, owners)
    for j in (0, BLOCK - 1, BLOCK, 2 * BLOCK, 2 * n - 1):
        assert to_image[j] == slow_rank(texts[j], images, {int(owners[j])})
    for i in (0, BLOCK - 1, BLOCK, n - 1):
        assert to_text[i] == slow_rank(images[i], texts, own_texts(owners, i))


@pytest.mark.parametrize(
    ("ranks", "r1", "r5", "r10", "median"),
    [
        ([0], 100, 100, 100, 1),
        ([10], 0, 0, 0, 11),
        ([0, 0, 4, 9], 50, 75, 100, 3),
        ([0, 1, 5, 20], 25, 50, 75, 4),
        ([3, 4], 0, 100, 100, 4),
        ([9, 0, 5], 100 / 3, 100 / 3, 100, 6),
    ],
)
def test_recalls_worked_by_hand(ranks: list[int], r1: float, r5: float, r10: float, median: float) -> None:
    found = Recall.of(np.array(ranks, dtype=np.int64))
    assert found == Recall(pytest.approx(r1), pytest.approx(r5), pytest.approx(r10), median)
    assert found.total == pytest.approx(r1 + r5 + r10)


def test_a_gallery_worked_by_hand() -> None:
    images = np.eye(3, dtype=np.float32)
    texts = np.array([[1, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 0]], dtype=np.float32)
    owners = np.array([0, 1, 2, 2])
    # Sentence 1 scores picture 1 zero, behind picture 2 and picture 0 (equal, but earlier); sentence 3 its own last.
    assert text_to_image_ranks(images, texts, owners).tolist() == [0, 2, 0, 2]
    # Picture 0: sentences 0 and 3 are equal. Picture 1: its sentence 1 scores 0, behind 3, 2, 0.
    assert image_to_text_ranks(images, texts, owners).tolist() == [0, 3, 0]
    found = evaluate(images, texts, owners)
    assert found.text_to_image == Recall(50, 100, 100, 2)
    assert found.image_to_text == Recall(pytest.approx(200 / 3), 100, 100, 1)
    assert found.total == pytest.approx(250 + 200 + 200 / 3)


@given(gallery=galleries(), fold=st.integers(1, 6))
def test_folds_are_means_over_whole_folds(gallery: Gallery, fold: int) -> None:
    images, texts, owners = gallery
    fold = min(fold, len(images))
    parts = []
    for start in range(0, len(images) - fold + 1, fold):
        mine = [j for j, owner in enumerate(owners.tolist()) if start <= owner < start + fold]
        parts.append(evaluate(images[start : start + fold], texts[mine], owners[mine] - start))
    found = evaluate(images, texts, owners, fold)
    for side in ("text_to_image", "image_to_text"):
        for measure in ("r1", "r5", "r10", "median_rank"):
            values = [getattr(getattr(part, side), measure) for part in parts]
            assert getattr(getattr(found, side), measure) == pytest.approx(sum(values) / len(values))
    if fold == len(images):
        assert found == evaluate(images, texts, owners)


@pytest.mark.parametrize("fold", [0, 4])
def test_a_fold_that_does_not_fit_is_refused_with_both_numbers(fold: int) -> None:
    rows = np.eye(3, dtype=np.float32)
    with pytest.raises(BocError, match=f"fold must be between 1 and the number of pictures, 3; got {fold}"):
        evaluate(rows, rows, np.arange(3), fold)


def test_a_fold_is_an_easier_gallery() -> None:
    rng = np.random.default_rng(0)
    images = rng.standard_normal((40, 8)).astype(np.float32)
    texts = images + rng.standard_normal((40, 8)).astype(np.float32)
    owners = np.arange(40)
    whole, folds = evaluate(images, texts, owners), evaluate(images, texts, owners, 10)
    assert isinstance(folds, Recalls)
    assert folds.total > whole.total


@given(order=st.permutations(["a", "b", "c"]), spare=st.lists(st.sampled_from("abc"), max_size=4))
def test_owners_are_positions(order: list[str], spare: list[str]) -> None:
    groups = [*spare, "c", "a", "b"]
    assert [order[i] for i in owners_of(order, groups)] == groups


def test_items_without_a_right_answer_are_named() -> None:
    with pytest.raises(BocError, match="a caption belongs to 'x', which is not among the pictures"):
        owners_of(["a"], ["a", "x"])
    with pytest.raises(BocError, match=r"2 pictures have no caption \(such as 'b'\)"):
        owners_of(["a", "b", "c"], ["a"])
