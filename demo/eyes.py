"""Train the eyes of the demo on painted scenes: ``python -m demo.eyes GALLERY -o eyes.onnx``.

Eyes are a small convolutional network. Each cell of its last map learns what the painter knows of it: the kind and the
colour of the thing there, the place, the sky, and the kinds of the things left of it, right of it, above and below.
The map is what ``--regions onnx:FILE`` gives to a network that learns from captions.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

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

SIDE = 112  # pixels of a picture
PATCH = 4  # pixels of a side of the patches that the first layer reads
CELLS = 7  # of a side of the map
WIDTHS = (32, 64, 96)  # channels of the maps, each half as wide and high as the one before
FEATURES = 128
HEADS = {"kind": len(ART) + 1, "colour": len(COLOURS), "place": len(PLACES), "sky": len(SKIES), "beside": 4 * len(ART)}
UNKNOWN = -100  # a class that is not learned
WEIGHTS = {"kind": 1.0, "colour": 1.0, "place": 1.0, "sky": 1.0, "beside": 5.0}  # of the losses
BATCH = 32
RATE = 3e-3


class Eyes(nn.Module):
    """Pixels (B, 3, SIDE, SIDE) in [0, 255] to features of cells (B, FEATURES, CELLS, CELLS), none negative."""

    def __init__(self) -> None:
        super().__init__()
        small, middle, large = WIDTHS
        self.layers = nn.Sequential(
            _convolution(3, small, PATCH, PATCH),
            _convolution(small, middle, 3, 2),
            _convolution(middle, middle, 3, 1),
            _convolution(middle, large, 3, 2),
            _Residual(large),
            _convolution(large, FEATURES, 1, 1),
        )

    def forward(self, pixels: Tensor) -> Tensor:
        made: Tensor = self.layers(pixels / 127.5 - 1)
        return made


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.steps = nn.Sequential(_convolution(width, width, 3, 1), _convolution(width, width, 3, 1))

    def forward(self, rows: Tensor) -> Tensor:
        made: Tensor = rows + self.steps(rows)
        return made


def _convolution(before: int, width: int, kernel: int, stride: int) -> nn.Module:
    padding = kernel // 2 if kernel % 2 else 0
    convolution = nn.Conv2d(before, width, kernel, stride, padding, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(width), nn.ReLU())


def read_pixels(paths: Sequence[Path]) -> NDArray[np.uint8]:
    """Return the pixels of pictures uint8 (n, 3, SIDE, SIDE), resized as the source of regions resizes them."""
    pixels = np.empty((len(paths), 3, SIDE, SIDE), np.uint8)
    for row, path in zip(pixels, paths, strict=True):
        with Image.open(path) as picture:
            row[:] = np.asarray(picture.resize((SIDE, SIDE), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    return pixels


def describe(scene: Scene, boxes: Sequence[Box]) -> dict[str, NDArray[Any]]:
    """Return what each cell should tell, by the name of the head: classes (CELLS, CELLS), of ``beside`` flags
    (4 * kinds, CELLS, CELLS). Cells without a thing have no kind, no colour and nothing beside them."""
    kinds, colours = list(ART), list(COLOURS)
    shape = (CELLS, CELLS)
    made = {
        "kind": np.full(shape, len(kinds)),
        "colour": np.full(shape, UNKNOWN),
        "place": np.full(shape, list(PLACES).index(scene.background)),
        "sky": np.full(shape, list(SKIES).index(scene.sky)),
        "beside": np.zeros((4, len(kinds), *shape), np.float32),
    }
    centres = (np.arange(CELLS) + 0.5) / CELLS
    for k in sorted(range(len(boxes)), key=lambda k: boxes[k][3]):  # as they are painted: the last in front
        box, thing = boxes[k], scene.things[k]
        rows, columns = ((centres > box[axis]) & (centres < box[axis + 2]) for axis in (1, 0))
        here = rows[:, None] & columns
        made["kind"][here] = kinds.index(thing.kind)
        made["colour"][here] = colours.index(thing.colour)
        made["beside"][:, :, here] = 0
        for other, neighbour in zip(boxes, scene.things, strict=True):
            for side, holds in enumerate(_sides(other, box)):
                made["beside"][side, kinds.index(neighbour.kind), here] = holds
    return made | {"beside": made["beside"].reshape(-1, *shape)}


def _sides(a: Box, b: Box) -> tuple[bool, ...]:
    """Return whether ``a`` is left of ``b``, right of it, above and below."""
    return a[2] <= b[0], b[2] <= a[0], a[3] <= b[1], b[3] <= a[1]


def mirror(boxes: Sequence[Box]) -> list[Box]:
    return [(1 - right, top, 1 - left, bottom) for left, top, right, bottom in boxes]


class Lessons(NamedTuple):
    pixels: Tensor  # uint8 (n, 3, SIDE, SIDE)
    targets: dict[str, Tensor]


def read_lessons(gallery: Path) -> Lessons:
    """Read a gallery of ``demo.gallery``, and each of its pictures in a mirror."""
    scenes = read_scenes(gallery / "scenes.json")
    boxes = [entry["boxes"] for entry in json.loads((gallery / "scenes.json").read_text(encoding="utf-8"))]
    pixels = torch.from_numpy(read_pixels([gallery / "images" / f"{k:05d}.jpg" for k in range(len(scenes))]))
    told = [describe(*pair) for pair in zip(scenes, boxes, strict=True)]
    told += [describe(scene, mirror(each)) for scene, each in zip(scenes, boxes, strict=True)]
    targets = {name: torch.from_numpy(np.stack([each[name] for each in told])) for name in HEADS}
    return Lessons(torch.cat([pixels, pixels.flip(3)]), targets)


def loss(made: Tensor, targets: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the loss of each head, given the logits of all of them (B, sum of HEADS, CELLS, CELLS)."""
    logits = dict(zip(HEADS, made.split(list(HEADS.values()), dim=1), strict=True))
    losses = {
        name: functional.cross_entropy(logits[name], targets[name], ignore_index=UNKNOWN)
        for name in ("kind", "colour", "place", "sky")
    }
    on = (targets["colour"] != UNKNOWN)[:, None].expand_as(targets["beside"])
    return losses | {"beside": functional.binary_cross_entropy_with_logits(logits["beside"][on], targets["beside"][on])}


