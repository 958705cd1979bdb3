"""ROUGE-L against the quadratic dynamic programme; relevance files."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from boc.errors import BocError
from boc.evaluate.relevance import read_relevance, rouge_l_matrix
from boc.vectors import Floats

# Spaces, so that empty tokens occur; capitals, to be lowered; few letters, so that much is common.
SENTENCE = st.text("ab AB", max_size=9) | st.lists(
    st.sampled_from("abcdeA"),
    max_size=150,
).map(
    " ".join,
)


def slow_lcs(a: list[str], b: list[str]) -> int:
    """The dynamic programme over prefixes."""
    rows = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            rows[i + 1][j + 1] = rows[i][j] + 1 if x == y else max(rows[i][j + 1], rows[i + 1][j])
    return rows[-1][-1]


def slow_rouge_l(candidate: str, references: list[str]) -> float:
    c = candidate.lower().split(" ")
    refs = [r.lower().split(" ") for r in references]
    precision = max(slow_lcs(c, r) / len(c) for r in refs)
    recall = max(slow_lcs(c, r) / len(r) for r in refs)
    if precision == 0 or recall == 0:
        return 0.0
    return (1 + 1.2**2) * precision * recall / (recall + 1.2**2 * precision)


@pytest.mark.parametrize(
    ("candidate", "references", "expected"),
    [
        # P = 2/3 from the first, R = 1 from the second: maxima of different references.
        (
            "a dog runs",
            ["a dog sits on grass", "runs"],
            2.44 * (2 / 3) / (1 + 1.44 * 2 / 3),
        ),
        (
            "a ",
            ["a"],
            2.44 * (1 / 2) / (1 + 1.44 / 2),
        ),  # the empty token behind the space counts
        ("", [""], 1),
    ],
)
def test_rouge_l_worked_by_hand(candidate: str, references: list[str], expected: float):
    texts = [*references, candidate]
    owners = np.array([*[0] * len(references), 1])
    assert rouge_l_matrix(texts, owners)[-1, 0] == pytest.approx(expected)


@pytest.mark.slow
@given(
    data=st.data(),
    block=st.integers(1, 3),
    n=st.integers(1, 4),
)
def test_the_matrix_is_rouge_l_cell_by_cell(data: st.DataObject, block: int, n: int):
    owners = np.array(
        [
            *range(n),
            *data.draw(st.lists(st.integers(0, n - 1), max_size=4)),
        ],
    )
    owners = owners[data.draw(st.permutations(range(len(owners))))]
    texts = data.draw(
        st.lists(
            SENTENCE,
            min_size=len(owners),
            max_size=len(owners),
        ),
    )
    cells = []
    found = rouge_l_matrix(
        texts,
        owners,
        block=block,
        tick=cells.append,
    )
    assert found.dtype == np.float32
    assert found.shape == (len(texts), n)
    assert sum(cells) == found.size
    for c, text in enumerate(texts):
        for i in range(n):
            references = [t for t, owner in zip(texts, owners.tolist(), strict=True) if owner == i]
            assert found[c, i] == np.float32(slow_rouge_l(text, references))
    assert (found[np.arange(len(texts)), owners] == 1).all()


@pytest.mark.slow
def test_captions_of_mixed_lengths():
    rng = np.random.default_rng(0)
    texts = [
        " ".join(rng.choice(list("abc"), size)) for size in (1, 63, 64, 65, 127, 128, 129, 300)
    ]
    texts += [
        "y x",
        " ".join(["x", *"z" * 128, "y"]),
    ]  # carried through a word of 64 that nothing matches
    found = rouge_l_matrix(texts, np.arange(len(texts)))
    expected = [[slow_rouge_l(a, [b]) for b in texts] for a in texts]
    np.testing.assert_array_equal(found, np.float32(expected))


def test_owners_that_do_not_fit_are_refused():
    with pytest.raises(BocError, match="got 2 captions and 1 owners"):
        rouge_l_matrix(["a", "b"], np.array([0]))
    with pytest.raises(BocError, match="picture 1 has no caption"):
        rouge_l_matrix(
            ["a", "b"],
            np.array([0, 2]),
        )


def some_relevance() -> Floats:
    return np.array(
        [[1, 0.5, 0], [0.25, 1, np.nan]],
        dtype=np.float32,
    )


def test_read_relevance(tmp_path: Path):
    path = tmp_path / "spice.npy"
    some_relevance().tofile(path)
    assert path.read_bytes() == b"".join(
        np.float32(x).astype("<f4").tobytes() for x in some_relevance().ravel()
    )
    found = read_relevance(path, 2)
    assert isinstance(found, np.memmap)
    assert not found.flags.writeable
    np.testing.assert_array_equal(found, some_relevance())
    assert read_relevance(path, 3).shape == (3, 2)


def test_invalid_relevance_files_are_refused(tmp_path: Path):
    path = tmp_path / "r.f32"
    with pytest.raises(BocError, match="cannot be read"):
        read_relevance(path, 2)
    path.write_bytes(b"")
    with pytest.raises(BocError, match="0 bytes are not complete float32 rows for 2 captions"):
        read_relevance(path, 2)
    some_relevance().tofile(path)
    with pytest.raises(BocError, match="24 bytes are not complete float32 rows for 4 captions"):
        read_relevance(path, 4)
    np.save(
        path.with_suffix(".npy"),
        some_relevance(),
        allow_pickle=False,
    )
    with pytest.raises(BocError, match="has a NumPy header"):
        read_relevance(path.with_suffix(".npy"), 2)
    np.full((2, 3), -7, dtype=np.float32).tofile(path)
    with pytest.raises(BocError, match="contains -7, but relevance cannot be negative"):
        read_relevance(path, 2)


@pytest.mark.parametrize(
    "row",
    [0, 1023, 1024, 2047],
)
def test_an_unfilled_cell_is_named_by_its_row(tmp_path: Path, row: int):
    relevance = np.zeros((2048, 2), dtype=np.float32)
    relevance[row, 1] = -1
    relevance.tofile(tmp_path / "r.f32")
    with pytest.raises(BocError, match=rf"missing values \(-1\), the first in row {row};"):
        read_relevance(tmp_path / "r.f32", 2048)
