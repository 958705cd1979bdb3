"""TERAN as the scenes' recipe has it: rows by themselves, gathered vectors, scaled features."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from boc.errors import EncoderError
from encoders.networks import text_towers
from encoders.networks.teran import TeranConfig
from encoders.runtime.model_folder import make
from encoders.training.warmstart import scale

TEXTS = ["a red box", "blue", "something at the very left of it"] * 2
SIZES = {
    "region_dim": 6,
    "visual_width": 8,
    "visual_layers": 0,
    "joint_width": 8,
    "joint_layers": 0,
    "heads": 2,
}


def network(**settings: Any) -> tuple[Any, Any]:
    torch.manual_seed(0)
    tower = text_towers.load_tower("small", 1, TEXTS)
    made = make(
        "teran",
        {
            **SIZES,
            "vector": "gathered",
            "last_word": True,
            **settings,
        },
        tower.text,
    )
    return made.eval(), tower.tokens


def pictures() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return (torch.randn(3, 5, 6), torch.rand(3, 5, 4), torch.tensor([5, 2, 3]))


@torch.no_grad()
def test_gathered_vector():
    made, tokens = network()
    features, boxes, lengths = pictures()
    images = made.images(features, boxes, lengths)
    for vector, rows, n in zip(
        images.vectors,
        images.sets,
        lengths.tolist(),
        strict=True,
    ):
        total = torch.zeros(8)
        for row in rows[1 : 1 + n]:
            total += float(np.exp(float(made.image_gather(row)))) * row
        assert torch.allclose(vector, total / total.norm(), atol=1e-5)
    ids, lengths = text_towers.pad(tokens.ids(TEXTS[:3]))
    told = made.texts(ids, lengths)
    for vector, rows, n in zip(
        told.vectors,
        told.sets,
        lengths.tolist(),
        strict=True,
    ):
        total = sum(float(np.exp(float(made.text_gather(row)))) * row for row in rows[1 : n - 1])
        assert torch.allclose(vector, total / total.norm(), atol=1e-5)


@torch.no_grad()
def test_regions_without_layers():
    made, _ = network()
    features, boxes, lengths = pictures()
    whole = made.images(features, boxes, lengths).sets
    for region in range(5):
        alone = made.images(
            features[:1, [region]],
            boxes[:1, [region]],
            torch.tensor([1]),
        ).sets
        assert torch.allclose(alone[0, 1], whole[0, 1 + region], atol=1e-6)
    mixed, _ = network(visual_layers=1)
    whole = mixed.images(features, boxes, lengths).sets
    alone = mixed.images(features[:1, :1], boxes[:1, :1], torch.tensor([1])).sets
    assert not torch.allclose(alone[0, 1], whole[0, 1], atol=1e-3)


@torch.no_grad()
def test_feature_scaling():
    plain = network()[0]
    scaled = network(scaled=True)[0]
    features, boxes, lengths = pictures()
    rows = features.reshape(-1, 6) * torch.tensor([1, 1e3, 1e-3, 1, 1, 0]) + 5
    scale(scaled, rows)
    plain.load_state_dict(
        {k: v for k, v in scaled.state_dict().items() if not k.startswith("region_")},
    )
    deviation = rows.std(dim=0, correction=0)
    known = (rows - rows.mean(dim=0)) / (deviation + 0.01 * deviation.mean())
    one = scaled.images(
        rows.reshape(3, 5, 6),
        boxes,
        lengths,
    )
    other = plain.images(
        known.reshape(3, 5, 6),
        boxes,
        lengths,
    )
    assert torch.allclose(one.vectors, other.vectors, atol=1e-5)
    for a, b, n in zip(
        one.sets,
        other.sets,
        lengths.tolist(),
        strict=True,
    ):
        assert torch.allclose(a[: 1 + n], b[: 1 + n], atol=1e-4)
    assert torch.isfinite(one.sets).all()


def test_a_box_code_may_weigh_more():
    """As if the columns of the first layer that read it were longer."""
    plain = network()[0]
    heavy = network(box_weight=8.0)[0]
    weights = plain.state_dict()
    heavy.load_state_dict(weights)
    features, boxes, lengths = pictures()
    with torch.no_grad():
        found = heavy.images(features, boxes, lengths).sets
        assert not torch.allclose(
            plain.images(
                features,
                boxes,
                lengths,
            ).sets,
            found,
            atol=1e-3,
        )
        weights["img_enc.pos_encoding_image.map.0.weight"][:, 6:] *= 8
        plain.load_state_dict(weights)
        assert torch.allclose(
            plain.images(
                features,
                boxes,
                lengths,
            ).sets,
            found,
            atol=1e-5,
        )


def test_empty_text():
    made, tokens = network()
    with torch.no_grad():
        found = made.texts(*text_towers.pad(tokens.ids([""]))).vectors
    assert found.norm(dim=1).tolist() == pytest.approx([1.0])


def test_a_vector_that_is_none_is_refused():
    with pytest.raises(EncoderError, match="vector must be one of first"):
        TeranConfig(vector="last")


def test_no_layers_have_no_weights():
    made, _ = network()
    assert isinstance(made.transformer_encoder_1, nn.Module)
    assert not [name for name in made.state_dict() if "transformer_encoder" in name]
