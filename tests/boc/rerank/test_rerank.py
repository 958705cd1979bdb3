"""Scores of candidates equal those of slow loops, and decide the final order."""

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays
from numpy.random import default_rng

from boc.cli.commands.evaluate import command as evaluate_command
from boc.cli.commands.index import command as index_command
from boc.errors import BocError
from boc.names import CONCEPT_DTYPES, METRICS, VECTOR_DTYPES
from boc.rerank import alignment, check_metric, dot as dot_module
from boc.rerank.alignment import align, alignments
from boc.rerank.dot import dot, products, reorder
from boc.rerank.storage import restore_rows, round_rows, round_trip, store, store_rows
from boc.types import Hit, Ragged, StoredConcepts
from boc.vectors import Floats, unit_rows
from tests.oracles import picture

ALIGNMENTS = METRICS[1:]
PATHS = ["numpy"] if dot_module._rescore is None else ["compiled", "numpy"]
each_path = pytest.mark.parametrize("path", PATHS)
VECTORS = ["float32", *VECTOR_DTYPES]
FINE = st.floats(
    -1,
    1,
    width=32,
).filter(lambda x: x == 0 or abs(x) > 1e-3)


def sets_of(least: int, most: int, width: int = 5) -> st.SearchStrategy[list[Floats]]:
    """A few concept sets, empty ones and zero rows among them."""
    one = st.integers(0, 4).flatmap(
        lambda m: arrays(
            np.float32,
            (m, width),
            elements=FINE,
        ),
    )
    return st.lists(
        one,
        min_size=least,
        max_size=most,
    )


def cosine(a: Floats, b: Floats) -> float:
    lengths = math.hypot(*a.tolist()) * math.hypot(*b.tolist())
    return (
        sum(
            x * y
            for x, y in zip(
                a.tolist(),
                b.tolist(),
                strict=True,
            )
        )
        / lengths
        if lengths
        else 0.0
    )


def slow_alignment(regions: Floats, words: Floats, metric: str) -> float:
    """The equations of the paper, cell by cell."""
    if not len(regions) or not len(words):
        return 0.0
    mrsw = sum(max(cosine(region, word) for region in regions) for word in words)
    mwsr = sum(max(cosine(region, word) for word in words) for region in regions)
    return {
        "mrsw": mrsw,
        "mwsr": mwsr,
        "symm": mrsw + mwsr,
        "mravgw": mrsw / len(words),
    }[metric]


@each_path
@given(
    query=sets_of(1, 1),
    sets=sets_of(0, 6),
    by_words=st.booleans(),
    metric=st.sampled_from(ALIGNMENTS),
    chosen=st.lists(st.integers(0, 5), max_size=7),
)
def test_alignments_equal_the_slow_loops(
    path: str,
    query: list[Floats],
    sets: list[Floats],
    by_words: bool,
    metric: str,
    chosen: list[int],
):
    some = np.array([i for i in chosen if i < len(sets)], np.int64)
    pairs = [(one, query[0]) if by_words else (query[0], one) for one in sets]
    expected = [
        slow_alignment(
            regions,
            words,
            metric,
        )
        for regions, words in pairs
    ]
    largest = (
        max(
            len(query[0]),
            *map(len, sets),
            1,
        )
        if sets
        else 1
    )
    for dtype, error in (("float16", 1e-3), ("int8", 1e-2)):
        stored = store(Ragged.from_sets(sets, 5), dtype)
        with computing_by(path):
            scores = align(
                query[0],
                stored,
                metric,
                asks_by_words=by_words,
            )
            few = align(
                query[0],
                stored,
                metric,
                asks_by_words=by_words,
                chosen=some,
            )
        assert scores.dtype == np.float32
        assert scores.tolist() == pytest.approx(expected, abs=2 * error * largest)
        assert few.tolist() == pytest.approx(scores[some].tolist(), abs=1e-6)


@pytest.mark.slow
@given(
    query=sets_of(1, 1),
    sets=sets_of(1, 6),
    by_words=st.booleans(),
    metric=st.sampled_from(ALIGNMENTS),
)
def test_a_candidate_is_scored_as_if_it_were_alone(
    query: list[Floats],
    sets: list[Floats],
    by_words: bool,
    metric: str,
):
    together = align(
        query[0],
        store(Ragged.from_sets(sets, 5), "float16"),
        metric,
        asks_by_words=by_words,
    )
    for one, score in zip(
        sets,
        together.tolist(),
        strict=True,
    ):
        alone = align(
            query[0],
            store(Ragged.from_sets([one], 5), "float16"),
            metric,
            asks_by_words=by_words,
        )
        assert alone.tolist() == pytest.approx([score], abs=1e-6)


