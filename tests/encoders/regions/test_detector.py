"""Detectors against what their own libraries make of the same picture, on tiny networks saved here."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from PIL import Image

from boc import plugins
from boc.errors import EncoderError
from boc.types import ImageRef
from tests.helpers import Bomb, refuse_connections

SIZE = 80, 60
QUERIES = 9
LABELS = 3
SIDES = {"shortest_edge": 64, "longest_edge": 96}
RESNET = {"embedding_size": 8, "hidden_sizes": [8, 8, 8, 16], "depths": [1, 1, 1, 1], "layer_type": "basic"}
DETR = {
    "use_timm_backbone": False, "backbone": None, "d_model": 32, "encoder_layers": 1, "decoder_layers": 2,
    "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16,
    "num_queries": QUERIES, "num_labels": LABELS,
}  # fmt: skip
STAGES = ["stage2", "stage3", "stage4"]


def save(network: Any, processor: Any, folder: Path) -> str:
    """Save a network, its weights spread so that its queries disagree."""
    import torch

    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weights in network.parameters():
            weights.add_(torch.randn(weights.shape, generator=generator) * 0.1)
    network.save_pretrained(folder)
    processor.save_pretrained(folder)
    return str(folder)


def make_detr(folder: Path, kind: str = "Detr", **levels: Any) -> str:
    t = pytest.importorskip("transformers")
    backbone = t.ResNetConfig(**RESNET, out_features=STAGES if levels else ["stage4"])
    config = getattr(t, f"{kind}Config")(backbone_config=backbone, **levels, **DETR)
    processor = getattr(t, f"{kind}ImageProcessor")(size=SIDES)
    return save(getattr(t, f"{kind}ForObjectDetection")(config), processor, folder)


def make_rtdetr(folder: Path) -> str:
    t = pytest.importorskip("transformers")
    config = t.RTDetrConfig(
        backbone_config=t.RTDetrResNetConfig(**RESNET, out_features=STAGES), encoder_hidden_dim=16,
        encoder_in_channels=[8, 8, 16], encoder_ffn_dim=16, encoder_attention_heads=2, d_model=16, num_queries=QUERIES,
        decoder_in_channels=[16, 16, 16], decoder_ffn_dim=16, decoder_layers=1, decoder_attention_heads=2,
        num_labels=LABELS, num_denoising=0,
    )  # fmt: skip
    return save(t.RTDetrForObjectDetection(config), t.RTDetrImageProcessor(size={"height": 64, "width": 64}), folder)


def make_yolos(folder: Path) -> str:
    t = pytest.importorskip("transformers")
    config = t.YolosConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=[64, 64],
        patch_size=16, num_detection_tokens=QUERIES, num_labels=LABELS,
    )  # fmt: skip
    return save(t.YolosForObjectDetection(config), t.YolosImageProcessor(size=SIDES), folder)


DETECTORS: dict[str, Callable[[Path], str]] = {
    "detr": make_detr,
    "conditional": lambda folder: make_detr(folder, "ConditionalDetr"),
    "deformable": lambda folder: make_detr(folder, "DeformableDetr", num_feature_levels=3),
    "rtdetr": make_rtdetr,
    "yolos": make_yolos,
}


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_connections(monkeypatch)


@pytest.fixture
def picture(tmp_path: Path) -> ImageRef:
    y, x = np.mgrid[0 : SIZE[1], 0 : SIZE[0]]
    pixels = np.stack([x * 3, y * 4, (x * y) % 256], axis=-1).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    return ImageRef("a.png", tmp_path / "a.png")


def head(network: Any, features: NDArray[np.float32]) -> NDArray[np.float32]:
    """Class confidences of query states, by the network's own last layer."""
    import torch

    kind = type(network).__name__
    if kind.startswith("RTDetr"):
        layer = network.model.decoder.class_embed[-1]
    elif kind.startswith("Deformable"):
        layer = network.class_embed[-1]
    else:
        layer = network.class_labels_classifier
    with torch.inference_mode():
        logits = layer(torch.from_numpy(features))
    scores = logits.softmax(-1)[:, :-1] if kind.startswith(("Detr", "Yolos")) else logits.sigmoid()
    return scores.amax(1).numpy()


@pytest.mark.slow
@pytest.mark.parametrize("make", DETECTORS.values(), ids=DETECTORS.keys())
def test_boxes_and_confidences(make: Callable[[Path], str], tmp_path: Path, picture: ImageRef) -> None:
    import torch
    from transformers import AutoImageProcessor, AutoModelForObjectDetection

    torch.manual_seed(1)  # of some random networks several boxes are the same
    folder = make(tmp_path / "model")
    regions = plugins.region_source(f"detector:{folder}?threshold=0")(picture)
    network = AutoModelForObjectDetection.from_pretrained(folder, local_files_only=True).eval()
    processor = AutoImageProcessor.from_pretrained(folder, local_files_only=True, backend="pil")
    with torch.inference_mode():
        output = network(**processor(images=Image.open(picture.path), return_tensors="pt"))
    (theirs,) = processor.post_process_object_detection(output, threshold=0.0, target_sizes=[SIZE[::-1]])
    seen: dict[tuple[float, ...], float] = {}  # one box a query, with its best class
    for score, box in zip(theirs["scores"].tolist(), theirs["boxes"].tolist(), strict=True):
        key = tuple(round(v, 3) for v in box)
        seen[key] = max(score, seen.get(key, 0))
    ranked = sorted(seen.items(), key=lambda pair: -pair[1])
    assert len(regions) == len(ranked) == QUERIES
    assert len(np.unique(regions.boxes, axis=0)) == QUERIES
    expected = (np.array([box for box, _ in ranked]) / (SIZE * 2)).clip(0, 1)
    nearest = np.abs(regions.boxes[:, None] - expected).max(axis=2).argmin(axis=1)
    assert sorted(nearest.tolist()) == list(range(QUERIES))  # equal confidences may be in another order
    np.testing.assert_allclose(regions.boxes, expected[nearest], atol=1e-4)
    scores = head(network, regions.features)
    tolerance = 1e-4 if torch.cuda.is_available() else 1e-5  # torch rounds the factors of convolutions on a GPU
    np.testing.assert_allclose(scores, [score for _, score in ranked], atol=tolerance)
    np.testing.assert_allclose(scores, np.array([score for _, score in ranked])[nearest], atol=tolerance)


