"""What training minimises, and the pooling of alignments."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
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


Captioned = tuple[Any, CaptionTensors]
NUMBERS = [4, 0, 2, 1, 5, 3]


def slow(
    A: NDArray[np.float64],
    words: int,
    pooling: str,
) -> float:
    """The score of cosines (regions, words) with zeros where either is masked; ``words`` are
    not."""
    by_word = sum(max(column) for column in A.T)
    by_region = sum(max(row) for row in A)
    scores = {
        "mrsw": by_word,
        "mwsr": by_region,
        "symm": by_word + by_region,
        "mravgw": by_word / max(1, words),
        "sum": A.sum(),
        "mean": A.mean(),
    }
    return float(scores[pooling])


def unit_rows(generator: torch.Generator, *shape: int) -> torch.Tensor:
    rows = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return nn.functional.normalize(rows, dim=-1)


@given(
    seed=st.integers(0, 99),
    n=st.lists(st.integers(0, 4), min_size=1, max_size=3),
    m=st.lists(st.integers(0, 3), min_size=1, max_size=3),
    pooling=st.sampled_from([p for p in POOLINGS if p != "scan"]),
)
def test_pooling_equals_loop(
    seed: int,
    n: list[int],
    m: list[int],
    pooling: str,
):
    generator = torch.Generator().manual_seed(seed)
    regions, words = (
        unit_rows(
            generator,
            len(counts),
            4,
            5,
        )
        for counts in (n, m)
    )
    masks = [torch.arange(4)[None] < torch.tensor(c)[:, None] for c in (n, m)]
    scores = pool_cosines(
        regions,
        masks[0],
        words,
        masks[1],
        pooling,
    )
    for i in range(len(n)):
        for j in range(len(m)):
            A = (regions[i] @ words[j].T) * (masks[0][i][:, None] & masks[1][j][None, :])
            assert float(scores[i, j]) == pytest.approx(
                slow(
                    A.numpy(),
                    m[j],
                    pooling,
                ),
                abs=1e-12,
            )


def test_scan_equals_attention():
    generator = torch.Generator().manual_seed(0)
    regions, words = (
        unit_rows(
            generator,
            1,
            count,
            5,
        )
        for count in (3, 4)
    )
    ones = [torch.ones(1, count, dtype=torch.bool) for count in (3, 4)]
    A = np.maximum((regions[0] @ words[0].T).numpy(), 0)
    A = A / np.linalg.norm(A, axis=0)
    weights = np.exp(A) / np.exp(A).sum(axis=1, keepdims=True)
    attended = weights @ words[0].numpy()
    pairs = zip(regions[0].numpy(), attended, strict=True)
    expected = sum(region @ row / np.linalg.norm(row) for region, row in pairs)
    score = pool_cosines(
        regions,
        ones[0],
        words,
        ones[1],
        "scan",
    )
    assert float(score) == pytest.approx(expected, abs=1e-9)
    assert (
        float(
            pool_cosines(
                regions,
                ones[0],
                words,
                ~ones[1],
                "scan",
            ),
        )
        == 0
    )


def small(
    kind: str,
) -> Captioned:
    """A small network and captions for it."""
    torch.manual_seed(0)
    tower = text_towers.load_tower("small", 1, TEXTS)
    sizes = {"region_dim": 6, "width": 8} if kind == "vsrn" else TERAN
    network = make(kind, sizes, tower.text).eval()
    items = [Item(str(i), "text", text) for i, text in enumerate(TEXTS)]
    return network, CaptionTensors(items, tower.tokens)


@pytest.fixture
def captions() -> Captioned:
    return small("teran")


def encode(
    network: Any,
    captions: CaptionTensors,
) -> tuple[Encodings, torch.Tensor, torch.Tensor, Any]:
    lengths = torch.tensor([4, 2, 3])
    images = network.images(
        torch.randn(3, 4, 6),
        torch.rand(3, 4, 4),
        lengths,
    )
    mask = network.region_mask(lengths, images.sets.shape[1])
    return images, lengths, mask, captions.encode(network, NUMBERS, "cpu")


def test_loss_adds_or_weighs_parts(captions: Captioned):
    network, texts = captions
    positive = torch.eye(3, dtype=torch.bool).repeat_interleave(2, dim=1)
    settings = {
        "objective": "matching+alignment+generation",
        "generation_hidden": 4,
        "alignment_margin": 0.7,
    }
    plain = Objective(
        TrainConfig(**settings, generation_weight=0.5),
        network,
        texts,
    ).eval()
    with torch.no_grad():
        images, lengths, mask, chunks = encode(network, texts)
        losses = [
            hinge(
                plain.scores(
                    part,
                    images,
                    mask,
                    chunks,
                ),
                positive,
                margin,
                2,
            )
            / 6
            for part, margin in (("matching", 0.2), ("alignment", 0.7))
        ]
        # I-CLS is no region.
        generation = plain.generation(
            images.sets[:, 1:],
            lengths,
            NUMBERS,
            positive,
        )
        losses.append(0.5 * generation)
        batch = images, lengths, mask, chunks, NUMBERS, positive, 2
        assert float(plain(*batch)) == pytest.approx(float(sum(losses)), abs=1e-5)
        config = TrainConfig(
            **settings,
            generation_weight=0.5,
            uncertainty=True,
        )
        weighed = Objective(config, network, texts).eval()
        weighed.generation = plain.generation
        weighed.log_variances.copy_(torch.tensor([0.3, -0.2, 1.0]))
        pairs = zip((0.3, -0.2, 1.0), losses, strict=True)
        expected = 0.5 * sum(np.exp(-s) * float(loss) + s for s, loss in pairs)
        assert float(weighed(*batch)) == pytest.approx(expected, abs=1e-5)


@torch.no_grad()
def test_loss_of_opposites(captions: Captioned):
    network, texts = captions
    positive = torch.tensor([[1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]], dtype=torch.bool)
    settings = {
        "objective": "matching+alignment",
        "text_lr": 1.0,
        "alignment_temperature": 0.3,
    }
    plain = Objective(TrainConfig(**settings), network, texts).eval()
    taught = Objective(
        TrainConfig(**settings, opposites=0.7),
        network,
        texts,
    ).eval()
    images, lengths, mask, chunks = encode(network, texts)
    scores = plain.scores(
        "alignment",
        images,
        mask,
        chunks,
    )
    # Places 2 and 1, of pictures 1 and 0, are turned round as 4 and 5.
    turned = [(scores[1, 2], scores[1, 4]), (scores[0, 1], scores[0, 5])]
    costs = [np.log1p(np.exp(float(other - own) / 0.3)) for own, other in turned]
    numbers = NUMBERS[:4]
    read = texts.encode(network, numbers, "cpu")
    alone = plain(
        images,
        lengths,
        mask,
        read,
        numbers,
        positive,
        2,
    )
    loss = taught(
        images,
        lengths,
        mask,
        chunks,
        numbers,
        positive,
        2,
        None,
        [2, 1],
    )
    assert float(loss) == pytest.approx(float(alone) + 0.7 * float(np.mean(costs)), abs=1e-5)


@pytest.mark.parametrize("kind", ["tern", "teran", "vsrn"])
def test_generation_reads_regions_only(
    kind: str,
):
    """Rows before, behind and beyond the regions of a picture may be anything."""
    network, texts = small(kind)
    config = TrainConfig(objective="matching+generation", generation_hidden=4)
    objective = Objective(config, network, texts).eval()
    lengths = torch.tensor([4, 2, 3])
    positive = torch.eye(3, dtype=torch.bool)
    before, behind = network.region_margins
    sets = torch.randn(
        3,
        before + 4 + behind,
        network.dim,
    )
    vectors = nn.functional.normalize(torch.randn(3, network.dim), dim=1)
    chunks = texts.encode(
        network,
        [0, 1, 2],
        "cpu",
    )

    def loss(rows):
        encoded = Encodings(vectors, rows)
        with torch.no_grad():
            return float(
                objective(
                    encoded,
                    lengths,
                    mask,
                    chunks,
                    [0, 1, 2],
                    positive,
                    1,
                ),
            )

    mask = network.region_mask(lengths, sets.shape[1])
    plain = loss(sets)
    for picture, row in np.ndindex(*mask.shape):
        changed = sets.clone()
        changed[picture, row] += 1
        assert (loss(changed) != plain) == bool(mask[picture, row]), (picture, row)


def drawn(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scores, which pairs are positive, and which of the others are negative."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(
        3,
        5,
        generator=generator,
        dtype=torch.float64,
    )
    positive = torch.rand(3, 5, generator=generator) < 0.4
    return (
        scores,
        positive,
        (
            torch.rand(
                3,
                5,
                generator=generator,
            )
            < 0.7
        )
        & ~positive,
    )


def sides(
    scores: torch.Tensor,
    positive: torch.Tensor,
    apart: torch.Tensor,
) -> Iterator[tuple[float, list[float], int]]:
    """Of each positive pair: its score, the negatives of its row, then of its column, and the
    length of each."""
    for i, j in positive.nonzero().tolist():
        yield float(scores[i, j]), scores[i][apart[i]].tolist(), 5
        yield float(scores[i, j]), scores[:, j][apart[:, j]].tolist(), 3


@given(
    seed=st.integers(0, 999),
    temperature=st.sampled_from([0.05, 1.0]),
    masked=st.booleans(),
)
def test_contrast_equals_loop(
    seed: int,
    temperature: float,
    masked: bool,
):
    """The cross entropy of each positive pair against the negatives of its row, and of its
    column."""
    scores, positive, apart = drawn(seed)
    expected = 0.0
    for own, others, _ in sides(
        scores / temperature,
        positive,
        apart if masked else ~positive,
    ):
        expected -= own - np.log(np.exp([own, *others]).sum())
    loss = contrast(
        scores,
        positive,
        temperature,
        apart if masked else None,
    )
    assert float(loss) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@given(seed=st.integers(0, 999), negatives=st.integers(1, 6), masked=st.booleans())
def test_hinge_equals_loop(
    seed: int,
    negatives: int,
    masked: bool,
):
    """The published loss counts the hardest negative; others of one picture are no negatives."""
    scores, positive, apart = drawn(seed)
    expected = 0.0
    for own, others, length in sides(
        scores,
        positive,
        apart if masked else ~positive,
    ):
        costs = [max(0.0, 0.2 + other - own) for other in others]
        count = min(negatives, length)
        expected += sum(sorted(costs)[-count:]) / count
    loss = hinge(
        scores,
        positive,
        0.2,
        negatives,
        apart if masked else None,
    )
    assert float(loss) == pytest.approx(expected, abs=1e-12)


def test_scores_in_order_of_captions(captions: Captioned):
    network, texts = captions
    objective = Objective(
        TrainConfig(objective="alignment"),
        network,
        texts,
    )
    with torch.no_grad():
        images, _, mask, chunks = encode(network, texts)
        for part in ("matching", "alignment"):
            together = objective.scores(
                part,
                images,
                mask,
                chunks,
            )
            for column, number in enumerate(NUMBERS):
                alone = objective.scores(
                    part,
                    images,
                    mask,
                    texts.encode(network, [number], "cpu"),
                )
                assert (together[:, column] - alone[:, 0]).abs().max() <= 1e-5
    assert objective.ranking == "alignment"


@pytest.mark.parametrize("kind", ["tern", "teran"])
def test_alignment_of_cosines(
    kind: str,
):
    """Also of TERN, whose sets have rows of any length."""
    network, texts = small(kind)
    objective = Objective(
        TrainConfig(objective="alignment"),
        network,
        texts,
    )
    with torch.no_grad():
        images, lengths, mask, chunks = encode(network, texts)
        scores = objective.scores(
            "alignment",
            images,
            mask,
            chunks,
        )
        chunk = chunks[0]
        regions, words = (
            nn.functional.normalize(s, dim=2) for s in (images.sets, chunk.encoded.sets)
        )
        for i, n in enumerate(lengths.tolist()):
            for place, rows, mask in zip(
                chunk.places,
                words,
                chunk.mask,
                strict=True,
            ):
                A = regions[i, 1 : 1 + n] @ rows[mask].T
                # I-CLS, a zero, is among the regions.
                expected = A.amax(dim=0).clamp(min=0).sum()
                assert float(scores[i, place]) == pytest.approx(float(expected), abs=1e-4)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"objective": "guessing"}, "objective must be matching or alignment"),
        ({"objective": "generation"}, "objective must be matching or alignment"),
        (
            {"objective": "alignment", "pooling": "max"},
            "pooling must be one of mrsw, .*got 'max'",
        ),
    ],
)
def test_invalid_objective(
    captions: Captioned,
    settings: dict[str, Any],
    words: str,
):
    with pytest.raises(EncoderError, match=words):
        Objective(TrainConfig(**settings), *captions)


def test_alignment_without_stop_words(captions: Captioned):
    # Only words that occur twice are word-pieces.
    tower = text_towers.load_tower(
        "small",
        1,
        TEXTS * 2,
    )
    sizes = {**TERAN, "stop_words": False, "last_word": True}
    stops = text_towers.stop_ids(tower.tokens)
    network = make(
        "teran",
        sizes,
        {**tower.text, "stop_ids": stops},
    )
    rows = tower.tokens.ids(["a red box", "at the very left"])
    ids, lengths = text_towers.pad(rows)
    mask = network.word_mask(ids, lengths)
    strings = zip(tower.tokens.strings(rows), mask, strict=True)
    words = [[row[i] for i in flags.nonzero()] for row, flags in strings]
    assert words == [["red", "box"], ["left"]]
    # Without the last word.
    network.word_margins = (1, 2)
    assert network.word_mask(ids, lengths).sum(dim=1).tolist() == [1, 0]
    assert captions[0].word_mask(ids, lengths).sum(dim=1).tolist() == [2, 3]
