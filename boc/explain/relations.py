"""The strongest relations between the regions of a picture: the "Top Relationships" of VSRN++ (Li et al., TPAMI 2022,
section 4.5, fig. 3 and 4)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from boc.errors import BocError
from boc.types import ImageRef

if TYPE_CHECKING:
    from boc.plugins import Encoder

BOX, ARROW, PAPER = (213, 38, 30), (30, 90, 220), (255, 255, 255)
THINNEST, SHARE = 2, 250  # line width in pixels, and as a part of the longer side of the photo
HEAD = 5  # length of an arrow's head in line widths
LETTERS = 7  # size of numbers in line widths


class Relation(NamedTuple):
    """Region ``to`` takes from region ``of`` with this ``weight``; regions are numbered from 0."""

    of: int
    to: int
    weight: float


class Relations(NamedTuple):
    """The strongest relations of a picture, and the boxes float32 (n, 4) of its regions, as fractions of it."""

    strongest: list[Relation]
    boxes: NDArray[np.float32]


def relations(encoder: Encoder, image: ImageRef, count: int) -> Relations:
    """The ``count`` strongest relations in the first layer of region reasoning.

    BocError if the encoder has no such layer, or the picture fewer than two regions; ImageError if it cannot be used.
    """
    affinities = getattr(encoder, "affinities", None)
    if affinities is None:
        raise BocError(f"{encoder.identity.spec}: relates no regions to each other; use a vsrn or vsrnpp")
    regions = encoder.prepare(image)
    if len(regions) < 2:
        raise BocError(f"{image.path}: has {len(regions)} regions, a relation needs two; use another region source")
    return Relations(strongest(affinities(regions), count), regions.boxes)


def strongest(affinities: NDArray[np.float32], count: int) -> list[Relation]:
    """The largest entries of R (n, n) beside the diagonal, ties to the earlier row, then column."""
    weights = affinities.astype(np.float64)
    np.fill_diagonal(weights, -np.inf)
    order = np.argsort(-weights, axis=None, kind="stable")[: min(count, weights.size - len(weights))]
    takers, givers = np.unravel_index(order, weights.shape)
    return [Relation(int(of), int(to), float(weights[to, of])) for of, to in zip(givers, takers, strict=True)]


def draw_relations(photo: Image.Image, found: Relations) -> Image.Image:
    """The photo with the boxes of related regions in red, with their numbers from 1, and a blue arrow for each relation
    between their centres."""
    drawn = photo.convert("RGB")
    draw = ImageDraw.Draw(drawn)
    width = max(THINNEST, max(photo.size) // SHARE)
    corners = np.clip(found.boxes.astype(np.float64), 0, 1) * (*photo.size, *photo.size)
    for region in sorted({number for relation in found.strongest for number in relation[:2]}):
        x1, y1, x2, y2 = corners[region].round().astype(int).tolist()
        draw.rectangle((x1, y1, max(x1, x2 - 1), max(y1, y2 - 1)), outline=BOX, width=width)
        font = ImageFont.load_default(LETTERS * width)
        draw.text((x1 + 2 * width, y1 + width), str(region + 1), fill=BOX, font=font, stroke_width=1, stroke_fill=PAPER)
    centres = (corners[:, :2] + corners[:, 2:]) / 2
    for relation in found.strongest:
        _arrow(draw, tuple(centres[relation.of].tolist()), tuple(centres[relation.to].tolist()), width)
    return drawn


def _arrow(draw: ImageDraw.ImageDraw, start: tuple[float, ...], end: tuple[float, ...], width: int) -> None:
    angle, head = math.atan2(end[1] - start[1], end[0] - start[0]), HEAD * width
    wings = [(end[0] - head * math.cos(angle + turn), end[1] - head * math.sin(angle + turn)) for turn in (-0.4, 0.4)]
    draw.line([start[:2], end[:2]], fill=ARROW, width=width)
    draw.polygon([(end[0], end[1]), *wings], fill=ARROW)