@pytest.mark.slow
@given(
    words=sets_of(0, 5),
    regions=sets_of(0, 5),
    metric=st.sampled_from(ALIGNMENTS),
)
def test_alignments_of_all_pairs_equal_the_slow_loops_and_those_one_by_one(
    words: list[Floats],
    regions: list[Floats],
    metric: str,
):
    texts = Ragged.from_sets(words, 5)
    pictures = Ragged.from_sets(regions, 5)
    scores = alignments(
        texts,
        pictures,
        metric,
    )
    assert (scores.shape, scores.dtype) == ((len(words), len(regions)), np.float32)
    expected = [
        [
            slow_alignment(
                picture,
                text,
                metric,
            )
            for picture in regions
        ]
        for text in words
    ]
    for row, right in zip(
        scores.tolist(),
        expected,
        strict=True,
    ):
        assert row == pytest.approx(right, abs=1e-5)
    by_words = StoredConcepts(unit_rows(pictures.values), pictures.offsets)
    for row, text in zip(
        scores,
        words,
        strict=True,
    ):
        assert row.tolist() == pytest.approx(
            align(
                text,
                by_words,
                metric,
                asks_by_words=True,
            ).tolist(),
            abs=1e-5,
        )
    by_regions = StoredConcepts(unit_rows(texts.values), texts.offsets)
    for column, sets in zip(
        scores.T,
        regions,
        strict=True,
    ):
        scores = align(
            sets,
            by_regions,
            metric,
            asks_by_words=False,
        )
        assert column.tolist() == pytest.approx(scores.tolist(), abs=1e-5)


@given(
    words=st.integers(1, 9),
    regions=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    width=st.integers(1, 70),
    dtype=st.sampled_from(["float16", "float32", "int8"]),
    sign=st.sampled_from([1, -1]),
)
def test_native_sums_equal_those_of_numpy_at_all_widths(
    words: int,
    regions: list[int],
    width: int,
    dtype: str,
    sign: int,
):
    """Products of one sign show the padding of the last words and regions."""
    rng = default_rng(width)
    ends = np.cumsum(regions)
    query = rng.random((words, width), np.float32)
    rows = sign * 9 * rng.random((ends[-1], width))
    rows = rows.astype(dtype)
    sums = np.empty((2, len(regions)), np.float32)
    dot_module._rescore.align(query, rows, ends - regions, ends, sums)
    products = query @ rows.T.astype(np.float32)
    for i, part in enumerate(np.split(products, ends[:-1], axis=1)):
        right = [part.max(axis=1).sum(), part.max(axis=0).sum()]
        assert sums[:, i].tolist() == pytest.approx(right, rel=1e-5, abs=1e-4)


def test_alignments_of_sets_of_other_widths_or_by_no_metric_are_refused():
    one, other = (Ragged.from_sets([np.ones((2, width), np.float32)], width) for width in (2, 3))
    with pytest.raises(ValueError, match="width"):
        alignments(
            one,
            other,
            "mrsw",
        )
    with pytest.raises(BocError, match="unknown metric 'scan'"):
        alignments(
            one,
            one,
            "scan",
        )


@given(
    rows=arrays(
        np.float32,
        (4, 9),
        elements=st.floats(
            -(2.0**100),
            2.0**100,
            width=32,
        ),
    ),
)
def test_stored_rows_are_of_unit_length_and_int8_is_off_by_half_a_step_at_most(
    rows: Floats,
):
    unit = unit_rows(rows)
    for row, length in zip(
        rows,
        np.linalg.norm(unit.astype(np.float64), axis=1),
        strict=True,
    ):
        assert length == pytest.approx(1 if row.any() else 0, abs=1e-5)
    sets = Ragged(
        rows,
        np.array(
            [
                0,
                3,
                3,
                4,
            ],
        ),
    )
    for dtype in CONCEPT_DTYPES:
        stored = store(sets, dtype)
        assert (stored.values.dtype, stored.offsets.tolist()) == (
            dtype,
            [
                0,
                3,
                3,
                4,
            ],
        )
        error = np.abs(stored.to_ragged().values - unit)
        if stored.scales is not None:
            assert (error <= 0.5001 * stored.scales[:, None] + 1e-7).all()
            largest = np.abs(unit).max(axis=1)
            rounded = np.abs(stored.values).max(axis=1) * stored.scales
            assert np.allclose(rounded, largest, rtol=1e-2)
        else:
            assert (error <= 2**-11).all()


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_products_of_other_widths_are_refused(dtype: str):
    with pytest.raises(ValueError, match="queries have width 2, but rows have width 3"):
        products(np.ones((1, 2), np.float32), np.ones((4, 3), dtype))