def train(lessons: Lessons, epochs: int, seed: int) -> Eyes:
    """Train eyes on lessons, whose second half is the first in a mirror: an epoch sees each picture once, one way or
    the other. Prints the mean losses of each epoch."""
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True)
    eyes = Eyes()
    network = nn.Sequential(eyes, nn.Conv2d(FEATURES, sum(HEADS.values()), 1)).to(memory_format=torch.channels_last)
    count = len(lessons.pixels) // 2
    batch = min(BATCH, count)
    steps = count // batch
    optimiser = torch.optim.AdamW(network.parameters(), RATE, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, epochs * steps, pct_start=0.15)
    for epoch in range(epochs):
        order = torch.randperm(count) + count * torch.randint(2, (count,))
        sums = dict.fromkeys(HEADS, 0.0)
        for rows in order[: steps * batch].split(batch):
            made = network(lessons.pixels[rows].float().contiguous(memory_format=torch.channels_last))
            losses = loss(made, {name: values[rows] for name, values in lessons.targets.items()})
            optimiser.zero_grad()
            torch.stack([WEIGHTS[name] * value for name, value in losses.items()]).sum().backward()
            optimiser.step()
            schedule.step()
            sums = {name: total + losses[name].item() for name, total in sums.items()}
        means = ", ".join(f"{name} {total / steps:.3f}" for name, total in sums.items())
        click.echo(f"epoch {epoch + 1} of {epochs}, losses: {means}", err=True)
    return eyes.eval()


@click.command()
@click.argument("gallery", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The file of the network.")
@click.option("--epochs", default=16, show_default=True, help="Passes over the pictures.")
@click.option("--seed", default=0, show_default=True, help="The same seed makes the same eyes, on the same machine.")
def main(gallery: Path, output: Path, epochs: int, seed: int) -> None:
    """Train eyes on a GALLERY of demo.gallery."""
    eyes = train(read_lessons(gallery), epochs, seed)
    with replacing(output) as temporary:
        temporary.write_bytes(export(eyes, SIDE, {}))


if __name__ == "__main__":
    main()
