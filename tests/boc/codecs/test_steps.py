"""The codec steps against slow loops, and whole codes against the papers' text."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st
from numpy.random import default_rng
from scipy import sparse
from sklearn.exceptions import NotFittedError

from bench.paper import variants
from bench.paper.ranking import document_frequencies, postings_read
from boc.clustering.codebook import Codebook
from boc.codecs import (
    BitQuantizer,
    Center,
    CReLU,
    DeepPermutation,
    RandomRotation,
    ScalarQuantizer,
    SurrogateCodec,
    TopZ,
    UnitNorm,
    concept_code,
    global_code,
)
from boc.codecs.base import Step
from boc.codecs.frequencies import BLOCK
from boc.errors import BocError
from boc.types import Embeddings, Identity, Ragged
from boc.vectors import Floats
from tests.oracles import assert_canonical, same_matrix, term_matrices, tied_vectors

VECTORS = tied_vectors((1, 6))


def rectified(x: Floats) -> list[float]:
    return [max(float(c), 0.0) for c in [*x, *-x]]


def largest(x: list[float], z: int) -> list[int]:
    """Columns of the at most z largest positive entries, ties to the lower column."""
    return [j for j in sorted(range(len(x)), key=lambda j: (-x[j], j))[:z] if x[j] > 0]


@pytest.mark.slow
@settings(max_examples=50)
@given(images=tied_vectors((1, 6), 4), texts=tied_vectors((1, 6), 4))
def test_center_subtracts_mean_of_modality(
    images: Floats,
    texts: Floats,
):
    labels = ["image"] * len(images) + ["text"] * len(texts)
    step = Center().fit(np.concatenate([images, texts]), labels)
    means = {"image": slow_mean(images), "text": slow_mean(texts)}
    means["neither"] = [
        (a + b) / 2
        for a, b in zip(
            means["image"],
            means["text"],
            strict=True,
        )
    ]
    for modality, mean in means.items():
        centred = step.transform(images, modality)
        assert centred.dtype == np.float32
        for row, x in zip(
            centred,
            images,
            strict=True,
        ):
            np.testing.assert_allclose(
                row,
                [
                    float(a) - b
                    for a, b in zip(
                        x,
                        mean,
                        strict=True,
                    )
                ],
                atol=1e-6,
            )


def slow_mean(X: Floats) -> list[float]:
    """The mean; zero for equal rows, of which centring would leave nothing."""
    if all(np.array_equal(row, X[0]) for row in X):
        return [0.0] * X.shape[1]
    return [math.fsum(float(x[j]) for x in X) / len(X) for j in range(X.shape[1])]


@given(width=st.integers(1, 12), seed=st.integers(0, 2**32))
def test_rotation_is_orthogonal(width: int, seed: int):
    X = default_rng(seed).standard_normal((3, width)).astype(np.float32)
    step = RandomRotation(seed).fit(X)
    R = step.rotation_
    np.testing.assert_allclose(
        R @ R.T,
        np.eye(width),
        atol=1e-5,
    )
    np.testing.assert_allclose(
        step.transform(X),
        X @ R,
        atol=1e-5,
    )
    assert np.array_equal(R, RandomRotation(seed).fit(X + 1).rotation_)
    if width > 1:
        assert not np.allclose(R, RandomRotation(seed + 1).fit(X).rotation_)


@pytest.mark.slow
@given(X=VECTORS)
def test_crelu_clips_both_halves(X: Floats):
    halves = CReLU().fit_transform(X)
    assert halves.dtype == np.float32
    assert halves.tolist() == [rectified(x) for x in X]


@pytest.mark.slow
@settings(max_examples=50)
@given(X=VECTORS, data=st.data())
def test_topz_keeps_largest(X: Floats, data: st.DataObject):
    z, query_z = (data.draw(st.none() | st.integers(1, X.shape[1])) for _ in "dq")
    for rows in (X, sparse.csr_array(X)):
        step = TopZ(z, query_z).fit(rows)
        budgets = {"documents": z or X.shape[1], "queries": query_z or z or X.shape[1]}
        for side, budget in budgets.items():
            terms = getattr(step, f"encode_{side}")(rows, "image")
            for i, x in enumerate(X.tolist()):
                expected = {j: x[j] for j in largest(x, budget)}
                row = slice(terms.indptr[i], terms.indptr[i + 1])
                assert (
                    dict(
                        zip(
                            terms.indices[row].tolist(),
                            terms.data[row].tolist(),
                            strict=True,
                        ),
                    )
                    == expected
                )
        assert same_matrix(step.transform(rows), step.encode_documents(rows, "text"))


def test_topz_across_blocks():
    X = (
        default_rng(0)
        .integers(
            -3,
            4,
            (BLOCK + 5, 4),
        )
        .astype(np.float32)
    )
    terms = TopZ(2).fit(X).transform(X).toarray()
    for i in [
        0,
        BLOCK - 1,
        BLOCK,
        BLOCK + 4,
    ]:
        assert np.flatnonzero(terms[i]).tolist() == sorted(largest(X[i].tolist(), 2))
    assert terms.shape == X.shape


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (TopZ(0), "z must be between 1 and the number of terms, 6; got 0"),
        (TopZ(7, 2), "z must be between 1 and the number of terms, 6; got 7"),
        (TopZ(2, 0), "query_z must be between 1 and the number of terms, 6; got 0"),
        (TopZ(1, 7), "query_z must be between 1 and the number of terms, 6; got 7"),
        *(
            (ScalarQuantizer(scale), f"scale must be a number greater than 0, got {scale}")
            for scale in (0, -1, math.inf, math.nan)
        ),
        *(
            (BitQuantizer(bits), f"bits must be between 1 and 15, got {bits}")
            for bits in (0, 16, -1)
        ),
    ],
)
def test_parameters_out_of_range(step: Step, message: str):
    with pytest.raises(ValueError, match=f"^{message}$"):
        step.fit(np.ones((2, 6)))


@pytest.mark.slow
@given(X=VECTORS)
def test_unit_norm_divides_by_length(X: Floats):
    for rows in (X, sparse.csr_array(X)):
        for row, x in zip(
            UnitNorm().fit_transform(rows).toarray(),
            X.tolist(),
            strict=True,
        ):
            length = math.sqrt(sum(c * c for c in x)) or 1.0
            np.testing.assert_allclose(
                row,
                [c / length for c in x],
                rtol=1e-6,
            )


@pytest.mark.slow
@given(X=VECTORS, scale=st.integers(1, 5000) | st.floats(0.25, 5000))
@example(
    X=np.array(
        [
            [
                0.29,
                1.0,
                -0.5,
                0.0,
            ],
        ],
        np.float32,
    ),
    scale=100,
)
def test_scalar_frequencies_are_floors(X: Floats, scale: float):
    for rows in (X, sparse.csr_array(X)):
        terms = ScalarQuantizer(scale).fit_transform(rows)
        assert_canonical(terms, X.shape)
        assert terms.toarray().tolist() == [
            [max(math.floor(scale * float(c)), 0) for c in x] for x in X
        ]


def test_frequency_beyond_int32():
    step = ScalarQuantizer(2.0**31).fit(np.ones((1, 1)))
    with pytest.raises(ValueError, match=r"2\.15e\+09 exceeds 2\*\*31 - 1"):
        step.transform(np.ones((1, 1)))
    assert step.transform(np.full((1, 1), 0.5)).toarray().tolist() == [[2**30]]


@pytest.mark.slow
@settings(max_examples=50)
@given(
    X=VECTORS,
    later=VECTORS,
    bits=st.integers(1, 15),
)
def test_bit_frequencies_are_shares_of_peak(
    X: Floats,
    later: Floats,
    bits: int,
):
    for rows in (X, sparse.csr_array(X)):
        step = BitQuantizer(bits).fit(rows)
        top = 2**bits - 1
        peak = max(float(X.max()), 0.0)
        terms = step.transform(rows)
        assert_canonical(terms, X.shape)
        for tf, v in zip(
            terms.toarray().ravel().tolist(),
            X.ravel().tolist(),
            strict=True,
        ):
            if v <= 0:
                assert tf == 0
            else:
                assert 1 <= tf <= top
                assert tf - 1 - 1e-6 <= top * v / peak <= tf + 1e-6
                assert tf == top or v < peak
    if later.shape[1] == X.shape[1]:
        terms = step.transform(later)
        assert_canonical(terms, later.shape)
        assert np.array_equal(terms.toarray() > 0, later > 0)
        assert terms.data.max(initial=0) <= top


@pytest.mark.slow
@given(X=VECTORS)
def test_permutation_frequencies_are_ranks(X: Floats):
    m = X.shape[1]
    terms = DeepPermutation().fit_transform(X)
    assert_canonical(terms, X.shape)
    for row, x in zip(
        terms.toarray(),
        X.tolist(),
        strict=True,
    ):
        order = sorted(range(m), key=lambda j: (-x[j], j))
        for rank, j in enumerate(order):
            assert row[j] == m - rank


@settings(max_examples=50)
@given(X=tied_vectors((1, 6)), data=st.data())
def test_permutation_variants_count_ranks(X: Floats, data: st.DataObject):
    """Kept: z ... 1; offset: 2z ... z + 1; printed: 2d ... 2d - z + 1 of all components, zeros by
    index."""
    width = 2 * X.shape[1]
    z = data.draw(st.integers(1, width))
    readings = {
        "kept": global_code(
            "permutation",
            z=z,
            query_z=z,
            plain=True,
        ),
        "offset": variants.offset_ranks(z, z),
        "printed": variants.printed_order(
            "permutation",
            z,
            z,
        ),
    }
    for reading, codec in readings.items():
        codec.fit(Embeddings("image", X))
        terms = codec.encode_documents(Embeddings("image", X))
        assert_canonical(terms, (len(X), width))
        assert same_matrix(terms, codec.encode_queries(Embeddings("text", X)))
        for row, x in zip(
            terms.toarray().tolist(),
            X,
            strict=True,
        ):
            v = rectified(x)
            order = sorted(range(width), key=lambda j: (-v[j], j))[:z]  # BoC, eq. 1
            ranked = order if reading == "printed" else [j for j in order if v[j] > 0]
            first = {"kept": len(ranked), "offset": 2 * len(ranked), "printed": width}[reading]
            assert {j: f for j, f in enumerate(row) if f} == {
                j: first - rank for rank, j in enumerate(ranked)
            }


@settings(max_examples=50)
@given(seed=st.integers(0, 10**6), data=st.data())
def test_printed_scalar_code_scores_cosines(seed: int, data: st.DataObject):
    X = unit(seed, 5)
    width = 2 * X.shape[1]
    z, query_z = (data.draw(st.integers(1, width)) for _ in "dq")
    codec = variants.printed_order(
        "scalar",
        z,
        query_z,
    ).fit(Embeddings("image", X))
    scores = (
        codec.encode_queries(Embeddings("text", X))
        @ codec.encode_documents(Embeddings("image", X)).T
    ).toarray()

    def printed(x, budget):
        floors = [math.floor(1000 * float(value)) for value in rectified(x)]
        top = sorted(range(width), key=lambda j: (-floors[j], j))[:budget]
        return [floors[j] if j in top else 0 for j in range(width)]

    for q, row in zip(
        X,
        scores.tolist(),
        strict=True,
    ):
        for d, score in zip(
            X,
            row,
            strict=True,
        ):
            a = printed(q, query_z)
            b = printed(d, z)
            cosine = (
                sum(
                    x * y
                    for x, y in zip(
                        a,
                        b,
                        strict=True,
                    )
                )
                / math.hypot(*a)
                / math.hypot(*b)
            )
            assert score / 10_000**2 == pytest.approx(cosine, abs=width * 1e-4)


SIGNED = ("scalar", "bits", "permutation")  # codes whose terms are signed components


def unit(seed: int, rows: int, width: int = 8) -> Floats:
    X = default_rng(seed).standard_normal((rows, width)).astype(np.float32)
    return X / np.linalg.norm(
        X,
        axis=1,
        keepdims=True,
    )


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize(
    ("code", "last"),
    [
        ("scalar", [UnitNorm(), ScalarQuantizer()]),
        ("bits", [UnitNorm(), BitQuantizer(3)]),
        ("permutation", [DeepPermutation()]),
    ],
)
def test_code_is_its_chain(code: str, last: list[Step], plain: bool):
    chain = [] if plain else [Center(), RandomRotation()]
    chain += [CReLU(), TopZ(5, 9), *last]
    codec = global_code(
        code,
        z=5,
        query_z=9,
        plain=plain,
        bits=3,
    )
    assert codec.config() == SurrogateCodec(chain).config()


@pytest.mark.slow
@given(X=tied_vectors((1, 6), 5), Q=tied_vectors((1, 4), 5))
def test_shifted_crelu_adds_constant(X: Floats, Q: Floats):
    step = variants.ShiftedCReLU().fit(X)
    scores = step.encode_queries(Q, "text") @ step.encode_documents(X, "image").T
    shift = max(abs(float(x)) for x in X.ravel())
    for i, q in enumerate(Q):
        for j, x in enumerate(X):
            wanted = sum(
                float(a) * float(b)
                for a, b in zip(
                    q,
                    x,
                    strict=True,
                )
            ) + shift * sum(abs(float(a)) for a in q)
            assert scores[i, j] == pytest.approx(wanted, abs=1e-5)


def test_restore_of_older_index():
    book = Codebook(
        unit(4, 3),
        Identity(
            "",
            "",
            8,
        ),
        (),
        {},
        3,
    )
    codec = concept_code(book).fit(
        Embeddings(
            "image",
            unit(0, 5),
            Ragged(unit(1, 5), np.arange(6)),
        ),
    )
    config = codec.config()
    arrays = codec.arrays()
    config["steps"][0]["params"] |= {"sigma": None, "seed": 0, "drop_stopwords": False}
    older = {name: array for name, array in arrays.items() if name not in ("0.means_", "0.axes_")}
    again = SurrogateCodec.restore(
        {**config, "chains": [3]},
        {**older, "0.sigma_": np.ones(1, np.float32)},
    )
    some = Embeddings(
        "text",
        unit(2, 3),
        Ragged(
            unit(3, 4),
            np.array(
                [
                    0,
                    1,
                    1,
                    4,
                ],
            ),
        ),
    )
    assert same_matrix(again.encode_documents(some), codec.encode_documents(some))


@pytest.mark.parametrize("code", SIGNED)
def test_no_rows(code: str):
    nothing = Embeddings("text", np.empty((0, 8), np.float32))
    images = Embeddings("image", unit(3, 9))
    codec = global_code(
        code,
        z=4,
        query_z=6,
    ).fit(nothing, images)
    for terms in (codec.encode_documents(nothing), codec.encode_queries(nothing)):
        assert_canonical(terms, (0, 16))
    alone = global_code(
        code,
        z=4,
        query_z=6,
    ).fit(images)
    assert same_matrix(codec.encode_documents(images), alone.encode_documents(images))


@pytest.mark.slow
@given(documents=term_matrices((6, 5), 9), queries=term_matrices((3, 5), 9))
def test_postings_read_counts_shared_terms(
    documents: sparse.csr_array,
    queries: sparse.csr_array,
):
    D = documents.toarray()
    Q = queries.toarray()
    frequencies = document_frequencies(documents)
    assert frequencies.tolist() == [sum(int(d[j] > 0) for d in D) for j in range(5)]
    met = sum(int(q[j] > 0 and d[j] > 0) for q in Q for d in D for j in range(5))
    assert postings_read(frequencies, queries) == pytest.approx(met / len(Q))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"steps": [("Magic", {})]},
            r"unknown codec step 'Magic' \(known: Center, .*\); upgrade boc",
        ),
        (
            {"steps": [("Center", {})]},
            r"codec array 0\.\w+ of Center is missing; rebuild the index",
        ),
        (
            {"steps": [("SoftAssignment", {"clusters": 3, "similarity": "excess"})]},
            "similarity=excess of SoftAssignment; .* another code",
        ),
        (
            {"steps": [("SoftAssignment", {"clusters": 3, "sigma": 2.0})]},
            "sigma=2.0 of SoftAssignment; .* with another code",
        ),
    ],
)
def test_restore_errors(config: dict[str, Any], message: str):
    steps = [{"name": name, "params": params} for name, params in config["steps"]]
    with pytest.raises(BocError, match=message):
        SurrogateCodec.restore({**config, "steps": steps, "n_terms": 4}, {"widths": np.array([4])})


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: Center().fit(np.ones((3, 2)), ["image", "text"]),
            ValueError,
            r"each of the 3 rows, got shape \(2,\)",
        ),
        (
            lambda: global_code("magic"),
            BocError,
            "unknown code 'magic'; known: scalar, bits, permutation, dictionary",
        ),
        (
            lambda: global_code().encode_documents(Embeddings("image", unit(0, 1))),
            NotFittedError,
            "call fit before",
        ),
        (
            lambda: global_code().fit(Embeddings("image", unit(0, 0))),
            BocError,
            "there are no vectors from which to learn a code",
        ),
        (
            lambda: postings_read(np.ones(4, int), sparse.csr_array((2, 5))),
            BocError,
            "2 queries over 5 terms, lists of 4",
        ),
        (
            lambda: postings_read(np.ones(4, int), sparse.csr_array((0, 4))),
            BocError,
            "0 queries over 4 terms",
        ),
    ],
)
def test_errors_name_the_rule(
    call: Callable[[], object],
    error: type[Exception],
    message: str,
):
    with pytest.raises(error, match=message):
        call()