@contextmanager
def computing_by(path: str) -> Iterator[None]:
    """By ``boc.rerank._rescore``, or "numpy", without it."""
    with pytest.MonkeyPatch.context() as patch:
        if path == "numpy":
            patch.setattr(
                dot_module,
                "_rescore",
                None,
            )
            patch.setattr(
                alignment,
                "_rescore",
                None,
            )
        yield


@pytest.mark.slow
@pytest.mark.parametrize("dtype", VECTORS)
@each_path
@given(
    width=st.integers(1, 70) | st.sampled_from([384, 1000, 1024]),
    n=st.integers(1, 20),
    data=st.data(),
)
def test_chosen_rows_are_scored_within_the_bound_and_as_if_alone(
    path: str,
    dtype: str,
    width: int,
    n: int,
    data: st.DataObject,
):
    rng = default_rng(data.draw(st.integers(0, 999)))
    vectors = store_rows(rng.standard_normal((n, width)).astype(np.float32), dtype)
    query = rng.standard_normal(width).astype(np.float32)
    chosen = np.array(data.draw(st.lists(st.integers(0, n - 1), max_size=30)), np.int64)
    with computing_by(path):
        every = dot(query, vectors)
        some = dot(
            query,
            vectors,
            chosen,
        )
        strided = dot(
            query,
            np.repeat(
                vectors,
                2,
                axis=0,
            )[::2],
            chosen,
        )
        alone = [
            dot(
                query,
                vectors,
                np.array([i]),
            )[0]
            for i in chosen
        ]
    numbers = restore_rows(vectors).astype(np.float64)
    exact = numbers @ query.astype(np.float64)
    sums = np.abs(numbers) @ np.abs(query.astype(np.float64))
    assert every.dtype == some.dtype == np.float32
    tolerance = (width / 4 + 5) * 2.0**-24 if path != "numpy" else 1e-6 * width**0.5
    assert (np.abs(every - exact) <= tolerance * sums).all()
    if path != "numpy":
        assert some.tolist() == every[chosen].tolist() == alone
    np.testing.assert_allclose(
        some,
        every[chosen],
        atol=2e-6 * sums.max(),
    )
    np.testing.assert_allclose(
        strided,
        some,
        atol=2e-6 * sums.max(),
    )