@pytest.mark.slow
def test_parameters_choose_among_the_same_boxes(tmp_path: Path, picture: ImageRef) -> None:
    folder = make_rtdetr(tmp_path / "model")
    everything = plugins.region_source(f"detector:{folder}?threshold=0")
    of_all = everything(picture)
    few = plugins.region_source(f"detector:{folder}?threshold=0&top=4")
    assert np.array_equal(few(picture).features, of_all.features[:4])
    assert len(plugins.region_source(f"detector:{folder}?threshold=1")(picture)) == 0
    plain = plugins.region_source(f"detector:{folder}?top=36&threshold=0.2")
    assert plain.identity.spec == f"detector:{folder}"
    digests = {source.identity.digest for source in (everything, few, plain)}
    assert len(digests) == 3


@given(
    boxes=arrays(np.float32, (7, 4), elements=st.floats(-1, 2, width=32)),
    confidence=arrays(np.float32, 7, elements=st.sampled_from([0, 0.25, 0.5, 1])),
    top=st.integers(1, 8),
)
def test_kept_boxes_are_those_a_slow_loop_keeps(
    boxes: NDArray[np.float32], confidence: NDArray[np.float32], top: int
) -> None:
    from encoders.regions._shared import BoxOptions, select

    kept, rows = select(boxes, confidence, BoxOptions(top, 0.25))
    expected = []
    for i in sorted(range(7), key=lambda i: (-confidence[i], i)):
        x1, y1, x2, y2 = (min(max(v, 0), 1) for v in boxes[i])
        if confidence[i] >= 0.25 and x1 < x2 and y1 < y2 and len(expected) < top:
            expected.append((i, [x1, y1, x2, y2]))
    assert rows.tolist() == [i for i, _ in expected]
    assert kept.tolist() == [box for _, box in expected]


def test_hostile_weights(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    folder = Path(make_yolos(tmp_path / "model"))
    (folder / "model.safetensors").unlink()
    bomb = Bomb(os.mkdir, str(marker))
    hostile = [pickle.dumps(content, protocol=2) for content in ({"a": bomb}, bomb)]
    for content in (*hostile, b"", b"rubbish", b"PK\x03\x04rubbish"):
        (folder / "pytorch_model.bin").write_bytes(content)
        with pytest.raises(EncoderError, match="safely"):
            plugins.region_source(f"detector:{folder}")
        assert not marker.exists()


def test_code_beside_the_weights_is_not_run(tmp_path: Path) -> None:
    folder = Path(make_yolos(tmp_path / "model"))
    (folder / "evil.py").write_text(f"import os; os.mkdir({str(tmp_path / 'ran')!r})")
    config = folder / "config.json"
    stranger = '{"auto_map": {"AutoConfig": "evil.C", "AutoModelForObjectDetection": "evil.M"}, "model_type": "evil"'
    config.write_text(stranger + "," + config.read_text().replace('"model_type": "yolos",', "").lstrip()[1:])
    with pytest.raises(EncoderError, match="safely"):
        plugins.region_source(f"detector:{folder}")
    assert not (tmp_path / "ran").exists()


def test_a_model_with_holes_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = Path(make_yolos(tmp_path / "model"))
    path = folder / "model.safetensors"
    state = load_file(path)
    whole = path.read_bytes()
    name = next(key for key in state if "class_labels" in key)
    save_file({key: value for key, value in state.items() if key != name}, path, {"format": "pt"})
    with pytest.raises(EncoderError, match="1 weights are missing"):
        plugins.region_source(f"detector:{folder}")
    path.write_bytes(whole[:-100])
    with pytest.raises(EncoderError, match="no model that"):
        plugins.region_source(f"detector:{folder}")
    path.unlink()
    with pytest.raises(EncoderError, match="no weights"):
        plugins.region_source(f"detector:{folder}")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("detector", "no such folder"),
        ("detector:nobody/nothing", "hf download nobody/nothing"),
        ("detector:no where", "no such folder"),
        ("detector:{home}", "no config.json"),
        ("detector:x?size=3", "unknown parameter 'size=3'; known: top=36, threshold=0.2"),
        ("detector:x?top", "unknown parameter 'top'"),
        ("detector:x?", "unknown parameter ''"),
        ("detector:x?top=many", "top must be of type int, got 'many'"),
        ("detector:x?top=3&top=4", "top is given twice"),
        ("detector:x?top=0", "top must be at least 1, got 0"),
        ("detector:x?threshold=2", "threshold must be between 0 and 1, got 2.0"),
        ("detector:x?threshold=nan", "threshold must be between 0 and 1, got nan"),
    ],
)
def test_wrong_detector_specs(spec: str, words: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(EncoderError) as caught:
        plugins.region_source(spec.replace("{home}", str(tmp_path)))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
