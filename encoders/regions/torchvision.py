"""Regions from a Faster or Mask R-CNN of ``torchvision``: its boxes, with the outputs of its box head."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torchvision.models import detection, get_model, get_model_weights, list_models
from torchvision.transforms.functional import pil_to_tensor

from boc.atomic_files import sha256
from boc.errors import EncoderError
from boc.inputs.images import read_image
from boc.types import Identity, ImageRef, Regions

from ..runtime import device
from ._shared import Kept, parse_spec, select, write_spec

CLASSES = "roi_heads.box_predictor.cls_score.bias"


@dataclass(frozen=True)
class Options(Kept):
    """Options of the source. ``nms``: if two boxes of one class overlap by more than this, the less confident one is
    dropped (0.5 in torchvision, 0.7 in bottom-up attention). ``weights``: a file instead of the published weights in
    the cache of torch."""

    nms: float = 0.5
    weights: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.nms <= 1:
            raise ValueError(f"nms must be between 0 and 1, got {self.nms}")


def load(argument: str) -> TorchvisionRegions:
    """The source ``NAME?weights=FILE``, NAME a detector of torchvision such as fasterrcnn_resnet50_fpn.

    EncoderError if the name is unknown, or the weights are missing or do not fit.
    """
    name, options = parse_spec(argument, Options)
    return TorchvisionRegions(name, options)


class TorchvisionRegions:
    """Boxes after suppression of overlaps within each class, each with the vector of the box head, 1,024 wide.

    Features are pooled again at the final boxes, which were refined after their proposals were pooled.
    """

    def __init__(self, name: str, options: Options | None = None) -> None:
        self._options = options or Options()
        known = sorted(n for n in list_models(module=detection) if "rcnn" in n and "keypoint" not in n)
        if name not in known:
            raise EncoderError(f"torchvision:{name}: no such detector with regions; known: {', '.join(known)}")
        path = Path(self._options.weights) if self._options.weights else _published(name)
        if not path.is_file():
            raise EncoderError(f"{path}: no such weights of {name}; write torchvision:{name}?weights=FILE")
        self._device = device.pick("auto")
        self._network = _network(name, path, self._options).eval().to(self._device)
        if self._options.weights:
            self._options = Options(**(vars(self._options) | {"weights": str(path.resolve())}))
        decides = f"{name} {sha256(path)} {self._options.top} {self._options.threshold} {self._options.nms}"
        dim = self._network.roi_heads.box_predictor.cls_score.in_features
        spec = write_spec("torchvision", name, self._options)
        self.identity = Identity(spec, hashlib.sha256(decides.encode()).hexdigest(), dim)

    @torch.inference_mode()
    def __call__(self, image: ImageRef) -> Regions:
        pixels = pil_to_tensor(read_image(image.path)).to(self._device).float() / 255
        images, _ = self._network.transform([pixels])
        maps = self._network.backbone(images.tensors)
        proposals, _ = self._network.rpn(images, maps)
        heads, sizes = self._network.roi_heads, images.image_sizes
        (detections,), _ = heads(maps, proposals, sizes)
        height, width = sizes[0]
        corners = detections["boxes"] / detections["boxes"].new_tensor([width, height, width, height])
        boxes, rows = select(corners.cpu().numpy(), detections["scores"].cpu().numpy(), self._options)
        kept = detections["boxes"][torch.from_numpy(rows).to(self._device)]
        vectors = heads.box_head(heads.box_roi_pool(maps, [kept], sizes))
        return Regions(vectors.float().cpu().numpy(), boxes)

    def __reduce__(self) -> tuple[Any, ...]:
        return load, (self.identity.spec.partition(":")[2],)


def _published(name: str) -> Path:
    """The file of the published weights in the cache of torch. EncoderError says where to get them."""
    url = get_model_weights(name).DEFAULT.url
    path: Path = Path(torch.hub.get_dir()) / "checkpoints" / url.rpartition("/")[2]
    if not path.is_file():
        raise EncoderError(
            f"torchvision:{name}: no weights at {path}; fetch {url} where there is internet, "
            f"and put it there or name it: torchvision:{name}?weights=FILE"
        )
    return path


def _network(name: str, path: Path, options: Options) -> Any:
    """The detector with the weights of ``path``, without missing or unused tensors; only its boxes are computed."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        classes = len(state[CLASSES])
        network = get_model(name, weights=None, weights_backbone=None, num_classes=classes)
        network.load_state_dict(state)
    except (OSError, EOFError, ValueError, RuntimeError, LookupError, TypeError, UnpicklingError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise EncoderError(f"{path}: not the weights of {name} that can be read safely ({first})") from error
    heads = network.roi_heads
    heads.score_thresh, heads.nms_thresh, heads.detections_per_img = options.threshold, options.nms, options.top
    heads.mask_roi_pool = None
    return network
