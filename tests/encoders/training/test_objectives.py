"""What training minimises, and the pooling of alignments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import nn

from boc.errors import EncoderError
from boc.types import Item
from encoders.networks import text_towers
from encoders.networks.alignment import POOLINGS, pool_cosines
from encoders.networks.base import Encodings
from encoders.runtime.model_folder import make
from encoders.training.caption_tensors import CaptionTensors
from encoders.training.config import TrainConfig
from encoders.training.losses import contrast, hinge
from encoders.training.objectives import Objective

TEXTS = ["a red box", "blue", "something at the very left of it", "red", "a box", "a dog runs"]
TERAN = {
    "region_dim": 6,
    "visual_width": 8,
    "visual_layers": 1,
    "joint_width": 8,
    "heads": 2,
    "feedforward": 8,
}


def slow(A: NDArray[np.float64], words: int, pooling: str) -> float:
    """The score of cosines (regions, words) with zeros where either is masked; ``words`` are
    not."""
    by_word = sum(max(column) for column in A.T)
    by_region = sum(max(row) for row in A)
    known = {
        "mrsw": by_word,
        "mwsr": by_region,
        "symm": by_word + by_region,
        "sum": A.sum(),
        "mean": A.mean(),
    }
    return float({**known, "mravgw": by_word / max(1, words)}[pooling])


@given(
    seed=st.integers(0, 99),
    n=st.lists(st.integers(0, 4), min_size=1, max_size=3),
    m=st.lists(st.integers(0, 3), min_size=1, max_size=3),
    pooling=st.sampled_from([p for p in POOLINGS if p != "scan"]),
)
def test_pooling_equals_loop(seed: int, n: list[int], m: list[int], pooling: str) -> None:
    generator = torch.Generator().manual_seed(seed)
    regions, words = (
        torch.nn.functional.normalize(
            torch.randn(len(c), 4, 5, generator=generator, dtype=torch.float64),
            dim=2,
        )
        for c in (n, m)
    )
    masks = [torch.arange(4)[None] < torch.tensor(c)[:, None] for c in (n, m)]
    scores = pool_cosines(regions, masks[0], words, masks[1], pooling)
    for i in range(len(n)):
        for j in range(len(m)):
            A = (regions[i] @ words[j].T) * (masks[0][i][:, None] & masks[1][j][None, :])
            assert float(scores[i, j]) == pytest.approx(slow(A.numpy(), m[j], pooling), abs=1e-12)


def test_scan_equals_attention() -> None:
    generator = torch.Generator().manual_seed(0)
    regions, words = (
        torch.nn.functional.normalize(
            torch.randn(1, c, 5, generator=generator, dtype=torch.float64),
            dim=2,
        )
        for c in (3, 4)
    )
    ones = [torch.ones(1, c, dtype=torch.bool) for c in (3, 4)]
    A = np.maximum((regions[0] @ words[0].T).numpy(), 0)
    A = A / np.linalg.norm(A, axis=0)
    weights = np.exp(A) / np.exp(A).sum(axis=1, keepdims=True)
    attended = weights @ words[0].numpy()
    expected = sum(
        r @ a / np.linalg.norm(a) for r, a in zip(regions[0].numpy(), attended, strict=True)
    )
    assert float(pool_cosines(regions, ones[0], words, ones[1], "scan")) == pytest.approx(
        expected,
        abs=1e-9,
    )
    alone = pool_cosines(regions, ones[0], words, torch.zeros(1, 4, dtype=torch.bool), "scan")
    assert float(alone) == 0


def small(kind: str, folder: Path) -> tuple[Any, CaptionTensors]:
    """A small network and captions for it."""
    torch.manual_seed(0)
    tower = text_towers.load_tower("small", 1, TEXTS)
    network = make(
        kind,
        {"region_dim": 6, "width": 8} if kind == "vsrn" else TERAN,
        tower.text,
    ).eval()
    items = [Item(str(i), "text", text) for i, text in enumerate(TEXTS)]
    return network, CaptionTensors(items, tower.tokens, frozen=False, folder=folder)


@pytest.fixture
def captions(tmp_path: Path) -> tuple[Any, CaptionTensors]:
    return small("teran", tmp_path)


def encode(
    network: Any, captions: CaptionTensors
) -> tuple[Encodings, torch.Tensor, torch.Tensor, Any]:
    lengths = torch.tensor([4, 2, 3])
    images = network.images(torch.randn(3, 4, 6), torch.rand(3, 4, 4), lengths)
    mask = network.region_mask(lengths, images.sets.shape[1])
    return images, lengths, mask, captions.encode(network, [4, 0, 2, 1, 5, 3], "cpu")


def test_loss_adds_or_weighs_parts(captions: tuple[Any, CaptionTensors]) -> None:
    network, texts = captions
    positive = torch.tensor(
        [[1, 1, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 1, 1]],
        dtype=torch.bool,
    )
    numbers = [4, 0, 2, 1, 5, 3]
    settings: dict[str, Any] = {
        "objective": "matching+alignment+generation",
        "generation_hidden": 4,
        "alignment_margin": 0.7,
    }
    plain = Objective(TrainConfig(**settings, generation_weight=0.5), network, texts).eval()
    with torch.no_grad():
        images, lengths, mask, chunks = encode(network, texts)
        losses = [
            hinge(plain.scores(part, images, mask, chunks), positive, margin, 2) / 6
            for part, margin in (("matching", 0.2), ("alignment", 0.7))
        ]
        losses.append(
            0.5 * plain.generation(images.sets[:, 1:], lengths, numbers, positive),
        )  # I-CLS is no region
        batch = images, lengths, mask, chunks, numbers, positive, 2
        assert float(plain(*batch)) == pytest.approx(float(sum(losses)), abs=1e-5)
        weighed = Objective(
            TrainConfig(**settings, generation_weight=0.5, uncertainty=True),
            network,
            texts,
        ).eval()
        weighed.generation = plain.generation
        weighed.log_variances.copy_(torch.tensor([0.3, -0.2, 1.0]))
        expected = 0.5 * sum(
            np.exp(-s) * float(loss) + s for s, loss in zip((0.3, -0.2, 1.0), losses, strict=True)
        )
        assert float(weighed(*batch)) == pytest.approx(expected, abs=1e-5)


@torch.no_grad()
def test_loss_of_opposites(captions: tuple[Any, CaptionTensors]) -> None:
    network, texts = captions
    positive = torch.tensor([[1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]], dtype=torch.bool)
    settings: dict[str, Any] = {
        "objective": "matching+alignment",
        "text_lr": 1.0,
        "alignment_temperature": 0.3,
    }
    plain = Objective(TrainConfig(**settings), network, texts).eval()
    taught = Objective(TrainConfig(**settings, opposites=0.7), network, texts).eval()
    images, lengths, mask, chunks = encode(network, texts)
    scores = plain.scores("alignment", images, mask, chunks)
    pairs = [
        ((1, 2), (1, 4)),
        ((0, 1), (0, 5)),
    ]  # places 2 and 1, of pictures 1 and 0, are turned round as 4 and 5
    costs = [
        np.log1p(np.exp((float(scores[other]) - float(scores[own])) / 0.3)) for own, other in pairs
    ]
    alone = plain(
        images,
        lengths,
        mask,
        texts.encode(network, [4, 0, 2, 1], "cpu"),
        [4, 0, 2, 1],
        positive,
        2,
    )
    batch = images, lengths, mask, chunks, [4, 0, 2, 1], positive, 2, None, [2, 1]
    assert float(taught(*batch)) == pytest.approx(
        float(alone) + 0.7 * float(np.mean(costs)),
        abs=1e-5,
    )


@pytest.mark.parametrize("kind", ["tern", "teran", "vsrn"])
def test_generation_reads_regions_only(kind: str, tmp_path: Path) -> None:
    """Rows before, behind and beyond the regions of a picture may be anything."""
    network, texts = small(kind, tmp_path)
    config = TrainConfig(
        objective="matching+generation",
        generation_hidden=4,
        generation_weight=1.0,
    )
    objective = Objective(config, network, texts).eval()
    lengths = torch.tensor([4, 2, 3])
    positive = torch.eye(3, dtype=torch.bool)
    before, behind = network.region_margins
    sets = torch.randn(3, before + 4 + behind, network.dim)
    vectors = nn.functional.normalize(torch.randn(3, network.dim), dim=1)
    chunks = texts.encode(network, [0, 1, 2], "cpu")

    def loss(rows: torch.Tensor) -> float:
        with torch.no_grad():
            mask = network.region_mask(lengths, rows.shape[1])
            return float(
                objective(Encodings(vectors, rows), lengths, mask, chunks, [0, 1, 2], positive, 1),
            )

    plain = loss(sets)
    mask = network.region_mask(lengths, sets.shape[1])
    for picture, row in np.ndindex(*mask.shape):
        changed = sets.clone()
        changed[picture, row] += 1
        assert (loss(changed) != plain) == bool(mask[picture, row]), (picture, row)


@given(seed=st.integers(0, 999), temperature=st.sampled_from([0.05, 1.0]), masked=st.booleans())
def test_contrast_equals_loop(seed: int, temperature: float, masked: bool) -> None:
    """The cross entropy of each positive pair against the negatives of its row, and of its
    column."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    positive = torch.rand(3, 5, generator=generator) < 0.4
    apart = (torch.rand(3, 5, generator=generator) < 0.7) & ~positive if masked else ~positive
    expected = 0.0
    for i, j in positive.nonzero().tolist():
        own = np.exp(float(scores[i, j]) / temperature)
        row = sum(np.exp(float(scores[i, k]) / temperature) for k in range(5) if apart[i, k])
        column = sum(np.exp(float(scores[k, j]) / temperature) for k in range(3) if apart[k, j])
        expected -= np.log(own / (own + row)) + np.log(own / (own + column))
    loss = contrast(scores, positive, temperature, apart if masked else None)
    assert float(loss) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@given(seed=st.integers(0, 999))
