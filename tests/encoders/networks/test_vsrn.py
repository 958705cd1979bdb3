"""VSRN against the outputs of its authors' own model, and the laws of VSRN and VSRN++."""

import builtins
import json
import math
import os
import pickle
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from numpy.random import default_rng
from torch import Tensor, nn

from boc.errors import EncoderError
from boc.vectors import Doubles
from encoders.conversion.vsrn_checkpoints import check_vocabulary, read_vocabulary
from encoders.networks.sinkhorn import sinkhorn
from encoders.networks.tokens import SPECIALS
from encoders.networks.vsrn import Reasoning, Residual, Vsrn, VsrnConfig
from encoders.networks.vsrnpp import Kernels, LocationReasoning, VsrnPlusPlusConfig
from encoders.runtime.model_folder import make
from tests.helpers import Bomb

UNIT = 1e-6
RAW = 1e-5


# Vocabularies


def python2_pickle(words: list[str]) -> bytes:
    """What Python 2 writes of an instance of the authors' class: protocol 2, short byte strings."""

    def string(word):
        if word.isascii():
            return b"U" + bytes([len(word)]) + word.encode()
        return b"X" + len(word.encode()).to_bytes(4, "little") + word.encode()

    numbered = [(string(word), b"K" + bytes([number])) for number, word in enumerate(words)]
    word2idx = b"}(" + b"".join(word + number for word, number in reversed(numbered)) + b"u"
    idx2word = b"}(" + b"".join(number + word for word, number in numbered) + b"u"
    count = string("idx") + b"K" + bytes([len(words)])
    state = count + string("word2idx") + word2idx + string("idx2word") + idx2word
    return b"\x80\x02c__main__\nVocabulary\n)\x81}(" + state + b"ub."


WORDS = [*SPECIALS, "dog", "café", "a"]


FORMS = {
    "a pickle of Python 2": python2_pickle(WORDS),
    "a list": json.dumps(WORDS).encode(),
    "an object": json.dumps({"idx2word": dict(enumerate(WORDS)), "idx": 7}).encode(),
}


@pytest.mark.parametrize("content", FORMS.values(), ids=FORMS.keys())
def test_published_forms_of_a_vocabulary(
    tmp_path: Path,
    content: bytes,
):
    (tmp_path / "vocab").write_bytes(content)
    assert read_vocabulary(tmp_path / "vocab") == WORDS


HOSTILE = {
    "system": pickle.dumps(Bomb(os.system, "touch exploded")),
    "getattr": pickle.dumps(Bomb(getattr, Path("exploded"), "touch")),
    "nested": python2_pickle(WORDS)[:-2]
    + pickle.dumps(Bomb(os.system, "touch exploded"), protocol=2)[2:-1]
    + b"b.",
    "old style": b"(S'touch exploded'\nios\nsystem\n.",
    "by attribute": b"\x80\x04\x8c\x08__main__\x8c\x13Vocabulary.__init__\x93.",
    "other module": b"\x80\x02cposix\nVocabulary\n.",
    "copyreg": pickle.dumps(Bomb(builtins.object), protocol=2),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_vocabulary_runs_nothing(
    tmp_path: Path,
    monkeypatch,
    name: str,
):
    monkeypatch.chdir(tmp_path)
    Path("vocab.pkl").write_bytes(HOSTILE[name])
    with pytest.raises(EncoderError, match=r"vocab\.pkl: .*it needs \w+\.\w+") as caught:
        read_vocabulary(Path("vocab.pkl"))
    assert "\n" not in str(caught.value)
    assert not Path("exploded").exists()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("vocabulary")


@settings(max_examples=100)
@given(
    place=st.integers(0, 200),
    byte=st.integers(0, 255),
    cut=st.integers(0, 250),
)
def test_a_damaged_vocabulary_is_named(
    folder: Path,
    place: int,
    byte: int,
    cut: int,
):
    data = bytearray(python2_pickle(WORDS))
    data[place % len(data)] = byte
    path = folder / "vocab.pkl"
    path.write_bytes(bytes(data[:cut]))
    try:
        assert all(isinstance(word, str) for word in read_vocabulary(path))
    except EncoderError as error:
        assert "vocab.pkl" in str(error)  # noqa: PT017


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1]",
        "[" * 100_000,
        '{"idx2word": {"1": "a"}}',
        '{"idx2word": 3}',
    ],
)
def test_what_is_no_vocabulary_is_refused(
    tmp_path: Path,
    text: str,
):
    path = tmp_path / "vocab.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(EncoderError, match=r"vocab\.json"):
        read_vocabulary(path)
    with pytest.raises(EncoderError, match=r"absent\.json"):
        read_vocabulary(tmp_path / "absent.json")


