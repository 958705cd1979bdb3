"""Recall, median rank and NDCG against slow stable sorts, others' libraries, and worked by hand."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays
from numpy.random import default_rng

from boc.errors import BocError
from boc.evaluate import metrics
from boc.evaluate.metrics import (
    BLOCK,
    Recall,
    evaluate_ndcg,
    evaluate_recall,
    ndcg,
    owners_of,
    ranks,
)
from boc.evaluate.relevance import rouge_l_matrix
from boc.inputs.features import FeatureFile
from boc.vectors import Floats, Ints
from tests.helpers import boc

Gallery = tuple[Floats, Floats, Ints]


@st.composite
def galleries(draw: st.DrawFn, most: int = 6) -> Gallery:
    """Pictures, sentences and owners; small whole numbers, so that scores are exact and many are
    equal."""
    n = draw(st.integers(1, most))
    owners = np.array(
        draw(st.permutations([*range(n), *draw(st.lists(st.integers(0, n - 1), max_size=6))])),
        dtype=np.int64,
    )
    whole = st.integers(-1, 1).map(np.float32)
    images, texts = (
        draw(
            arrays(
                np.float32,
                (count, 2),
                elements=whole,
            ),
        )
        for count in (n, len(owners))
    )
    return images, texts, owners


def slow_rank(query: Floats, gallery: Floats, right: set[int]) -> int:
    """Place (from 0) of the first right answer when all are sorted by falling score, equal ones by
    position."""
    scores = [sum(float(a) * float(b) for a, b in zip(query, row, strict=True)) for row in gallery]
    order = sorted(
        range(len(gallery)),
        key=lambda i: -scores[i],
    )
    return next(place for place, i in enumerate(order) if i in right)


def own_texts(owners: Ints, picture: int) -> set[int]:
    return {j for j, owner in enumerate(owners.tolist()) if owner == picture}


@pytest.mark.slow
@given(gallery=galleries(), data=st.data())
def test_ranks_equal_a_stable_sort(gallery: Gallery, data: st.DataObject):
    images, _, owners = gallery
    n = len(images)
    scores = data.draw(
        arrays(
            np.float32,
            (len(owners), n),
            elements=st.integers(-2, 2).map(np.float32),
        ),
    )
    places = []
    for row, owner in zip(
        scores.tolist(),
        owners.tolist(),
        strict=True,
    ):
        places.append(
            sorted(
                range(n),
                key=lambda i, row=row: -row[i],
            ).index(owner),
        )
    assert ranks(scores, owners, np.arange(n)).tolist() == places
    found = evaluate_recall(scores, owners)
    assert found.text_to_image == Recall.of(np.array(places))
    places = []
    for picture, column in enumerate(scores.T.tolist()):
        order = sorted(
            range(len(owners)),
            key=lambda j, column=column: -column[j],
        )
        places.append(min(order.index(j) for j in own_texts(owners, picture)))
    assert ranks(scores.T, np.arange(n), owners).tolist() == places
    assert found.image_to_text == Recall.of(np.array(places))
    # A strictly rising function of the scores changes no rank.
    assert evaluate_recall(np.exp(scores), owners) == found


def test_ranks_are_right_across_blocks():
    rng = default_rng(0)
    n = BLOCK + 20
    images = rng.integers(-2, 3, (n, 3)).astype(np.float32)
    owners = rng.permutation(np.arange(2 * n) % n)
    texts = rng.integers(-2, 3, (2 * n, 3)).astype(np.float32)
    to_image = ranks(
        texts @ images.T,
        owners,
        np.arange(n),
    )
    to_text = ranks(
        images @ texts.T,
        np.arange(n),
        owners,
    )
    for j in (0, BLOCK - 1, BLOCK, 2 * BLOCK, 2 * n - 1):
        assert to_image[j] == slow_rank(
            texts[j],
            images,
            {int(owners[j])},
        )
    for i in (0, BLOCK - 1, BLOCK, n - 1):
        assert to_text[i] == slow_rank(
            images[i],
            texts,
            own_texts(owners, i),
        )


@pytest.mark.parametrize(
    ("ranks", "r1", "r5", "r10", "median"),
    [
        ([0], 100, 100, 100, 1),
        ([0, 0, 4, 9], 50, 75, 100, 3),
        ([0, 1, 5, 20], 25, 50, 75, 4),
    ],
)
def test_recalls_worked_by_hand(
    ranks: list[int],
    r1: float,
    r5: float,
    r10: float,
    median: float,
):
    found = Recall.of(np.array(ranks, dtype=np.int64))
    assert found == Recall(
        pytest.approx(r1),
        pytest.approx(r5),
        pytest.approx(r10),
        median,
    )
    assert found.total == pytest.approx(r1 + r5 + r10)


def relevances(shape: tuple[int, int]) -> st.SearchStrategy[Floats]:
    return arrays(
        np.float32,
        shape,
        elements=st.integers(0, 8).map(lambda i: np.float32(i / 8)),
    )


@pytest.mark.slow
@given(
    gallery=galleries(),
    fold=st.integers(1, 6),
    data=st.data(),
)
def test_folds_are_averaged(gallery: Gallery, fold: int, data: st.DataObject):
    """Recalls and NDCG, each with the ideals of its fold; a rest that is shorter than a fold does
    not count."""
    images, texts, owners = gallery
    R = data.draw(relevances((len(texts), len(images))))
    fold = min(fold, len(images))
    parts = []
    ndcgs = []
    for start in range(0, len(images) - fold + 1, fold):
        mine = [j for j, owner in enumerate(owners.tolist()) if start <= owner < start + fold]
        own = owners[mine] - start
        pictures = images[start : start + fold]
        parts.append(
            evaluate_recall(
                texts[mine] @ pictures.T,
                own,
            ),
        )
        ndcgs.append(
            evaluate_ndcg(
                texts[mine] @ pictures.T,
                own,
                R[mine, start : start + fold],
            ),
        )
    recalls = evaluate_recall(texts @ images.T, owners, fold)
    assert recalls == evaluate_recall(texts @ images.T, owners, fold)
    ndcg = evaluate_ndcg(texts @ images.T, owners, R, fold)
    for side in ("text_to_image", "image_to_text"):
        assert getattr(ndcg, side) == pytest.approx(
            np.mean([getattr(part, side) for part in ndcgs]),
        )
        for measure in ("r1", "r5", "r10", "median_rank"):
            values = [getattr(getattr(part, side), measure) for part in parts]
            assert getattr(getattr(recalls, side), measure) == pytest.approx(np.mean(values))


@given(
    order=st.permutations(["a", "b", "c"]),
    spare=st.lists(
        st.sampled_from("abc"),
        max_size=4,
    ),
)
def test_owners_are_positions(order: list[str], spare: list[str]):
    groups = [*spare, "c", "a", "b"]
    assert [order[i] for i in owners_of(order, groups)] == groups


def test_items_without_an_answer_are_refused():
    with pytest.raises(BocError, match="a caption refers to 'x', but there is no such picture"):
        owners_of(["a"], ["a", "x"])
    with pytest.raises(BocError, match=r"2 pictures have no caption \(for example 'b'\)"):
        owners_of(["a", "b", "c"], ["a"])


def slow_ndcg(scores: list[float], relevance: list[float], p: int) -> float:
    """The definition, rank by rank."""

    def dcg(order):
        gains = [2 ** relevance[i] - 1 for i in order[:p]]
        return sum(g / math.log2(rank + 1) for rank, g in enumerate(gains, start=1))

    ideal = dcg(
        sorted(
            range(len(relevance)),
            key=lambda i: -relevance[i],
        ),
    )
    return (
        dcg(
            sorted(
                range(len(scores)),
                key=lambda i: -scores[i],
            ),
        )
        / ideal
        if ideal
        else 0.0
    )


def dots(queries: Floats, items: Floats) -> list[list[float]]:
    return [
        [sum(float(a) * float(b) for a, b in zip(q, x, strict=True)) for x in items]
        for q in queries
    ]


@pytest.mark.slow
@given(
    gallery=galleries(),
    p=st.integers(1, 8),
    data=st.data(),
)
def test_ndcg_is_its_definition(gallery: Gallery, p: int, data: st.DataObject):
    images, texts, owners = gallery
    R = data.draw(relevances((len(texts), len(images))))
    to_image = [
        slow_ndcg(s, r, p)
        for s, r in zip(
            dots(texts, images),
            R.tolist(),
            strict=True,
        )
    ]
    to_text = [
        slow_ndcg(s, r, p)
        for s, r in zip(
            dots(images, texts),
            R.T.tolist(),
            strict=True,
        )
    ]
    scores = texts @ images.T
    with patch.object(metrics, "DEPTH", p):
        assert ndcg(scores, R).tolist() == pytest.approx(to_image)
        assert ndcg(images @ texts.T, R.T).tolist() == pytest.approx(to_text)
        found = evaluate_ndcg(scores, owners, R)
    assert found.text_to_image == pytest.approx(sum(to_image) / len(to_image))
    counted = [value for value in to_text if value > 0]
    assert found.image_to_text == pytest.approx(sum(counted) / len(counted) if counted else 0)


def test_metrics_equal_trec_eval():
    ir_measures = pytest.importorskip(
        "ir_measures",
        reason="ir-measures, trec_eval in Python, is not installed",
    )
    pytest.importorskip("pytrec_eval", reason="the trec_eval of ir-measures is not installed")
    rng = default_rng(0)
    items, queries = (rng.standard_normal((n, 8)).astype(np.float32) for n in (60, 20))
    owners = np.arange(20)
    grades = rng.integers(0, 4, (20, 60))
    run = {
        str(q): {str(i): float(score) for i, score in enumerate(row)}
        for q, row in enumerate((queries @ items.T).tolist())
    }
    # trec_eval takes whole grades as gains, so it is given the gains as grades.
    qrels = {
        str(q): {str(i): g for i, g in enumerate(row)}
        for q, row in enumerate((2**grades - 1).tolist())
    }
    tool = ir_measures.iter_calc([ir_measures.nDCG @ metrics.DEPTH], qrels, run)
    values = {each.query_id: each.value for each in tool}
    found = ndcg(queries @ items.T, grades.astype(np.float32))
    assert found.tolist() == pytest.approx([values[str(q)] for q in range(len(queries))])
    own = {str(q): {str(owner): 1} for q, owner in enumerate(owners.tolist())}
    recall = Recall.of(
        ranks(
            queries @ items.T,
            owners,
            np.arange(len(items)),
        ),
    )
    for k, value in (
        (1, recall.r1),
        (5, recall.r5),
        (10, recall.r10),
    ):
        measure = ir_measures.Success @ k
        assert value == pytest.approx(
            100
            * ir_measures.calc_aggregate(
                [measure],
                own,
                run,
            )[measure],
        )


def test_nan_relevance_counts_as_0():
    rows = np.eye(3, dtype=np.float32)
    R = np.array(
        [[1, np.nan, 0], [0, np.nan, 0], [0, 0, 1]],
        dtype=np.float32,
    )
    found = evaluate_ndcg(rows, np.arange(3), R)
    assert found.text_to_image == pytest.approx(2 / 3)  # over all
    assert found.image_to_text == 1  # over those that are not 0


ROWS = np.eye(3, dtype=np.float32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: evaluate_recall(
                ROWS @ ROWS.T,
                np.arange(3),
                0,
            ),
            "fold must be between 1 and the number of pictures, 3; got 0",
        ),
        (
            lambda: evaluate_recall(
                ROWS @ ROWS.T,
                np.arange(3),
                4,
            ),
            "fold must be between 1 and the number of pictures, 3; got 4",
        ),
        (
            lambda: evaluate_ndcg(
                ROWS,
                np.arange(3),
                ROWS[:, :2],
            ),
            "for 3 captions and 2 pictures, but there are 3 captions and 3 pictures",
        ),
    ],
)
def test_values_out_of_range_are_refused(call: Callable[[], object], message: str):
    with pytest.raises(BocError, match=message):
        call()


@pytest.fixture(scope="module")
def gallery_file(library: Path) -> tuple[Path, Gallery, Floats]:
    """A feature file, what is in it, and the ROUGE-L of its captions."""
    with FeatureFile(library / "photos.h5") as file:
        captions = file.items("text")
        owners = owners_of(
            [item.id for item in file.items("image")],
            [item.group for item in captions],
        )
        gallery = file.vectors("image"), file.vectors("text"), owners
    return (
        library / "photos.h5",
        gallery,
        rouge_l_matrix([item.content for item in captions], owners),
    )


def test_evaluate_prints_ndcg(gallery_file: tuple[Path, Gallery, Floats]):
    path, gallery, relevance = gallery_file
    options = ("--ndcg", "rouge-l", "--fold", 10)
    tables = json.loads(boc(f"evaluate {path}", *options, "--json").stdout)
    plain = json.loads(
        boc(
            f"evaluate {path} --fold 10 --json",
        ).stdout,
    )
    lines = boc(f"evaluate {path}", *options).stdout.splitlines()
    for number, (label, fold) in enumerate(
        {"all 40 pictures": None, "mean over folds of 10 pictures": 10}.items(),
    ):
        images, texts, owners = gallery
        expected = evaluate_ndcg(texts @ images.T, owners, relevance, fold)
        for row, (side, value) in enumerate(vars(expected).items(), start=1):
            assert tables[label].pop(side) == plain[label][side] | {"ndcg": pytest.approx(value)}
            recall = plain[label][side]
            text = f"R@10 {recall['r10']:5.1f}  median rank {recall['median_rank']:g}"
            assert text in lines[3 * number + row]
            assert lines[3 * number + row].endswith(f"  NDCG@25 {value:.3f}")
        assert not tables[label]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("other.h5", "--name", "x"), "omit --name"),
        (("--rm", "2"), "--rm cannot be used with FEATURES without --name"),
        (("--name", "x", "--fold", "9"), "--fold cannot be used with an index"),
    ],
)
def test_options_that_need_others_say_which(
    library: Path,
    options: tuple[str, ...],
    message: str,
):
    refused = boc(f"evaluate {library}/photos.h5", *options)
    assert refused.exit_code == 2
    assert message in " ".join(refused.stderr.split())
