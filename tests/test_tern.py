"""TERN against the outputs of its authors' own model, and what must break that agreement."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from boc.errors import EncoderError
from encoders._checkpoint import read_published, tern_from_published
from encoders.tern import Tern
from encoders.training.losses import hinge

UNIT, RAW = 1e-6, 1e-5


@pytest.fixture(scope="module", params=["tern"])
def reference(request: pytest.FixtureRequest, reference_fixtures: Path) -> tuple[Path, dict[str, NDArray[Any]]]:
    path = reference_fixtures / f"{request.param}.npz"
    if not path.exists():
        pytest.skip(f"no {path.name} in {reference_fixtures}")
    with np.load(path, allow_pickle=False) as arrays:
        return path.with_suffix(".pth"), dict(arrays)


@torch.inference_mode()
def outputs(model: Tern, given: dict[str, NDArray[Any]]) -> dict[str, NDArray[np.float32]]:
    """All arrays that the fixture expects, padding rows set to zero."""
    inputs = {name: torch.from_numpy(array) for name, array in given.items()}
    images, regions = model.images(inputs["features"], inputs["boxes"], inputs["n_regions"])
    texts, words = model.texts(inputs["token_ids"], inputs["n_tokens"])
    loss = hinge(images @ texts.T, torch.eye(len(images), dtype=torch.bool))
    return {
        "expected_image_global": images.numpy(),
        "expected_text_global": texts.numpy(),
        "expected_image_set": valid(regions.numpy(), given["n_regions"] + 1),
        "expected_text_set": valid(words.numpy(), given["n_tokens"]),
        "expected_loss": loss.numpy(),
    }


def valid(sets: NDArray[np.float32], lengths: NDArray[np.int64]) -> NDArray[np.float32]:
    return np.where((np.arange(sets.shape[1]) < lengths[:, None])[..., None], sets, 0)


def test_every_expected_array_is_reproduced(reference: tuple[Path, dict[str, NDArray[Any]]]) -> None:
    checkpoint, given = reference
    found = outputs(tern_from_published(read_published(checkpoint)), given)
    expected = {name for name in given if name.startswith("expected_")}
    assert expected == set(found)
    lengths = {"expected_image_set": given["n_regions"] + 1, "expected_text_set": given["n_tokens"]}
    for name in expected:
        wanted = valid(given[name], lengths[name]) if name in lengths else given[name]
        tolerance = UNIT if name.endswith("_global") else RAW
        assert np.abs(found[name] - wanted).max() <= tolerance, name


def eight_heads(model: Tern) -> None:
    for layer in (*model.transformer_encoder_1.layers, *model.img_enc.transformer_encoder.layers):
        layer.self_attn.num_heads = 8
        layer.self_attn.head_dim //= 2


def tanh_gelu(model: Tern) -> None:
    for layer in model.txt_enc.bert_model.encoder.layer:
        layer.intermediate.intermediate_act_fn = nn.GELU(approximate="tanh")


def loose_layer_norm(model: Tern) -> None:
    for module in model.txt_enc.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 1e-5


def one_layer_short(model: Tern) -> None:
    model.txt_enc.bert_model.encoder.layer = model.txt_enc.bert_model.encoder.layer[:-1]
    model.txt_enc.bert_model.config.num_hidden_layers -= 1


@pytest.mark.parametrize("mistake", [eight_heads, tanh_gelu, loose_layer_norm, one_layer_short])
def test_a_wrong_network_is_noticed(
    reference: tuple[Path, dict[str, NDArray[Any]]], mistake: Callable[[Tern], None]
) -> None:
    checkpoint, given = reference
    model = tern_from_published(read_published(checkpoint))
    mistake(model)
    found = outputs(model, given)
    names = ("expected_image_global", "expected_text_global")
    assert max(np.abs(found[name] - given[name]).max() for name in names) > UNIT


@pytest.mark.parametrize("spoiled", ["n_regions", "n_tokens", "boxes"])
def test_wrong_inputs_are_noticed(reference: tuple[Path, dict[str, NDArray[Any]]], spoiled: str) -> None:
    checkpoint, given = reference
    wrong = (
        given["boxes"][..., [1, 0, 3, 2]] if spoiled == "boxes" else np.full_like(given[spoiled], given[spoiled].max())
    )
    found = outputs(tern_from_published(read_published(checkpoint)), {**given, spoiled: wrong})
    name = "expected_text_global" if spoiled == "n_tokens" else "expected_image_global"
    assert np.abs(found[name] - given[name]).max() > UNIT


def test_every_tensor_is_accounted_for(reference: tuple[Path, dict[str, NDArray[Any]]]) -> None:
    checkpoint = read_published(reference[0])
    tensors = checkpoint["model"]
    with pytest.raises(EncoderError, match=r"left over: \['stranger'\]"):
        tern_from_published({"model": {**tensors, "img_txt_enc.stranger": torch.zeros(1)}})
    missing = {name: tensor for name, tensor in tensors.items() if name != "img_txt_enc.img_proj.bias"}
    with pytest.raises(EncoderError, match=r"img_proj\.bias"):
        tern_from_published({"model": missing})
    alias = "img_txt_enc.txt_enc.word_embeddings.weight"
    with pytest.raises(EncoderError, match="should be a copy"):
        tern_from_published({"model": {**tensors, alias: tensors[alias] + 1}})


def test_an_unshared_teran_is_refused(reference_fixtures: Path) -> None:
    path = reference_fixtures / "teran.pth"
    if not path.exists():
        pytest.skip("no teran.pth")
    with pytest.raises(EncoderError, match="two joint encoders"):
        tern_from_published(read_published(path))


class Bomb:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, ...]]:
        return (Path.touch, (Path("exploded"),))  # type: ignore[return-value]


def test_a_hostile_checkpoint_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"model": {}, "config": Bomb()}, "hostile.pth")
    with pytest.raises(EncoderError, match=r"hostile\.pth"):
        read_published(Path("hostile.pth"))
    assert not Path("exploded").exists()


def test_padding_and_order_of_a_batch_change_nothing(reference: tuple[Path, dict[str, NDArray[Any]]]) -> None:
    checkpoint, given = reference
    model = tern_from_published(read_published(checkpoint))
    together = outputs(model, given)["expected_image_global"]
    for i, n in enumerate(given["n_regions"]):
        alone, _ = model.images(
            torch.from_numpy(given["features"][i : i + 1, :n]),
            torch.from_numpy(given["boxes"][i : i + 1, :n]),
            torch.tensor([n]),
        )
        assert np.abs(alone.detach().numpy() - together[i]).max() <= UNIT


def test_an_image_without_regions_has_a_vector(reference: tuple[Path, dict[str, NDArray[Any]]]) -> None:
    model = tern_from_published(read_published(reference[0]))
    width = model.config.region_dim
    with torch.inference_mode():
        vectors, _ = model.images(torch.zeros(2, 0, width), torch.zeros(2, 0, 4), torch.tensor([0, 0]))
        padded, _ = model.images(torch.ones(1, 3, width), torch.ones(1, 3, 4), torch.tensor([0]))
    assert np.abs(vectors.norm(dim=1).numpy() - 1).max() <= UNIT
    assert np.abs((vectors[0] - padded[0]).numpy()).max() <= UNIT


def slow_hinge(S: NDArray[np.float64], margin: float) -> float:
    total = 0.0
    for i in range(len(S)):
        total += max([0.0, *(margin + S[i, j] - S[i, i] for j in range(len(S)) if j != i)])
        total += max([0.0, *(margin + S[j, i] - S[i, i] for j in range(len(S)) if j != i)])
    return total


def test_the_loss_is_the_published_one() -> None:
    for seed in range(20):
        S = np.random.default_rng(seed).uniform(-1, 1, (6, 6))
        found = hinge(torch.from_numpy(S), torch.eye(6, dtype=torch.bool), 0.2)
        assert float(found) == pytest.approx(slow_hinge(S, 0.2), abs=1e-12)


def test_captions_of_one_picture_are_no_negatives() -> None:
    scores = torch.tensor([[0.9, 0.9, 0.0], [0.0, 0.0, 0.9]])
    positive = torch.tensor([[True, True, False], [False, False, True]])
    assert float(hinge(scores, positive)) == 0.0
