"""Train the demo's eyes on painted scenes: ``python -m demo.eyes GALLERY... -o eyes.onnx``.

The eyes are a small residual network. Each cell of its last feature map is trained to predict facts
about the scene at this position: the kind and colour of the thing in front, the place, and the sky.
With ``--regions onnx:FILE``, the feature map is the input of a network that learns from captions.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from boc.atomic_files import replacing
from demo.canvas import SKIES, Box
from demo.land import PLACES
from demo.scene import Scene, read_scenes
from demo.things import ART, COLOURS
from encoders.regions.lite import export
from encoders.runtime.device import pick

# Pixels per side of a picture, and cells per side of the map.
SIDE = 128
CELLS = 8
FEATURES = 128
# The classes of each head.
HEADS = {"kind": len(ART) + 1, "colour": len(COLOURS), "place": len(PLACES), "sky": len(SKIES)}
# Class that is ignored in training.
UNKNOWN = -100


class Eyes(nn.Module):
    """Network that maps pixels (B, 3, SIDE, SIDE) in [0, 255] to non-negative cell features (B,
    FEATURES, CELLS, CELLS)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            _convolution(3, 12, 3, 2),
            _convolution(12, 24, 3, 2),
            _convolution(24, 48, 3, 2),
            *(_Residual(48) for _ in range(2)),
            _convolution(48, 96, 3, 2),
            *(_Residual(96) for _ in range(3)),
            _convolution(96, FEATURES, 1, 1),
        )

    def forward(self, pixels: Tensor) -> Tensor:
        made: Tensor = self.layers(pixels / 127.5 - 1)
        return made


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.steps = nn.Sequential(
            _convolution(width, width, 3, 1),
            _convolution(width, width, 3, 1),
        )

    def forward(self, rows: Tensor) -> Tensor:
        made: Tensor = rows + self.steps(rows)
        return made


def _convolution(before: int, width: int, kernel: int, stride: int) -> nn.Module:
    convolution = nn.Conv2d(before, width, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(width), nn.ReLU())


def describe(scene: Scene, boxes: Sequence[Box]) -> NDArray[np.int64]:
    """Return the classes (HEADS, CELLS, CELLS) of a scene: the kind and colour of the front thing
    whose box contains the centre of a cell, the place, and the sky. In a cell without a thing, the
    kind is the last class and the colour is UNKNOWN."""
    place = list(PLACES).index(scene.background)
    sky = list(SKIES).index(scene.sky)
    nothing = (len(ART), UNKNOWN, place, sky)
    made = np.tile(np.array(nothing)[:, None, None], (1, CELLS, CELLS))
    centres = (np.arange(CELLS) + 0.5) / CELLS
    # Things are in painting order, so the last thing is in front.
    for k in sorted(range(len(boxes)), key=lambda k: boxes[k][3]):
        left, top, right, bottom = boxes[k]
        thing = scene.things[k]
        rows = (centres > top) & (centres < bottom)
        columns = (centres > left) & (centres < right)
        inside = rows[:, None] & columns
        made[0, inside] = list(ART).index(thing.kind)
        made[1, inside] = list(COLOURS).index(thing.colour)
    return made


def read_lessons(gallery: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return a gallery's pixels (n, 3, SIDE, SIDE), resized as in the region source, and their
    classes (n, HEADS, CELLS, CELLS)."""
    scenes = read_scenes(gallery / "scenes.json")
    entries = json.loads((gallery / "scenes.json").read_text(encoding="utf-8"))
    boxes = [entry["boxes"] for entry in entries]
    pixels = np.empty((len(scenes), 3, SIDE, SIDE), np.uint8)
    for k, row in enumerate(pixels):
        with Image.open(gallery / "images" / f"{k:05d}.jpg") as picture:
            resized = picture.resize((SIDE, SIDE), Image.Resampling.BILINEAR)
            row[:] = np.asarray(resized).transpose(2, 0, 1)
    return pixels, np.stack([describe(*pair) for pair in zip(scenes, boxes, strict=True)])


def loss(logits: Tensor, classes: Tensor) -> Tensor:
    """Return the sum of the heads' losses for their logits (B, sum of HEADS, CELLS, CELLS)."""
    parts = zip(logits.split(list(HEADS.values()), dim=1), classes.unbind(1), strict=True)
    losses = [functional.cross_entropy(*part, ignore_index=UNKNOWN) for part in parts]
    return torch.stack(losses).sum()


def train(pixels: Tensor, classes: Tensor, epochs: int, seed: int) -> Eyes:
    """Train the eyes on lessons, with half of the batches mirrored. Print the loss of each
    epoch."""
    torch.manual_seed(seed)
    torch.backends.cudnn.deterministic = True
    device = pick("auto")
    eyes = Eyes()
    network = nn.Sequential(eyes, nn.Conv2d(FEATURES, sum(HEADS.values()), 1))
    network = network.to(device).to(memory_format=torch.channels_last)
    batch = min(64, len(pixels))
    steps = len(pixels) // batch
    rate = 5e-3
    optimiser = torch.optim.AdamW(network.parameters(), rate, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, epochs * steps, pct_start=0.15)
    for epoch in range(epochs):
        total = torch.zeros((), device=device)
        for rows in torch.randperm(len(pixels))[: steps * batch].split(batch):
            seen, told = (values[rows].to(device) for values in (pixels, classes))
            if torch.rand(()) < 0.5:
                seen = seen.flip(3)
                told = told.flip(3)
            value = loss(network(seen.float()), told)
            optimiser.zero_grad()
            value.backward()
            optimiser.step()
            schedule.step()
            total += value.detach()
        click.echo(f"epoch {epoch + 1} of {epochs}: loss {total.item() / steps:.3f}", err=True)
    return eyes.cpu().eval()


@click.command()
@click.argument("galleries", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    help="ONNX file to write.",
)
@click.option("--epochs", default=12, show_default=True, help="Number of epochs.")
@click.option(
    "--seed",
    default=0,
    show_default=True,
    help="Random seed. The same seed produces the same eyes on the same machine.",
)
def main(galleries: Sequence[Path], output: Path, epochs: int, seed: int) -> None:
    """Train the eyes on GALLERIES painted by demo.gallery."""
    lessons = zip(*map(read_lessons, galleries), strict=True)
    pixels, classes = (torch.from_numpy(np.concatenate(parts)) for parts in lessons)
    with replacing(output) as temporary:
        temporary.write_bytes(export(train(pixels, classes, epochs, seed), SIDE, {}))


if __name__ == "__main__":
    main()
