"""The caption branch of VSRN."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from encoders.training.captioning import CaptionBranch, caption_targets


def branch(dim: int = 4, vocabulary: int = 9, dropout: float = 0.2, cell: str = "gru") -> CaptionBranch:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return CaptionBranch(dim, vocabulary, hidden=6, word_dim=5, input_dropout=dropout, cell=cell)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.integers(4, 8))
def test_targets_are_whole_or_cut_before_their_end(words: list[int], max_length: int) -> None:
    ids = [[1, *range(10, 10 + n), 2] for n in words]
    targets = caption_targets(ids, max_length)
    assert targets.dtype == torch.int64
    assert targets.shape == (len(ids), min(max(words) + 3, max_length))
    for row, target in zip(ids, targets.tolist(), strict=True):
        if len(row) < max_length:
            assert target == row + [0] * (len(target) - len(row))
        else:
            assert target == [*row[: max_length - 1], 2]
    assert caption_targets(ids, max_length, pad=7)[0, len(ids[0]) :].eq(7).all()


def slow_loss(module: CaptionBranch, regions: Tensor, ids: list[int]) -> Tensor:
    """One caption, region by region and word by word; ``ids`` with the first pad, if that counts."""
    hidden, lstm = module.encoder.hidden_size, isinstance(module.encoder, nn.LSTM)
    zeros, read = torch.zeros(1, 1, hidden, dtype=torch.float64), []
    state = (zeros, zeros) if lstm else zeros
    for region in regions:
        out, state = module.encoder(module.vid2hid(region)[None, None], state)
        read.append(out[0, 0])
    h, memory, total = read[-1], zeros[0, 0], torch.zeros((), dtype=torch.float64)
    for word, following in pairwise(ids):
        energies = [
            module.attention(torch.tanh(module.attend_regions(e) + module.attend_state(h))).squeeze() for e in read
        ]
        shares = torch.exp(torch.stack(energies)) / torch.exp(torch.stack(energies)).sum()
        context = sum(share * e for share, e in zip(shares, read, strict=True))
        inputs = torch.cat([module.embedding.weight[word], context])[None]
        if lstm:
            h, memory = (each[0] for each in module.decoder(inputs, (h[None], memory[None])))
        else:
            h = module.decoder(inputs, h[None])[0]
        total = total - torch.log_softmax(module.out(h), dim=0)[following]
    return total


LENGTHS = [3, 1, 5]
IDS = [[1, 5, 6, 2], [1, 2], [1, 4, 5, 6, 7, 8, 2]]


def regions_of(lengths: list[int], dim: int = 4) -> Tensor:
    """Behind a length lies what must not count."""
    return torch.from_numpy(np.random.default_rng(0).normal(size=(len(lengths), max(lengths), dim)))


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize("max_length", [60, 5])
@torch.inference_mode()
def test_the_loss_is_that_of_a_loop(max_length: int, cell: str) -> None:
    module, regions = branch(cell=cell).double().eval(), regions_of(LENGTHS)
    targets = caption_targets(IDS, max_length)
    expected = torch.zeros((), dtype=torch.float64)
    for region, n, row in zip(regions, LENGTHS, targets.tolist(), strict=True):
        counted = row[: row.index(0) + 1] if 0 in row else row
        expected = expected + slow_loss(module, region[:n], counted)
    found = module(regions, torch.tensor(LENGTHS), targets)
    assert float(found) == pytest.approx(float(expected) / 3, rel=1e-9)


@torch.inference_mode()
def test_padding_and_company_change_nothing() -> None:
    module, regions = branch().double().eval(), regions_of(LENGTHS)
    together = module(regions, torch.tensor(LENGTHS), caption_targets(IDS))
    alone = [
        module(regions[i : i + 1, :n], torch.tensor([n]), caption_targets([IDS[i]])) for i, n in enumerate(LENGTHS)
    ]
    assert float(together) == pytest.approx(float(sum(alone)) / 3, rel=1e-9)


@torch.inference_mode()
def test_captions_share_the_picture_that_owns_them() -> None:
    module, regions = branch().double().eval(), regions_of(LENGTHS)
    owners, targets = torch.tensor([2, 0, 2, 1]), caption_targets([*IDS, [1, 8, 2]])
    found = module(regions, torch.tensor(LENGTHS), targets, owners)
    expected = module(regions[owners], torch.tensor(LENGTHS)[owners], targets)
    assert float(found) == pytest.approx(float(expected), rel=1e-12)


@torch.inference_mode()
def test_a_picture_without_regions_counts_as_one() -> None:
    module, regions = branch().eval(), regions_of([1, 2]).float()
    targets = caption_targets([[1, 4, 2], [1, 5, 2]])
    empty, single = (module(regions, torch.tensor([n, 2]), targets) for n in (0, 1))
    assert float(empty) == float(single)


@torch.inference_mode()
def test_dropout_is_of_training_only() -> None:
    module, regions = branch(dropout=0.5), regions_of([4]).float()
    targets = caption_targets([[1, 4, 5, 2]])
    torch.manual_seed(0)
    assert len({float(module(regions, torch.tensor([4]), targets)) for _ in range(4)}) == 4
    module.eval()
    assert len({float(module(regions, torch.tensor([4]), targets)) for _ in range(4)}) == 1


@pytest.mark.slow
def test_the_regions_tell_which_caption_to_write() -> None:
    """Two captions that begin alike can be learned to the word only from the regions, which get gradients for it."""
    torch.manual_seed(0)
    module = CaptionBranch(3, 8, hidden=16, word_dim=6, input_dropout=0)
    regions = torch.eye(3)[None, :2].repeat(2, 1, 1) * torch.tensor([1.0, -1.0])[:, None, None]
    regions.requires_grad_()
    targets, lengths = caption_targets([[1, 4, 5, 2], [1, 4, 6, 2]]), torch.tensor([2, 2])
    optimizer = torch.optim.Adam(module.parameters(), 0.02)
    for _ in range(120):
        optimizer.zero_grad()
        loss = module(regions, lengths, targets)
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 0.2 < np.log(2)
    assert bool((regions.grad.abs().sum(dim=2) > 0).all())