def test_other_pairs_cost_nothing(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(4, 6, generator=generator, dtype=torch.float64)
    positive = torch.rand(4, 6, generator=generator) < 0.3
    apart = (torch.rand(4, 6, generator=generator) < 0.5) & ~positive
    other = scores + (~positive & ~apart) * 100 * torch.rand(
        4,
        6,
        generator=generator,
        dtype=torch.float64,
    )
    for loss in (
        lambda s: hinge(s, positive, 0.2, 2, apart),
        lambda s: contrast(s, positive, 0.1, apart),
    ):
        assert float(loss(scores)) == pytest.approx(float(loss(other)))
    assert float(hinge(scores, positive, 0.2, 2, ~positive)) == float(
        hinge(scores, positive, 0.2, 2),
    )


def test_scores_in_order_of_captions(captions: tuple[Any, CaptionTensors]) -> None:
    network, texts = captions
    objective = Objective(TrainConfig(objective="alignment"), network, texts)
    with torch.no_grad():
        images, _, mask, chunks = encode(network, texts)
        for part in ("matching", "alignment"):
            together = objective.scores(part, images, mask, chunks)
            for column, number in enumerate([4, 0, 2, 1, 5, 3]):
                alone = objective.scores(part, images, mask, texts.encode(network, [number], "cpu"))
                assert (together[:, column] - alone[:, 0]).abs().max() <= 1e-5
    assert objective.ranking == "alignment"


@pytest.mark.parametrize("kind", ["tern", "teran"])
def test_alignment_of_cosines(kind: str, tmp_path: Path) -> None:
    """Also of TERN, whose sets have rows of any length."""
    network, texts = small(kind, tmp_path)
    objective = Objective(TrainConfig(objective="alignment"), network, texts)
    with torch.no_grad():
        images, lengths, mask, chunks = encode(network, texts)
        scores = objective.scores("alignment", images, mask, chunks)
        chunk = chunks[0]
        regions, words = (
            nn.functional.normalize(s, dim=2) for s in (images.sets, chunk.encoded.sets)
        )
        for i, n in enumerate(lengths.tolist()):
            for place, rows, mask in zip(chunk.places, words, chunk.mask, strict=True):
                A = regions[i, 1 : 1 + n] @ rows[mask].T
                expected = (
                    A.amax(dim=0).clamp(min=0).sum() if A.numel() else 0.0
                )  # I-CLS, a zero, is among them
                assert float(scores[i, place]) == pytest.approx(float(expected), abs=1e-4)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"objective": "guessing"}, "objective must join"),
        ({"objective": "generation"}, "objective must join"),
        (
            {"objective": "alignment", "pooling": "max"},
            "no pooling 'max' of alignments; known: mrsw",
        ),
    ],
)
def test_invalid_objective(
    captions: tuple[Any, CaptionTensors],
    settings: dict[str, Any],
    words: str,
) -> None:
    with pytest.raises(EncoderError, match=words):
        Objective(TrainConfig(**settings), *captions)


def test_alignment_without_stop_words(captions: tuple[Any, CaptionTensors]) -> None:
    tower = text_towers.load_tower(
        "small",
        1,
        TEXTS * 2,
    )  # only words that are there twice are word-pieces
    stops = text_towers.stop_ids(tower.tokens)
    network = make(
        "teran",
        {**TERAN, "stop_words": False, "last_word": True},
        {**tower.text, "stop_ids": stops},
    )
    ids, lengths = text_towers.pad(tower.tokens.ids(["a red box", "at the very left"]))
    strings = tower.tokens.strings(tower.tokens.ids(["a red box", "at the very left"]))
    mask = network.word_mask(ids, lengths)
    words = [
        [s for s, m in zip(row, flags, strict=False) if m]
        for row, flags in zip(strings, mask, strict=True)
    ]
    assert words == [["red", "box"], ["left"]]
    network.word_margins = (1, 2)  # last_word=False
    assert [int(n) for n in network.word_mask(ids, lengths).sum(dim=1)] == [1, 0]
    plain = captions[0].word_mask(ids, lengths)
    assert [int(n) for n in plain.sum(dim=1)] == [2, 3]  # all but the last
