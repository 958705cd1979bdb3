"""Regions from the bottom-up attention detector (Anderson et al., CVPR 2018), a Faster R-CNN over a
ResNet-101, trained on Visual Genome. Published TERN, TERAN and VSRN models were trained on its
2,048-wide features.

The network and its tensor names follow the torch port of the Caffe model
(``unc-nlp/frcnn-vg-finetuned``, the LXMERT detector), whose ``pytorch_model.bin`` loads by name.
All sizes are read from the tensors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from msgspec import Meta
from torch import Tensor, nn
from torch.nn import functional
from torchvision.ops import batched_nms, clip_boxes_to_image, nms, roi_pool
from torchvision.transforms.functional import pil_to_tensor

from boc.atomic_files import sha256, text_sha256
from boc.errors import EncoderError
from boc.inputs.images import read_image
from boc.types import Identity, ImageRef, Regions
from boc.vectors import Floats, Ints

from ..networks.foreign import read_tensors, reading_model
from ..runtime import device
from ._shared import parse_spec, write_spec

# Number of pixels between neighbouring cells of the feature maps.
STRIDE = 16
UNUSED = tuple(
    f"roi_heads.box_predictor.{name}."
    for name in ("bbox_pred", "cls_embedding", "fc_attr", "attr_score")
)
SOURCE = (
    "download pytorch_model.bin of unc-nlp/frcnn-vg-finetuned on a machine with internet access, "
    "and name it: bottomup:FILE"
)


@dataclass(frozen=True)
class BottomUpOptions:
    """Options of the region source.

    The source returns at most ``top`` regions whose class confidence is at least ``threshold``,
    most confident first. If two boxes of a class overlap by more than .3, the less confident box
    loses the class. The defaults match the published features with 36 regions per picture, whatever
    their confidence; ``threshold=0.2`` and ``top=100`` match the published features with 10 to 100
    regions, except that there is no lower limit. VSRN++ quotes a threshold of 0.3.
    """

    top: Annotated[int, Meta(ge=1)] = 36
    threshold: Annotated[float, Meta(ge=0, le=1)] = 0.0


def load(argument: str) -> BottomUpRegions:
    """Return the source ``FILE?top=36&threshold=0``. Raises EncoderError if the weights are missing
    or do not match."""
    name, options = parse_spec(argument, BottomUpOptions)
    return BottomUpRegions(Path(name), options)


class BottomUpRegions:
    """Region source that returns the detector's most confident proposals, each with the mean of its
    last feature map as the feature.

    As in the published files, the boxes are the pooled proposals without refinement. The confidence
    of a region is its maximum probability among the classes in which no overlapping proposal is
    more confident.
    """

    def __init__(self, path: Path, options: BottomUpOptions) -> None:
        self._options = options
        self._device = device.pick("auto")
        self._network = read_network(path).to(self._device)
        decides = f"bottomup {sha256(path)} {options.top} {options.threshold} 0.3"
        self.identity = Identity(
            write_spec("bottomup", str(path.resolve()), options),
            text_sha256(decides),
            self._network.width,
        )

    @torch.inference_mode()
    def __call__(self, image: ImageRef) -> Regions:
        pixels, scale = prepare_pixels(pil_to_tensor(read_image(image.path)))
        _, height, width = pixels.shape
        # Drop proposals with a side below 16 pixels in the original picture.
        boxes, features, probabilities = self._network(pixels[None].to(self._device), 16 * scale)
        sure = confidence(boxes, probabilities, 0.3).cpu().numpy()
        corners = (boxes / boxes.new_tensor([width, height] * 2)).cpu().numpy()
        selected, rows = select(corners, sure, self._options)
        return Regions(features.cpu().numpy()[rows], selected)

    def __reduce__(self) -> tuple[Any, ...]:
        return load, (self.identity.spec.partition(":")[2],)


def select(
    corners: Floats,
    confidence: Floats,
    options: BottomUpOptions,
) -> tuple[Floats, Ints]:
    """Return boxes (m, 4) and their rows (m,), selected from ``corners`` (n, 4), x1 y1 x2 y2 as
    fractions, by ``confidence`` (n,).

    Boxes are sorted by descending confidence, and ties by row. Boxes are clipped at the edges of
    the picture, and boxes without area are dropped.
    """
    boxes = corners.astype(np.float32).clip(0, 1)
    usable = (boxes[:, :2] < boxes[:, 2:]).all(axis=1) & (confidence >= options.threshold)
    order = np.argsort(-confidence, kind="stable")
    rows = order[usable[order]][: options.top].astype(np.int64)
    return boxes[rows], rows


def prepare_pixels(picture: Tensor) -> tuple[Tensor, float]:
    """Convert an RGB picture, uint8 (3, h, w), to the network input, float32 (3, H, W), in BGR
    order with the mean subtracted. Also return the scale factor of the sides."""
    sides = picture.shape[1:]
    # The shorter side becomes 600 pixels, unless the longer side would exceed 1,000.
    scale = min(600 / min(sides), 1000 / max(sides))
    size = [max(1, round(side * scale)) for side in sides]
    means = torch.tensor((102.9801, 115.9465, 122.7717))
    pixels = picture.flip(0).float() - means[:, None, None]
    resized = functional.interpolate(
        pixels[None],
        size,
        mode="bilinear",
        align_corners=False,
    )
    return resized[0], scale


def confidence(boxes: Tensor, probabilities: Tensor, overlap: float) -> Tensor:
    """Return the confidences (n,) of boxes (n, 4). Within each class, a box that overlaps a more
    probable box by more than ``overlap`` is dropped. The confidence of a box is the maximum of its
    remaining ``probabilities`` (n, classes), or 0."""
    count, classes = probabilities.shape
    # Every box occurs once per class, (classes * n, 4), together with the class number.
    numbers = torch.arange(classes, device=boxes.device).repeat_interleave(count)
    rows = batched_nms(
        boxes.repeat(classes, 1),
        probabilities.T.reshape(-1),
        numbers,
        overlap,
    )
    stays = torch.zeros_like(numbers, dtype=torch.bool)
    stays[rows] = True
    by_box = stays.reshape(classes, count).T
    return torch.where(by_box, probabilities, 0).amax(dim=1)


class Convolution(nn.Conv2d):
    """Convolution without bias, followed by a batch normalisation ``norm``."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        size: int,
        stride: int = 1,
        padding: int = 0,
        dilation: int = 1,
    ):
        super().__init__(
            inputs,
            outputs,
            size,
            stride,
            padding,
            dilation,
            bias=False,
        )
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, maps: Tensor) -> Tensor:
        normed: Tensor = self.norm(super().forward(maps))
        return normed


