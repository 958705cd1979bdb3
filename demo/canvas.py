"""Canvas for painting scenes, and the notation for drawings.

Things and landscapes are stored as text: entries of the form "verb words numbers", separated by
semicolons. Numbers are hundredths of the side of the thing or of the picture, and y points
downwards.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageColor, ImageDraw

RGB = tuple[int, int, int]
Box = tuple[float, float, float, float]
"""Left, top, right, bottom as fractions of the side of the picture."""
Points = NDArray[np.float64]
"""(n, 2)"""


class Sky(NamedTuple):
    """Sky: colours from top to bottom, the light on the land, and the clouds."""

    stops: str
    tint: tuple[float, float, float]
    clouds: int
    cloud: str


SKIES = {
    "sunny": Sky("#469ee8 #96d0f6 #e8f6fc", (1.0, 1.0, 1.0), 2, "#ffffff"),
    "cloudy": Sky("#88a4c0 #b2c6d6 #dee6ea", (0.88, 0.91, 0.93), 6, "#f0f3f6"),
    "rainy": Sky("#586a82 #7c8ea0 #acb8c2", (0.70, 0.77, 0.84), 6, "#6c7a8e"),
    "sunset": Sky("#54468c #e87476 #ffd08a", (0.98, 0.78, 0.72), 2, "#f89e84"),
    "night": Sky("#0c1234 #1e2e62 #4a5c96", (0.34, 0.41, 0.62), 0, "#ffffff"),
}


class Canvas:
    """Square surface with three times the width of the picture. Coordinates are fractions of the
    side, and y points downwards."""

    def __init__(self, size: int, sky: str, rng: np.random.Generator) -> None:
        self.side = size * 3
        self.sky = SKIES[sky]
        self.rng = rng
        self.image = Image.new(
            "RGB",
            (self.side, self.side),
            self.sky.stops.split()[-1],
        )
        self._solid = ImageDraw.Draw(self.image)
        self._glaze = ImageDraw.Draw(self.image, "RGBA")

    def shade(self, colour: RGB, share: float = 1.0) -> RGB:
        """Return ``colour`` in the light of the sky; ``share`` is the strength of the light, 0 to
        1."""
        red, green, blue = (
            int(c * (1 + share * (t - 1))) for c, t in zip(colour, self.sky.tint, strict=True)
        )
        return red, green, blue

    def gradient(self, stops: list[RGB], top: float, bottom: float) -> None:
        """Fill the band from ``top`` to ``bottom`` with a gradient of evenly spaced colours."""
        first, last = (round(edge * self.side) for edge in (top, bottom))
        where = np.linspace(0, len(stops) - 1, last - first)
        places = np.arange(len(stops))
        channels = [np.interp(where, places, channel) for channel in zip(*stops, strict=True)]
        column = Image.fromarray(np.stack(channels, axis=-1).astype(np.uint8)[:, None])
        size = (self.side, last - first)
        self.image.paste(column.resize(size, Image.Resampling.NEAREST), (0, first))

    def fill(self, points: ArrayLike, colour: RGB) -> None:
        """Fill a polygon of (n, 2) points."""
        self._solid.polygon((np.asarray(points, float) * self.side).ravel().tolist(), fill=colour)

    def line(
        self,
        points: ArrayLike,
        width: float,
        colour: RGB,
        alpha: int = 255,
    ) -> None:
        """Draw a line through (n, 2) points."""
        flat = (np.asarray(points, float) * self.side).ravel().tolist()
        draw = self._solid if alpha == 255 else self._glaze
        draw.line(
            flat,
            (*colour, alpha),
            max(1, round(width * self.side)),
            joint="curve",
        )

    def oval(
        self,
        x: float,
        y: float,
        rx: float,
        ry: float,
        colour: RGB,
        alpha: int = 255,
    ) -> None:
        """Fill an ellipse with centre (x, y) and the two radii."""
        box = tuple(edge * self.side for edge in (x - rx, y - ry, x + rx, y + ry))
        (self._solid if alpha == 255 else self._glaze).ellipse(box, (*colour, alpha))

    def glow(
        self,
        x: float,
        y: float,
        rx: float,
        ry: float,
        colour: RGB,
        alpha: int,
    ) -> None:
        """Paint a soft spot: nine nested, nearly transparent ellipses."""
        for share in np.linspace(0.36, 1, 9):
            self.oval(x, y, rx * share, ry * share, colour, alpha)

    def picture(self, size: int) -> Image.Image:
        """Return the canvas reduced to ``size`` x ``size`` pixels, with darker corners and a little
        grain."""
        small = self.image.resize((size, size), Image.Resampling.LANCZOS, reducing_gap=1.5)
        grain = self.rng.integers(-3, 4, (size, size, 1)).astype(np.float32)
        pixels = np.asarray(small, np.float32) * _vignette(size) + grain
        return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


@lru_cache(maxsize=4)
def _vignette(size: int) -> NDArray[np.float32]:
    across = np.linspace(-1, 1, size) ** 2
    return (1 - 0.05 * (across[:, None] + across) ** 1.5).astype(np.float32)[:, :, None]


class Entry(NamedTuple):
    verb: str
    words: tuple[str, ...]
    # These numbers are fractions, not hundredths.
    numbers: tuple[float, ...]


@lru_cache(maxsize=64)
def entries(text: str) -> tuple[Entry, ...]:
    found = []
    for entry in text.split(";"):
        parts = entry.split()
        verb, *words = [part for part in parts if part[0].isalpha() or part[0] == "#"]
        numbers = [float(number) / 100 for number in parts[1 + len(words) :]]
        found.append(Entry(verb, tuple(words), tuple(numbers)))
    return tuple(found)


@lru_cache(maxsize=256)
def rgb(name: str) -> RGB:
    red, green, blue = ImageColor.getrgb(name)[:3]
    return red, green, blue
