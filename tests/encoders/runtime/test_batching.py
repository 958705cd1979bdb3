"""Batches through a network: the results of one item at a time, in order, whatever the batch."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, strategies as st

torch = pytest.importorskip("torch")

from boc.errors import EncoderError  # noqa: E402
from boc.types import Runtime  # noqa: E402
from encoders.runtime.batching import in_batches  # noqa: E402

DIM = 3


def encode(batch: Sequence[int]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """An item of length n: the vector (n, n, n), and n rows that count up."""
    vectors = torch.tensor([[float(n)] * DIM for n in batch])
    return vectors, [torch.arange(n * DIM, dtype=torch.float32).reshape(n, DIM) for n in batch]


def assert_one_by_one(
    lengths: Sequence[int],
    vectors: np.ndarray,
    sets: object,
) -> None:
    assert vectors.dtype == np.float32
    assert vectors.shape == (len(lengths), DIM)
    assert len(sets) == len(lengths)
    for i, n in enumerate(lengths):
        one, rows = encode([n])
        assert np.array_equal(vectors[i], one[0].numpy())
        assert np.array_equal(sets[i], rows[0].numpy())


LENGTHS = st.lists(st.integers(0, 6), max_size=12)


@given(lengths=LENGTHS, size=st.integers(1, 5))
def test_batches_keep_input_order(
    lengths: list[int],
    size: int,
):
    seen = []

    def watched(batch):
        seen.append(list(batch))
        return encode(batch)

    assert_one_by_one(
        lengths,
        *in_batches(
            "cpu",
            Runtime(batch=size),
            DIM,
            lengths,
            lengths,
            watched,
        ),
    )
    assert [n for batch in seen for n in batch] == sorted(lengths, reverse=True)
    assert all(len(batch) == size for batch in seen[:-1])


def test_out_of_memory():
    """The words that tell exhaustion from other errors are those torch uses."""

    def greedy(batch):
        torch.empty(1 << 60, dtype=torch.uint8)
        return encode(batch)

    lengths = [2, 7, 3]
    with pytest.raises(EncoderError, match=r"on cpu with 3 items of length up to 7; try "):
        in_batches(
            "cpu",
            Runtime(),
            DIM,
            lengths,
            lengths,
            greedy,
        )


def test_other_errors_are_raised():
    def broken(batch):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="shapes"):
        in_batches(
            "cpu",
            Runtime(),
            DIM,
            [1, 2],
            [1, 2],
            broken,
        )


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_precision_of_matrix_products(precision: str):
    torch.manual_seed(0)
    layer = torch.nn.Linear(8, DIM)
    inputs = list(torch.randn(5, 8))
    seen = set()

    def project(batch):
        made = layer(torch.stack(list(batch)))
        seen.add((made.dtype, torch.is_inference_mode_enabled()))
        return made, list(made[:, None])

    vectors, sets = in_batches(
        "cpu",
        Runtime(precision=precision, batch=2),
        DIM,
        inputs,
        [1] * 5,
        project,
    )
    assert seen == {(getattr(torch, precision), True)}
    assert vectors.dtype == sets.values.dtype == np.float32
    exact = layer(torch.stack(inputs)).detach().numpy()
    tolerance = {"float32": 1e-6, "bfloat16": 0.03, "float16": 0.004}[precision]
    assert np.allclose(vectors, exact, atol=tolerance)
    assert np.array_equal(sets.values, vectors)
    assert np.allclose(vectors, exact, atol=1e-6) == (
        precision == "float32"
    )  # sums may go in another order


def test_an_unknown_precision_is_refused():
    with pytest.raises(
        EncoderError,
        match="no precision 'float8'; known: float32, bfloat16, float16",
    ):
        in_batches(
            "cpu",
            Runtime(precision="float8"),
            DIM,
            [1],
            [1],
            encode,
        )