def test_vocabulary_length():
    network = Vsrn(
        VsrnConfig(
            3,
            4,
            1,
        ),
        {"kind": "embedding", "vocabulary": 7, "width": 5},
    )
    check_vocabulary(WORDS, network, Path("vocab.pkl"))
    with pytest.raises(EncoderError, match=r"vocab\.pkl: 6 words.*7"):
        check_vocabulary(
            WORDS[:-1],
            network,
            Path("vocab.pkl"),
        )


# Laws

SIZES = {"region_dim": 6, "width": 8, "reasoning_layers": 2}
TEXT = {"kind": "embedding", "vocabulary": 20, "width": 5}
CONFIGS = {
    "coco": VsrnConfig(**SIZES),
    "f30k": VsrnConfig(**SIZES, variant="f30k"),
    "row": VsrnConfig(**SIZES, norm_axis="row", region_power=0.5),
    "plusplus": VsrnPlusPlusConfig(**SIZES, kernels=3),
    "unlike": VsrnPlusPlusConfig(**SIZES, kernels=2, norm_axis="regions"),
    "means": VsrnConfig(**SIZES, image_pooling="mean", text_pooling="mean"),
    "wordless": VsrnPlusPlusConfig(
        **SIZES,
        kernels=2,
        word_reasoning=False,
        region_order="size",
    ),
    "reversed": VsrnConfig(**SIZES, region_order="reversed"),
    "random": VsrnConfig(**SIZES, region_order="random"),
}


def perturb(module: nn.Module) -> nn.Module:
    """No parameter is zero or one, so that no mistake can hide behind it; running statistics
    likewise."""
    generator = torch.Generator().manual_seed(5)
    for parameter in module.parameters():
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator)
    for name, buffer in module.named_buffers():
        if name.endswith("running_var"):
            buffer += torch.rand(buffer.shape, generator=generator)
        elif name.endswith("running_mean"):
            buffer += torch.randn(buffer.shape, generator=generator)
    return module


def network_of(name: str) -> Vsrn:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return perturb(make_network(CONFIGS[name])).double().eval()


def make_network(config: VsrnConfig) -> Vsrn:
    kind = "vsrnpp" if isinstance(config, VsrnPlusPlusConfig) else "vsrn"
    return make(kind, asdict(config), TEXT)


