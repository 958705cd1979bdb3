"""Verdicts on the claims of a paper: they follow from differences and errors; and the authors' own
order of steps."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from bench.paper import variants
from bench.paper.claims import HELD, LEVEL, NOT, SAME, TWO, UNDECIDED, Evidence, verdicts
from bench.report.rows import Rows, read
from boc.codecs import global_code
from boc.types import Embeddings

ROWS = Path(__file__).parents[2] / "docs" / "rows"
READ = ("table1", "sparsity-tern", "sparsity-teran")


@given(
    st.floats(-50, 50),
    st.floats(0.01, 9),
    st.floats(0, 1),
    st.booleans(),
)
def test_a_verdict_follows_from_support_and_p(
    supported: float,
    error: float,
    p: float,
    tolerant: bool,
):
    evidence = Evidence(
        supported,
        error,
        supported,
        "",
        tolerant,
    )
    verdict = evidence.verdict(p)
    if p >= LEVEL:
        assert verdict == (HELD if tolerant else UNDECIDED)
    else:
        assert verdict == (HELD if supported > 0 else NOT)
    assert (
        0
        <= evidence.p
        <= Evidence(
            supported / 2,
            error,
            supported / 2,
            "",
        ).p
        <= 1
    )


def test_the_published_verdicts_are_those_of_the_published_rows():
    rows = [
        [str("" if cell is None else cell) for cell in row]
        for row in verdicts([read(ROWS / f"{n}.csv") for n in READ])
    ]
    assert rows == [list(row.values()) for row in read(ROWS / "claims.csv").table]


def test_readings_with_different_verdicts_make_the_paper_inconsistent():
    def table(signed):
        lines = []
        for sign, difference in (
            ("", 40.0),
            (", 1/(1-D) with its sign", signed),
        ):
            one = f"SUM-aggr W-cont.{sign}"
            other = f"MAX-aggr W-cont.{sign}"
            sums = (
                (one, "", 300.0),
                (other, "", 300.0 - difference),
                (one, other, difference),
            )
            empty = {
                f"paper {d} {s} R@{k}": ""
                for d in ("coco", "flickr30k")
                for s in ("image", "sentence")
                for k in (1, 5, 10)
            }
            lines += [
                {
                    "model": m,
                    "minus": n,
                    "sum": str(s),
                    "sum +-": "1",
                    **empty,
                }
                for m, n, s in sums
            ]
        return Rows(
            {"script": "table1.py"},
            lines,
            name="made",
        )

    assert [row[3] for row in verdicts([table(0)])] == [NOT, HELD, TWO]
    assert [row[3] for row in verdicts([table(35)])] == [NOT, NOT]
    assert [row[3] for row in verdicts([table(6 * SAME + 1)])] == [NOT, HELD, TWO]


@pytest.mark.parametrize("z", [1, 4, 7])
def test_codes_are_those_of_the_authors_package(z: int):
    """str-encoders ranks what is kept k ... 1, and quantises what is kept without a second norm."""
    X = np.random.default_rng(z).standard_normal((50, 24)).astype(np.float32)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    both = np.concatenate(
        [np.maximum(X, 0), np.maximum(-X, 0)],
        axis=1,
    )
    order = np.argsort(-both, axis=1)[:, :z]
    kept = np.take_along_axis(both, order, axis=1)
    items = Embeddings("image", X)
    for codec, values in (
        (
            global_code(
                "permutation",
                z=z,
                query_z=z,
                plain=True,
            ),
            np.tile(z - np.arange(z), (50, 1)),
        ),
        (
            variants.authors_scalar(z, z),
            np.trunc(1000 * kept),
        ),
    ):
        expected = np.zeros_like(both)
        np.put_along_axis(
            expected,
            order,
            values,
            axis=1,
        )
        terms = codec.fit(items).encode_documents(items).toarray()
        assert np.array_equal(terms, expected)