@pytest.mark.parametrize(
    "width",
    [
        1,
        5,
        64,
        83,
    ],
)
@pytest.mark.parametrize("path", [path for path in PATHS if path != "numpy"])
def test_every_half_is_widened_exactly(path: str, width: int):
    """Subnormals, infinities and NaN too, in whichever lane they lie."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    for place in {0, width // 2, width - 1}:
        rows = np.zeros((len(halves), width), np.float16)
        rows[:, place] = halves
        with computing_by(path):
            column = dot(np.eye(width, dtype=np.float32)[place], rows)
        np.testing.assert_array_equal(column, halves.astype(np.float32))


@pytest.mark.parametrize(
    "width",
    [
        1,
        5,
        64,
        83,
    ],
)
@each_path
def test_every_byte_is_widened_exactly(path: str, width: int):
    whole = np.arange(-128, 128)
    scales = np.float32(
        [
            1,
            0.5,
            0,
            3,
            np.nan,
            2.0**-120,
        ],
    )
    for place in {0, width // 2, width - 1}:
        rows = np.zeros((len(whole) * len(scales), width + 4), np.uint8)
        rows[:, place] = np.tile(whole, len(scales)).astype(np.uint8)
        rows[:, width:] = np.repeat(scales, len(whole))[:, None].view(np.uint8)
        with computing_by(path):
            column = dot(np.eye(width, dtype=np.float32)[place], rows)
        np.testing.assert_array_equal(column, np.outer(scales, whole).ravel().astype(np.float32))


FLOATS = (
    st.floats(
        -1,
        1,
        width=32,
    )
    | st.floats(
        -(2.0**100),
        2.0**100,
        width=32,
    )
    | st.floats(width=32)
)


@given(
    rows=arrays(
        np.float32,
        st.tuples(st.integers(0, 4), st.integers(1, 9)),
        elements=FLOATS,
    ),
)
def test_8_bits_are_those_of_the_slow_loop(rows: Floats):
    whole, scales = round_rows(rows)
    values = round_trip(rows, "int8")
    assert (whole.dtype, scales.dtype, values.dtype) == (np.int8, np.float32, np.float32)
    largest = float(np.finfo(np.float32).max)
    for row, numbers, scale, again in zip(
        rows.tolist(),
        whole.tolist(),
        scales.tolist(),
        values.tolist(),
        strict=True,
    ):
        most = max(abs(x) for x in row)
        if not all(abs(x) < largest for x in row):  # nor are comparisons with NaN true
            assert np.isnan(again).all()
        elif most < 2.0**-119:
            assert (scale, again) == (0, [0] * len(row)) or most > 2.0**-119 * 127 / 128
        elif scale == 0:
            assert most < 2.0**-119
        else:
            least = min(abs(x) for x in row if x)
            multiples = [x / least if most < 200 * least else 0.5 for x in row]
            near = all(abs(m - round(m)) < 1e-3 and -129 < m < 127.5 for m in multiples)
            exact = near and most > 1.5 * least
            assert scale == pytest.approx(least if exact else most / 127, rel=2e-7)
            for x, number, back in zip(
                row,
                numbers,
                again,
                strict=True,
            ):
                assert -128 <= number <= 127
                assert back == np.float32(number) * np.float32(scale)
                assert abs(x - number * scale) <= scale / 2 * (1 + 1e-5)


@given(
    rows=arrays(
        np.float32,
        (3, 5),
        elements=FLOATS.filter(lambda x: abs(x) < 1e38),
    ),
)
def test_rows_of_8_bits_are_stored_as_they_were_again(rows: Floats):
    once = store_rows(rows, "int8")
    assert once.shape == (3, 5 + 4)
    assert store_rows(restore_rows(once), "int8").tobytes() == once.tobytes()


@given(rows=arrays(np.int8, (3, 40), elements=st.integers(-128, 127)))
def test_unit_rows_of_an_8_bit_file_are_stored_without_loss(rows):
    rows[:, :2] = [[1, 2]]
    whole, _ = round_rows(unit_rows(rows.astype(np.float32)))
    np.testing.assert_array_equal(whole, rows)


def test_what_is_stored_whole_is_not_copied():
    rows = np.ones((2, 3), np.float32)
    assert store_rows(rows, "float32") is rows


@pytest.mark.parametrize("dtype", VECTORS)
@each_path
@pytest.mark.parametrize(
    "row",
    [
        -1,
        4,
        2**62,
        -(2**63),
    ],
)
def test_a_row_that_is_not_there_is_refused(path: str, row: int, dtype: str):
    with computing_by(path), pytest.raises(IndexError):
        dot(
            np.ones(3, np.float32),
            store_rows(np.ones((4, 3), np.float32), dtype),
            np.array([0, row]),
        )


@pytest.mark.parametrize("dtype", VECTORS)
@each_path
def test_dot_with_rows_of_another_width_is_refused(path: str, dtype: str):
    for width in (1, 2, 6, 7):
        with computing_by(path), pytest.raises(ValueError, match="width"):
            dot(
                np.ones(width, np.float32),
                store_rows(np.ones((4, 3), np.float32), dtype),
                np.array([0]),
            )


@pytest.mark.skipif(dot_module._rescore is None, reason="not built here")
@pytest.mark.parametrize(
    ("query", "rows", "chosen", "out"),
    [
        (np.ones(3), np.ones((4, 3), np.float16), None, np.ones(4, np.float32)),
        (np.ones((3, 1), np.float32), np.ones((4, 3), np.float16), None, np.ones(4, np.float32)),
        (np.ones(3, np.float32), np.ones((4, 3)), None, np.ones(4, np.float32)),
        (np.ones(3, np.float32), np.ones((4, 6), np.float16)[:, ::2], None, np.ones(4, np.float32)),
        (np.ones(3, np.float32), np.ones((4, 3), ">f2"), None, np.ones(4, np.float32)),
        (np.ones(3, np.float32), np.ones((4, 3), np.float16), None, np.ones(5, np.float32)),
        (
            np.ones(3, np.float32),
            np.ones((4, 3), np.float16),
            np.ones(4, np.int32),
            np.ones(4, np.float32),
        ),
        (
            np.ones(3, np.float32),
            np.ones((4, 3), np.float16),
            np.ones(4, np.int64),
            np.ones(3, np.float32),
        ),
    ],
)
def test_arrays_that_do_not_fit_are_refused_before_they_are_read(
    query: Any,
    rows: Any,
    chosen: Any,
    out: Any,
):
    with pytest.raises(ValueError, match=r"must have|for|contiguous"):
        dot_module._rescore.dot(
            query,
            rows,
            out,
            *([] if chosen is None else [chosen]),
        )
    assert (out == 1).all()


@pytest.mark.skipif(dot_module._rescore is None, reason="not built here")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({0: np.ones((2, 4), np.float32)}, "another width"),
        ({1: np.ones((6, 3))}, "rows must have"),
        ({2: np.array([-1, 2])}, "within their rows"),
        ({3: np.array([2, 7])}, "within their rows"),
        ({2: np.array([3, 2])}, "within their rows"),
        ({3: np.array([2])}, "ends for another"),
        ({4: np.empty((2, 3), np.float32)}, "sums for another"),
        ({5: np.ones(5, np.float32)}, "scales for another"),
    ],
)
def test_sets_that_do_not_fit_are_refused(change: dict[int, Any], message: str):
    arrays = [
        np.ones((2, 3), np.float32),
        np.ones((6, 3), np.float16),
        np.array([0, 2]),
        np.array([2, 6]),
        np.empty((2, 2), np.float32),
        np.ones(6, np.float32),
    ]
    for i, array in change.items():
        arrays[i] = array
    with pytest.raises(ValueError, match=message):
        dot_module._rescore.align(*arrays)


@each_path
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_an_array_may_name_the_byte_order_of_this_machine(dtype: str, path: str):
    """As those do that h5py maps."""
    rng = default_rng(0)
    vectors = rng.random((4, 3)).astype(dtype)
    query = rng.random(3, np.float32)
    chosen = np.array([3, 0])
    order = "<" if sys.byteorder == "little" else ">"
    named = [array.view(array.dtype.newbyteorder(order)) for array in (query, vectors, chosen)]
    assert memoryview(named[1]).format == order + vectors.dtype.char
    with computing_by(path):
        assert (
            dot(*named).tolist()
            == dot(
                query,
                vectors,
                chosen,
            ).tolist()
        )


@given(
    data=st.data(),
    k=st.integers(1, 9),
    keys=st.lists(
        st.text("abé", min_size=1),
        max_size=7,
        unique=True,
    ),
)
def test_hits_are_sorted_by_their_new_score_then_id(
    data: st.DataObject,
    k: int,
    keys: list[str],
):
    scores = data.draw(
        arrays(
            np.float32,
            len(keys),
            elements=st.integers(-2, 2).map(np.float32),
        ),
    )
    hits = [Hit(picture(key), float(i)) for i, key in enumerate(keys)]
    expected = sorted(
        zip(
            scores.tolist(),
            keys,
            strict=True,
        ),
        key=lambda pair: (-pair[0], pair[1]),
    )[:k]
    assert [
        (hit.score, hit.item)
        for hit in reorder(
            hits,
            scores,
            k,
        )
    ] == [(s, picture(key)) for s, key in expected]
    assert [hit.score for hit in hits] == list(range(len(keys)))


@pytest.mark.parametrize("rows", [1, 3])
def test_scores_of_another_number_are_refused(rows: int):
    hits = [Hit(picture("a"), 1.0), Hit(picture("b"), 1.0)]
    with pytest.raises(ValueError, match="argument"):
        reorder(
            hits,
            np.ones(rows, np.float32),
            5,
        )


def test_an_unknown_metric_is_refused_and_the_command_line_knows_them_all():
    with pytest.raises(BocError, match="unknown metric 'cosine' for re-ranking; known: dot, mrsw"):
        check_metric("cosine")
    of = {
        index_command: {"rerank": METRICS, "concepts": CONCEPT_DTYPES},
        evaluate_command: {"score": METRICS},
    }
    for command, options in of.items():
        for option in command.params:
            if option.name in options:
                assert tuple(option.type.choices) == options.pop(option.name)
        assert not options