class Bottleneck(nn.Module):
    """Residual block (He et al., CVPR 2016) with the stride in the first 1 x 1 convolution, as in
    Caffe."""

    def __init__(
        self,
        inputs: int,
        width: int,
        outputs: int,
        stride: int,
        dilation: int,
        projected: bool,
    ) -> None:
        super().__init__()
        self.conv1 = Convolution(inputs, width, 1, stride)
        self.conv2 = Convolution(width, width, 3, 1, dilation, dilation)
        self.conv3 = Convolution(width, outputs, 1)
        self.shortcut: nn.Module = nn.Identity()
        if projected:
            self.shortcut = Convolution(inputs, outputs, 1, stride)

    def forward(self, maps: Tensor) -> Tensor:
        inner = functional.relu(self.conv1(maps))
        inner = functional.relu(self.conv2(inner))
        return functional.relu(self.conv3(inner) + self.shortcut(maps))


class Detector(nn.Module):
    """Detector that returns proposals for a picture, their features and their class probabilities.
    ``state`` determines the sizes."""

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        super().__init__()
        stem = Convolution(
            3,
            len(state["backbone.stem.conv1.weight"]),
            7,
            2,
            3,
        )
        self.backbone = nn.ModuleDict({"stem": nn.ModuleDict({"conv1": stem})})
        for name, stride in (("res2", 1), ("res3", 2), ("res4", 2)):
            self.backbone[name] = _stage(state, f"backbone.{name}", stride, 1)
        hidden, inputs = state["proposal_generator.rpn_head.conv.weight"].shape[:2]
        anchors = len(state["proposal_generator.rpn_head.objectness_logits.weight"])
        self.proposal_generator = nn.ModuleDict()
        cells = nn.ParameterList([torch.zeros(anchors, 4)])
        self.proposal_generator["anchor_generator"] = nn.ModuleDict({"cell_anchors": cells})
        head = {
            "conv": nn.Conv2d(inputs, hidden, 3, padding=1),
            "objectness_logits": nn.Conv2d(hidden, anchors, 1),
            "anchor_deltas": nn.Conv2d(hidden, 4 * anchors, 1),
        }
        self.proposal_generator["rpn_head"] = nn.ModuleDict(head)
        classes, self.width = state["roi_heads.box_predictor.cls_score.weight"].shape
        # The last stage keeps the resolution of the pooled regions.
        self.roi_heads = nn.ModuleDict({"res5": _stage(state, "roi_heads.res5", 1, 2)})
        predictor = {"cls_score": nn.Linear(self.width, classes)}
        self.roi_heads["box_predictor"] = nn.ModuleDict(predictor)

    def forward(
        self,
        pixels: Tensor,
        least: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Detect regions in pixels (1, 3, H, W). Return boxes (n, 4) in pixels, features (n,
        width), and probabilities (n, classes) without the background, which is the last class.
        Proposals with a side below ``least`` pixels are dropped."""
        maps = functional.relu(self._part("backbone.stem.conv1", pixels))
        maps = functional.max_pool2d(maps, 3, 2, ceil_mode=True)
        for name in ("res2", "res3", "res4"):
            maps = self._part(f"backbone.{name}", maps)
        boxes = self._proposals(
            maps,
            (pixels.shape[2], pixels.shape[3]),
            least,
        )
        # Each region has 14 rows and columns, (n, channels, 14, 14).
        pooled = roi_pool(maps, [boxes], 14, 1 / STRIDE)
        features = self._part("roi_heads.res5", pooled).mean(dim=(2, 3))
        scores = self._part("roi_heads.box_predictor.cls_score", features)
        return boxes, features, scores.softmax(dim=1)[:, :-1]

    def _proposals(
        self,
        maps: Tensor,
        size: tuple[int, int],
        least: float,
    ) -> Tensor:
        head = "proposal_generator.rpn_head"
        hidden = functional.relu(self._part(f"{head}.conv", maps))
        # Maps (1, a, rows, columns) and (1, 4 * a, rows, columns) become one row per anchor.
        scores = self._part(f"{head}.objectness_logits", hidden)[0]
        scores = scores.permute(1, 2, 0).reshape(-1)
        steps = self._part(f"{head}.anchor_deltas", hidden)[0]
        steps = steps.permute(1, 2, 0).reshape(-1, 4)
        cells = self.get_parameter("proposal_generator.anchor_generator.cell_anchors.0")
        anchors = anchors_of(cells, *maps.shape[2:])
        boxes = clip_boxes_to_image(move_boxes(anchors, steps), size)
        # Of the 6,000 best proposals, keep at most 300 that do not overlap a better proposal.
        order = scores.argsort(descending=True, stable=True)[:6000]
        boxes = boxes[order]
        large = (boxes[:, 2:] - boxes[:, :2]).amin(dim=1) >= max(least, 1)
        boxes = boxes[large]
        chosen: Tensor = boxes[nms(boxes, scores[order][large], 0.7)[:300]]
        return chosen

    def _part(self, name: str, maps: Tensor) -> Tensor:
        output: Tensor = self.get_submodule(name)(maps)
        return output


def anchors_of(cells: Tensor, rows: int, columns: int) -> Tensor:
    """Return anchors (rows * columns * a, 4), which repeat the anchors of a cell (a, 4) at each
    position of a feature map, row by row."""
    y, x = torch.meshgrid(
        torch.arange(rows),
        torch.arange(columns),
        indexing="ij",
    )
    shifts = STRIDE * torch.stack([x, y, x, y], dim=-1).to(cells)
    return (shifts[:, :, None] + cells).reshape(-1, 4)


def move_boxes(boxes: Tensor, steps: Tensor) -> Tensor:
    """Return boxes (n, 4) moved and resized by ``steps`` (n, 4): shifts of the centre relative to
    the sides, and changes in the logarithms of the sides (Girshick et al., CVPR 2014, appendix
    C)."""
    sides = boxes[:, 2:] - boxes[:, :2]
    centres = boxes[:, :2] + sides / 2 + steps[:, :2] * sides
    # A side cannot grow by more than this factor.
    growth = steps[:, 2:].clamp(max=math.log(1000 / 16))
    halves = sides * growth.exp() / 2
    return torch.cat([centres - halves, centres + halves], dim=1)


def read_network(path: Path) -> Detector:
    """Return the detector with the weights in ``path``, for inference. Raises EncoderError if a
    tensor is missing, unused or of another shape, or if the file cannot be read without running
    code."""
    if not path.is_file():
        raise EncoderError(f"{path}: bottom-up attention weights do not exist; {SOURCE}")
    with reading_model(
        lambda reason: f"{path}: not the weights of bottom-up attention ({reason}); {SOURCE}",
    ):
        state = read_tensors(path)
        state = {name: tensor for name, tensor in state.items() if not name.startswith(UNUSED)}
        network = Detector(state)
        network.load_state_dict(state)
    return network.eval()


def _stage(
    state: Mapping[str, Tensor],
    name: str,
    stride: int,
    dilation: int,
) -> nn.Sequential:
    """Return the residual blocks ``name``, sized by their tensors in ``state``."""
    blocks: list[nn.Module] = []
    while f"{name}.{len(blocks)}.conv1.weight" in state:
        block = f"{name}.{len(blocks)}"
        width, inputs = state[f"{block}.conv1.weight"].shape[:2]
        outputs = len(state[f"{block}.conv3.weight"])
        projected = f"{block}.shortcut.weight" in state
        blocks.append(Bottleneck(inputs, width, outputs, stride, dilation, projected))
        stride = 1
    if not blocks:
        raise KeyError(f"no {name}.0.conv1.weight")
    return nn.Sequential(*blocks)
