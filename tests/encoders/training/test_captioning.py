"""The caption branch of VSRN."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from encoders.training.captioning import CaptionBranch, caption_targets


def branch() -> CaptionBranch:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return CaptionBranch(
            dim=4,
            vocabulary=9,
            hidden=6,
        )


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.integers(4, 8))
def test_caption_targets(
    words: list[int],
    max_length: int,
):
    ids = [[1, *range(10, 10 + n), 2] for n in words]
    targets = caption_targets(ids, max_length)
    assert targets.dtype == torch.int64
    assert targets.shape == (len(ids), min(max(words) + 3, max_length))
    for row, target in zip(ids, targets.tolist(), strict=True):
        if len(row) < max_length:
            assert target == row + [0] * (len(target) - len(row))
        else:
            assert target == [*row[: max_length - 1], 2]


def slow_loss(
    module: CaptionBranch,
    regions: Tensor,
    ids: list[int],
) -> Tensor:
    """One caption, region by region and word by word; ``ids`` with the first pad, if that
    counts."""
    state = torch.zeros(
        1,
        1,
        module.encoder.hidden_size,
        dtype=torch.float64,
    )
    read = []
    for region in regions:
        out, state = module.encoder(module.vid2hid(region)[None, None], state)
        read.append(out[0, 0])
    h = read[-1]
    total = torch.zeros((), dtype=torch.float64)
    for word, following in pairwise(ids):
        energies = [
            module.attention(
                torch.tanh(module.attend_regions(e) + module.attend_state(h)),
            ).squeeze()
            for e in read
        ]
        shares = torch.exp(torch.stack(energies)) / torch.exp(torch.stack(energies)).sum()
        context = sum(share * e for share, e in zip(shares, read, strict=True))
        inputs = torch.cat([module.embedding.weight[word], context])[None]
        h = module.decoder(inputs, h[None])[0]
        total = total - torch.log_softmax(module.out(h), dim=0)[following]
    return total


LENGTHS = [3, 1, 5]
IDS = [[1, 5, 6, 2], [1, 2], [1, 4, 5, 6, 7, 8, 2]]


def regions_of(
    lengths: list[int],
    dim: int = 4,
) -> Tensor:
    """Behind a length lies what must not count."""
    return torch.from_numpy(np.random.default_rng(0).normal(size=(len(lengths), max(lengths), dim)))


@pytest.mark.parametrize("max_length", [60, 5])
@torch.inference_mode()
def test_loss_equals_loop(max_length: int):
    module = branch().double().eval()
    regions = regions_of(LENGTHS)
    targets = caption_targets(IDS, max_length)
    expected = torch.zeros((), dtype=torch.float64)
    for region, n, row in zip(
        regions,
        LENGTHS,
        targets.tolist(),
        strict=True,
    ):
        counted = row[: row.index(0) + 1] if 0 in row else row
        expected = expected + slow_loss(module, region[:n], counted)
    loss = module(
        regions,
        torch.tensor(LENGTHS),
        targets,
        torch.arange(3),
    )
    assert float(loss) == pytest.approx(float(expected) / 3, rel=1e-9)


@torch.inference_mode()
def test_owners_share_regions():
    module = branch().double().eval()
    regions = regions_of(LENGTHS)
    owners = torch.tensor([2, 0, 2, 1])
    targets = caption_targets([*IDS, [1, 8, 2]])
    loss = module(
        regions,
        torch.tensor(LENGTHS),
        targets,
        owners,
    )
    expected = module(
        regions[owners],
        torch.tensor(LENGTHS)[owners],
        targets,
        torch.arange(4),
    )
    assert float(loss) == pytest.approx(float(expected), rel=1e-12)


@torch.inference_mode()
def test_picture_without_regions():
    module = branch().eval()
    regions = regions_of([1, 2]).float()
    targets = caption_targets([[1, 4, 2], [1, 5, 2]])
    owners = torch.arange(2)
    empty, single = (
        module(
            regions,
            torch.tensor([n, 2]),
            targets,
            owners,
        )
        for n in (0, 1)
    )
    assert float(empty) == float(single)


@torch.inference_mode()
def test_dropout_in_training_only():
    module = branch()
    inputs = regions_of([4]).float(), torch.tensor([4]), caption_targets([[1, 4, 5, 2]])
    torch.manual_seed(0)
    assert len({float(module(*inputs, torch.tensor([0]))) for _ in range(4)}) == 4
    module.eval()
    assert len({float(module(*inputs, torch.tensor([0]))) for _ in range(4)}) == 1