def pictures(
    lengths: list[int],
    seed: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Random regions in boxes; what lies behind a length is large, and must not count."""
    rng = default_rng(seed)
    shape = (len(lengths), max(lengths))
    corners = np.sort(rng.random((*shape, 2, 2)), axis=2).reshape(*shape, 4)
    return (
        torch.from_numpy(10 * rng.normal(size=(*shape, 6))),
        torch.from_numpy(corners),
        torch.tensor(lengths),
    )


each_config = pytest.mark.parametrize("name", CONFIGS)


@each_config
@settings(max_examples=5)
@given(
    lengths=st.lists(st.integers(0, 5), min_size=1, max_size=4),
    extra=st.integers(0, 2),
    seed=st.integers(0, 99),
)
def test_batch_invariance_of_pictures(
    name: str,
    lengths: list[int],
    extra: int,
    seed: int,
):
    network = network_of(name)
    features, boxes, _ = pictures([*lengths, 5 + extra], seed)
    with torch.inference_mode():
        together = network.images(
            features[:-1],
            boxes[:-1],
            torch.tensor(lengths),
        )
        assert together.vectors.norm(dim=1).sub(1).abs().max() < UNIT
        for i, n in enumerate(lengths):
            alone = network.images(
                features[i : i + 1, :n],
                boxes[i : i + 1, :n],
                torch.tensor([n]),
            )
            assert (alone.vectors[0] - together.vectors[i]).abs().max() < UNIT
            assert (alone.sets[0, :n] - together.sets[i, :n]).abs().sum() < UNIT


@each_config
@settings(max_examples=5)
@given(
    lengths=st.lists(
        st.integers(2, 7),
        min_size=1,
        max_size=4,
    ),
    seed=st.integers(0, 99),
)
def test_batch_invariance_of_sentences(
    name: str,
    lengths: list[int],
    seed: int,
):
    network = network_of(name)
    ids = torch.from_numpy(
        default_rng(seed).integers(
            0,
            20,
            (len(lengths), 8),
        ),
    )
    with torch.inference_mode():
        together = network.texts(ids, torch.tensor(lengths))
        assert together.sets.shape == (len(lengths), 8, network.dim)
        for i, n in enumerate(lengths):
            alone = network.texts(ids[i : i + 1, :n], torch.tensor([n]))
            assert (alone.vectors[0] - together.vectors[i]).abs().max() < UNIT
            assert (alone.sets[0, 1 : n - 1] - together.sets[i, 1 : n - 1]).abs().sum() < UNIT


@pytest.mark.parametrize("name", sorted(set(CONFIGS) - {"random"}))
def test_padding_in_training(name: str):
    lengths = [3, 1, 0, 5]
    features, boxes, counts = pictures(lengths)
    wide, narrow = (network_of(name).train() for _ in range(2))
    more = [torch.cat([rows, 7 + rows[:, :3]], dim=1) for rows in (features, boxes)]
    padded = wide.images(*more, counts)
    expected = narrow.images(features, boxes, counts)
    assert (padded.vectors - expected.vectors).abs().max() < UNIT
    for (key, one), (_, other) in zip(
        wide.named_buffers(),
        narrow.named_buffers(),
        strict=True,
    ):
        assert torch.allclose(one, other), key


@each_config
def test_gradients_are_numbers(name: str):
    network = network_of(name).train()
    features, boxes, counts = pictures([1, 0, 4, 2])
    boxes[2, 1] = boxes[2, 0]
    images = network.images(
        features * (torch.arange(4) < 2)[:, None, None],
        boxes,
        counts,
    )
    texts = network.texts(torch.randint(0, 20, (4, 6)), torch.tensor([6, 2, 3, 4]))
    (images.vectors @ texts.vectors.T).sum().backward()
    for key, parameter in network.named_parameters():
        assert parameter.grad is not None, key
        assert bool(parameter.grad.isfinite().all()), key


def orders(
    boxes: Tensor,
    count: int,
) -> dict[str, list[int]]:
    """The order in which a GRU reads a picture, by a plain sort."""
    areas = [(x2 - x1) * (y2 - y1) for x1, y1, x2, y2 in boxes[:count].tolist()]
    keys = default_rng(0).random(count)
    return {
        "reversed": list(range(count))[::-1],
        "size": sorted(range(count), key=lambda i: -areas[i]),
        "random": sorted(range(count), key=lambda i: keys[i]),
    }


@settings(max_examples=10)
@given(
    count=st.integers(1, 7),
    seed=st.integers(0, 99),
    order=st.sampled_from(["reversed", "size", "random"]),
)
def test_region_order(
    count: int,
    seed: int,
    order: str,
):
    """As a network in the order of the source reads regions that are put in that order; sets keep
    the source's."""
    network = network_of("coco")
    features, boxes, counts = pictures([count, 7], seed)
    places = torch.tensor(orders(boxes[0], count)[order])
    with torch.inference_mode():
        expected = network.images(
            features[:1, places],
            boxes[:1, places],
            counts[:1],
        )
        network.img_enc.order = order
        images = network.images(features, boxes, counts)
    assert (images.vectors[0] - expected.vectors[0]).abs().max() < UNIT
    assert (images.sets[0, places] - expected.sets[0]).abs().max() < UNIT


def test_random_region_order():
    network = network_of("random")
    inputs = pictures([7, 7])
    with torch.inference_mode():
        assert torch.equal(network.images(*inputs).vectors, network.images(*inputs).vectors)
        network.train()
        assert not torch.equal(network.images(*inputs).vectors, network.images(*inputs).vectors)


def test_means_in_the_place_of_the_grus():
    network = network_of("means")
    features, boxes, counts = pictures([3, 1, 6])
    ids = torch.randint(
        0,
        20,
        (3, 6),
    )
    lengths = torch.tensor([6, 2, 4])
    with torch.no_grad():
        images = network.images(features, boxes, counts)
        texts = network.texts(ids, lengths)
        hidden = network.txt_enc(ids, lengths)
    for i, (n, m) in enumerate(zip(counts, lengths, strict=True)):
        mean = images.sets[i, :n].mean(dim=0)
        assert torch.allclose(images.vectors[i], mean / mean.norm())
        mean = torch.stack([network.txt_fc(row) for row in hidden[i, :m]]).mean(dim=0)
        assert torch.allclose(texts.vectors[i], mean / mean.norm())


def test_an_order_without_a_gru_is_refused():
    with pytest.raises(EncoderError, match="region_order needs a GRU"):
        VsrnConfig(image_pooling="mean", region_order="size")


def test_a_fresh_network_reads_an_empty_picture():
    for config in (VsrnConfig(**SIZES), VsrnPlusPlusConfig(**SIZES)):
        inputs = (torch.zeros(2, 0, 6), torch.zeros(2, 0, 4), torch.tensor([0, 0]))
        images = make_network(config).eval().images(*inputs)
        assert (images.vectors.norm(dim=1) - 1).abs().max() < UNIT


def test_batch_normalisation():
    rows, _, counts = pictures([4, 1, 3])
    real = torch.arange(4) < counts[:, None]
    residual = perturb(Residual(6, 5)).double().train()
    plain = nn.BatchNorm1d(5).double().train()
    plain.load_state_dict(residual[1].state_dict())
    unpadded = torch.cat([row[:n] for row, n in zip(rows, counts, strict=True)])
    found = residual(rows, real)
    expected = plain(residual[0](unpadded))
    assert torch.allclose(found[real], expected)
    assert not found[~real].any()
    assert torch.equal(residual[1].running_mean, plain.running_mean)
    assert torch.equal(residual[1].running_var, plain.running_var)


def affine(
    layer: nn.Linear,
    row: Doubles,
) -> Doubles:
    bias = 0 if layer.bias is None else layer.bias.detach().numpy()
    return layer.weight.detach().numpy() @ row + bias


def normalised(
    layer: nn.Module,
    row: Doubles,
) -> Doubles:
    mean, var, weight, bias = (
        t.detach().numpy()
        for t in (layer.running_mean, layer.running_var, layer.weight, layer.bias)
    )
    return (row - mean) / np.sqrt(var + layer.eps) * weight + bias


def test_reasoning_is_the_sum_over_all_pairs():
    rows, _, counts = pictures([4, 2])
    reasoning = perturb(Reasoning(6)).double().eval()
    found = reasoning(rows, torch.arange(4) < counts[:, None]).detach().numpy()
    for picture, n in enumerate(counts.tolist()):
        v = rows[picture, :n].numpy()
        for i in range(n):
            y = np.zeros(6)
            for j in range(n):
                y += (
                    affine(reasoning.theta, v[i])
                    @ affine(reasoning.phi, v[j])
                    / n
                    * affine(reasoning.g, v[j])
                )
            expected = v[i] + normalised(reasoning.W[1], affine(reasoning.W[0], y))
            assert np.allclose(found[picture, i], expected)


def test_location_reasoning():
    rows, boxes, counts = pictures([4, 1, 3])
    module = (
        perturb(
            LocationReasoning(
                VsrnPlusPlusConfig(
                    region_dim=6,
                    width=6,
                    kernels=3,
                ),
            ),
        )
        .double()
        .eval()
    )
    found = module(rows, boxes, torch.arange(4) < counts[:, None]).detach().numpy()
    for picture, n in enumerate(counts.tolist()):
        v = rows[picture, :n].numpy()
        weights = slow_weights(module.kernels, boxes[picture, :n].numpy())
        for i in range(n):
            parts = []
            for m, W in enumerate(
                module.maps.weight.detach()
                .numpy()
                .reshape(
                    3,
                    6,
                    6,
                ),
            ):
                parts.append(W @ sum((weights[m, i, j] * v[j] for j in range(n)), np.zeros(6)))
            expected = v[i] + normalised(module.W[1], affine(module.W[0], np.concatenate(parts)))
            assert np.allclose(found[picture, i], expected)


def slow_weights(
    kernels: Kernels,
    boxes: Doubles,
) -> Doubles:
    n = len(boxes)
    means = kernels.means.detach().numpy()
    deviations = kernels.log_deviations.exp().detach().numpy()
    weights = np.zeros((len(means), n, n))
    for m, i, j in np.ndindex(weights.shape):
        x0, y0, x1, y1 = boxes[i]
        u0, w0, u1, w1 = boxes[j]
        dx = (u0 + u1) / 2 - (x0 + x1) / 2
        dy = (w0 + w1) / 2 - (y0 + y1) / 2
        distance = math.hypot(dx, dy) - means[m, 0]
        angle = math.atan2(dy, dx) - means[m, 1]
        angle = min((angle + turn * 2 * math.pi for turn in (-2, -1, 0, 1, 2)), key=abs)
        z = np.array([distance / deviations[m, 0], angle / deviations[m, 1]])
        weights[m, i, j] = math.exp(-(z @ z) / 2)
    return weights / weights.sum(axis=2, keepdims=True)


def test_angles_have_no_seam():
    """A region barely above, and one barely below, to the left: as good as the same place."""
    kernels = perturb(Kernels(4)).double()
    boxes = torch.tensor(
        [
            [
                [0.5, 0.5, 0.6, 0.6],
                [
                    0.1,
                    0.5 + e,
                    0.2,
                    0.6 + e,
                ],
            ]
            for e in (1e-9, -1e-9)
        ],
    )
    above, below = kernels(boxes.double(), torch.ones(2, 2, dtype=torch.bool))
    assert torch.allclose(above, below, atol=1e-6)


def test_location_moves_the_picture():
    network = network_of("plusplus")
    features, boxes, counts = pictures([4, 3])
    still = network.images(features, boxes, counts).vectors
    closer = network.images(features, boxes * 0.5, counts).vectors
    assert (closer - still).abs().max() > 1e-4
    moved = network.images(
        features,
        boxes
        + torch.tensor(
            [
                0.1,
                -0.2,
                0.1,
                -0.2,
            ],
        ),
        counts,
    ).vectors
    assert torch.allclose(moved, still)


def test_unknown_choices_are_refused():
    for name in ("variant", "norm_axis", "image_pooling", "text_pooling", "region_order"):
        with pytest.raises(EncoderError, match=f"{name} must be one of .*'both'"):
            VsrnPlusPlusConfig(**{name: "both"})


# Sinkhorn

SCORES = st.tuples(
    st.integers(1, 6),
    st.integers(1, 6),
    st.integers(0, 99),
)


@settings(max_examples=20)
@given(SCORES, st.integers(1, 5))
def test_sinkhorn_iterations(
    shape: tuple[int, int, int],
    iterations: int,
):
    rows, columns, seed = shape
    scores = default_rng(seed).uniform(
        -1,
        1,
        (rows, columns),
    )
    S = np.exp(scores / 0.5)
    for _ in range(iterations):
        S = S / (S @ np.ones((columns, columns)))
        S = S / (np.ones((rows, rows)) @ S)
    result = sinkhorn(torch.from_numpy(scores), iterations, 0.5) / rows
    assert np.allclose(result, S, atol=1e-5)


def test_sinkhorn_stability():
    scores = torch.tensor([[1.0, -1.0], [-1.0, 1.0]]).requires_grad_()
    balanced = sinkhorn(scores, temperature=1e-3) / 2
    balanced[0, 0].backward()
    assert torch.allclose(balanced, torch.eye(2))
    assert bool(scores.grad.isfinite().all())


@pytest.mark.parametrize(
    ("iterations", "temperature"),
    [(0, 1.0), (20, 0.0), (20, -1.0), (20, math.nan)],
)
def test_sinkhorn_refuses_what_means_nothing(
    iterations: int,
    temperature: float,
):
    with pytest.raises(EncoderError, match="sinkhorn"):
        sinkhorn(
            torch.zeros(2, 2),
            iterations,
            temperature,
        )


def test_unknown_setting():
    config = {**asdict(CONFIGS["plusplus"]), "units": "region"}
    with pytest.raises(EncoderError, match="vsrnpp has no setting 'units'"):
        make("vsrnpp", config, TEXT)
