"""Paint the things in scenes from shapes and colours."""

import colorsys
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from demo.canvas import RGB, Box, Canvas, Entry, Points, entries, rgb

# Hue in degrees, saturation, value.
COLOURS = {
    "red": (356, 0.82, 0.87),
    "orange": (25, 0.90, 0.97),
    "yellow": (50, 0.82, 0.99),
    "green": (142, 0.72, 0.62),
    "blue": (217, 0.78, 0.86),
    "purple": (276, 0.60, 0.68),
    "pink": (334, 0.46, 0.98),
    "white": (215, 0.03, 0.98),
}
# "pair" also paints the mirror image of a shape. A line begins with its width. A blob is a closed
# curve.
ART = {
    "balloon": """
        blob main 50 0 78 7 94 30 84 54 61 76 39 76 16 54 6 30 22 7;
        pair blob dark 50 0 30 9 20 30 27 54 43 76 47 76 40 54 37 30 41 10;
        blob light 50 1 56 10 58 30 56 54 53 76 47 76 44 54 42 30 44 10;
        pair line #2c2e42 0.8 40 76 44 88;
        poly #2c2e42 39 74.5 61 74.5 60 77.5 40 77.5; poly #8e6040 42 87 58 87 56 100 44 100;
        poly #7c4c30 41 86 59 86 59 89.5 41 89.5""",
    "boat": """
        line #74503a 2.5 52 0 52 78; blob main 55 3 68 20 84 46 94 70 74 69 55 69 56 40;
        blob light 48 10 38 26 22 50 8 69 28 68 48 69 46 40; poly main 52 0 52 7 38 3.5;
        poly oldlace 2 74 98 74 95 79 5 79; poly dark 5 78 95 78 80 97 20 97;
        poly #8e6040 14 90 86 90 80 97 20 97""",
    "house": """
        poly slategray 70 8 82 8 82 40 70 40; poly main 10 40 90 40 90 100 10 100;
        poly dark 10 42 90 42 90 50 10 50;
        poly #6a525c 50 3 100 46 0 46; poly trim 50 14 60 22 60 32 40 32 40 22;
        pair poly oldlace 17 57 37 57 37 78 17 78; pair poly #cce8f4 19 59 35 59 35 76 19 76;
        pair line oldlace 1.6 27 58 27 77; poly #8e6040 43 66 57 66 57 100 43 100;
        oval #ffcc52 52.5 82 55 84.5""",
    "tree": """
        poly #74503a 45 55 55 55 60 100 40 100; pair line #74503a 3.5 50 72 33 52;
        oval dark 2 30 50 74;
        oval dark 50 30 98 74; oval dark 24 34 76 80; oval main 4 24 54 68; oval main 46 24 96 68;
        oval main 20 0 80 62; oval light 28 6 56 28; oval light 10 30 30 46;
        pair oval trim 62 38 68 44;
        pair oval trim 80 50 86 56""",
    "car": """
        blob main 16 62 27 43 36 35 62 35 74 42 84 62; blob #cce8f4 25 60 31 46 37 41 47 41 47 60;
        blob #cce8f4 52 60 52 41 62 41 69 46 77 60;
        blob main 1 72 3 62 16 57.5 50 56 84 57.5 97 64 99 74 97 86 50 87 3 86;
        poly dark 2 76 98 76 97.5 86 2.5 86;
        line light 1.2 6 66 94 66; oval #ffcc52 91 65 98 73; pair oval #2c2e42 13 72 37 96;
        pair oval slategray 19 78 31 90""",
    "umbrella": """
        line #74503a 3 50 2 50 90 52 95 57 96 61 93 62 88;
        blob main 50 4 70 8 88 22 99 46 86 42 74 48 50 44 26 48 14 42 1 46 12 22 30 8;
        pair blob light 50 4 38 12 30 26 26 48 38 43 50 44;
        blob dark 50 4 57 14 61 28 62 46 50 43 38 46 39 28 43 14;
        oval #2c2e42 48 1 52 6""",
    "kite": """
        line #2c2e42 1.4 50 70 44 78 56 85 45 92 52 100; poly main 50 0 86 28 50 72 14 28;
        poly light 50 0 50 28 14 28;
        poly dark 50 28 86 28 50 72; line oldlace 1.2 50 0 50 72; line oldlace 1.2 14 28 86 28;
        poly trim 48 79 40 75 38 83; poly trim 48 79 56 75 57 84; poly dark 50 90 42 86 41 94;
        poly dark 50 90 58 86 59 95""",
    "ball": """
        oval main 4 8 96 100; blob trim 50 54 30 42 14 28 28 14 44 9 50 30;
        blob trim 50 54 70 44 90 40 96 56 88 78 70 68;
        blob trim 50 54 46 76 44 100 26 93 14 82 30 70;
        blob dark 96 56 90 80 72 95 46 100 72 87 86 72; oval light 45 49 55 59;
        blob light 20 30 30 19 40 15 32 24 24 34""",
    "flower": """
        line seagreen 4.5 50 50 52 75 50 100; blob seagreen 51 94 60 76 86 70 76 88 60 96;
        blob seagreen 50 90 40 74 16 70 24 86 40 93; oval dark 37 0 63 34;
        pair blob dark 54 28 60 8 80 2 86 20 70 32;
        pair blob main 54 30 72 18 93 28 86 46 62 40; pair blob dark 54 34 74 40 82 60 64 66 52 50;
        blob main 50 34 60 50 58 68 42 68 40 50; oval main 40 2 60 30; oval #7c4c30 36 20 64 48;
        oval #ffcc52 39 22 61 44""",
    "mushroom": """
        blob oldlace 40 45 60 45 62 72 70 96 50 100 30 96 38 72;
        blob slategray 40 52 60 52 61 62 50 65 39 62;
        blob main 50 3 76 10 95 32 98 52 80 57 50 54 20 57 2 52 5 32 24 10;
        blob dark 98 50 80 57 50 54 20 57 2 50 20 50 50 47 80 50; oval trim 40 12 60 30;
        oval trim 14 26 29 41;
        oval trim 69 24 85 40; oval trim 46 36 58 45""",
    "lighthouse": """
        blob slategray 8 100 14 90 30 86 50 84 72 87 88 92 94 100;
        poly trim 37 30 63 30 72 92 28 92;
        poly main 37 30 63 30 65 42 35 42; poly main 33 56 67 56 69 70 31 70;
        poly dark 57 30 63 30 65 42 58.5 42;
        poly dark 60 56 67 56 69 70 61.5 70; poly #2c2e42 31 26 69 26 67 31 33 31;
        poly #ffcc52 40 14 60 14 60 26 40 26; pair line #2c2e42 1.2 46 14 46 26;
        poly dark 50 0 66 15 34 15;
        blob #2c2e42 45 92 45 80 50 76 55 80 55 92""",
    "fish": """
        blob dark 30 52 14 34 0 26 5 52 0 80 14 72; blob dark 40 30 52 12 70 16 74 32;
        blob dark 50 72 52 90 64 88 66 72;
        blob main 24 52 40 30 64 24 86 34 100 53 86 72 64 80 40 74;
        blob trim 44 30 52 27 54 52 52 78 44 76 47 52;
        blob trim 62 25 68 25 71 52 68 79 61 79 64 52;
        oval oldlace 79 38 90 49; oval #2c2e42 83 41 89 47; line #2c2e42 1.4 98 58 91 60 88 59""",
    "cat": """
        line dark 9 72 90 90 88 94 72 86 60;
        blob main 50 36 66 46 76 72 78 96 50 100 22 96 24 72 34 46;
        blob light 50 52 60 68 58 90 50 95 42 90 40 68; pair poly main 24 2 50 14 26 34;
        pair poly #fabab8 28 8 38 14 29 22;
        blob main 50 10 72 14 80 30 70 46 50 50 30 46 20 30 28 14;
        pair oval oldlace 32 23 44 35; pair oval #2c2e42 36 24 42 34.5;
        poly #2c2e42 46 36.5 54 36.5 50 40;
        pair line #2c2e42 0.9 40 40 20 37; pair line #2c2e42 0.9 40 42.5 20 44;
        pair oval dark 32 92 48 100""",
    "dog": """
        line dark 5 14 52 6 40 4 26; poly dark 15 62 28 62 24 98 15 98;
        poly dark 62 62 72 62 70 98 62 98;
        blob main 9 50 22 42 44 45 66 42 78 48 78 62 66 72 44 67 28 74 13 68;
        poly main 22 64 35 64 32 98 24 98; poly main 53 62 64 62 62 98 54 98;
        oval dark 24 94 36 100; oval dark 54 94 66 100;
        blob light 34 62 48 57 60 61 56 66 42 66;
        blob main 61 50 62 30 68 16 82 10 91 18 90 34 80 42 77 58;
        blob main 80 20 94 22 99 28 97 36 86 38 78 33; oval #2c2e42 93 20 100 28;
        line #2c2e42 1 96 34 88 32; oval oldlace 79 17 87 25; oval #2c2e42 82 18 87 24;
        blob dark 62 14 72 9 77 20 74 36 66 42 60 30; line trim 3.5 63 45 78 48""",
    "tent": """
        poly dark 62 20 99 100 50 100; poly main 46 14 80 100 1 100; poly light 46 14 40 100 1 100;
        poly #2c2e42 45 42 60 100 31 100; blob oldlace 45 42 40 70 31 100 37 100 44 75;
        line #74503a 2 46 16 49 6;
        line #74503a 2 44 6 46.5 16; poly trim 49 6 64 10 48.5 15""",
    "rocket": """
        blob #fa8432 40 80 60 80 58 90 50 100 42 90; blob #ffcc52 44 80 56 80 54 87 50 93 46 87;
        pair blob dark 32 50 18 64 13 86 26 78 38 76;
        blob main 50 0 63 14 70 36 69 58 62 80 38 80 31 58 30 36 37 14;
        blob light 46 6 40 20 36 38 37 58 42 77 46 50; blob trim 50 0 58 7 64 19 50 22 36 19 42 7;
        oval oldlace 38.5 29 61.5 52; oval #2c2e42 41 31.5 59 49.5; oval #cce8f4 43 33 56 46;
        poly #2c2e42 37 77 63 77 61 83 39 83""",
    "butterfly": """
        pair blob dark 50 50 64 24 86 6 100 14 96 40 78 55;
        pair blob main 50 50 66 28 84 12 93 20 88 38 74 50;
        pair blob dark 50 50 74 54 90 70 84 92 66 94 54 70;
        pair blob main 50 52 70 58 82 72 77 86 67 87 58 70;
        pair oval trim 78 20 87 30; pair oval light 66 70 76 80;
        pair line #2c2e42 1.4 50 26 56 12 64 6;
        blob #2c2e42 50 24 55 34 54 60 50 84 46 60 45 34""",
}
TILT = {
    "kite": 22.0,
    "rocket": 26.0,
    "butterfly": 16.0,
    "fish": 18.0,
    "balloon": 4.0,
    "boat": 3.0,
    "umbrella": 8.0,
}


class _Shape(NamedTuple):
    tone: str
    # A width of 0 marks a filled shape.
    width: float
    points: Points


@lru_cache(maxsize=64)
def _shapes(kind: str) -> tuple[_Shape, ...]:
    return tuple(shape for entry in entries(ART[kind]) for shape in _outlines(entry))


def _outlines(entry: Entry) -> Iterator[_Shape]:
    words = (entry.verb, *entry.words)
    *pair, form, tone = words
    width = 0.0
    numbers = list(entry.numbers)
    if form == "line":
        width = numbers.pop(0)
    points = {"blob": _smooth, "oval": _ellipse}.get(form, np.asarray)(np.reshape(numbers, (-1, 2)))
    yield _Shape(tone, width, points)
    if pair:
        yield _Shape(tone, width, points * (-1, 1) + (1, 0))


def _smooth(knots: Points, steps: int = 6) -> Points:
    """Return a closed Catmull-Rom curve through the knots."""
    before, after, beyond = (
        np.roll(
            knots,
            shift,
            axis=0,
        )[:, None]
        for shift in (1, -1, -2)
    )
    here = knots[:, None]
    t = np.linspace(0, 1, steps, endpoint=False)[:, None]
    bend = 2 * here + (after - before) * t + (2 * before - 5 * here + 4 * after - beyond) * t**2
    return np.asarray((bend + (3 * here - before - 3 * after + beyond) * t**3) / 2).reshape(-1, 2)


def _ellipse(corners: Points, steps: int = 40) -> Points:
    angle = np.linspace(
        0,
        2 * np.pi,
        steps,
        endpoint=False,
    )[:, None]
    radii = (corners[1] - corners[0]) / 2
    return np.asarray(corners.mean(axis=0) + radii * np.hstack([np.cos(angle), np.sin(angle)]))


def _hsv(hue: float, saturation: float, value: float) -> RGB:
    rgb = colorsys.hsv_to_rgb(
        hue / 360 % 1,
        min(saturation, 1),
        min(value, 1),
    )
    return round(rgb[0] * 255), round(rgb[1] * 255), round(rgb[2] * 255)


def _tones(colour: str, rng: np.random.Generator) -> dict[str, RGB]:
    """Return the shades of a thing in this colour: base, shadow, light, and trimmings."""
    hue, saturation, value = COLOURS[colour]
    shift = rng.uniform(-5, 5)
    value = value + rng.uniform(-0.03, 0.02)
    return {
        "main": _hsv(hue + shift, saturation, value),
        "dark": _hsv(hue + shift - 4, saturation * 1.06 + 0.04, value * 0.80),
        "light": _hsv(hue + shift + 3, saturation * 0.72, value * 1.1 + 0.04),
        "trim": (250, 247, 240) if colour != "white" else (168, 184, 208),
    }


def paint_thing(
    canvas: Canvas,
    kind: str,
    colour: str,
    box: Box,
    rng: np.random.Generator,
) -> None:
    """Paint one thing into ``box``, possibly slightly rotated or mirrored. Raises KeyError for an
    unknown kind or colour."""
    tones = _tones(colour, rng)
    side = box[2] - box[0]
    angle = np.radians(TILT.get(kind, 0.0) * rng.uniform(-1, 1))
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    turn[0] *= rng.choice((-1.0, 1.0))
    for shape in _shapes(kind):
        points = box[:2] + side * ((shape.points - 0.5) @ turn + 0.5)
        tone = canvas.shade(tones.get(shape.tone) or rgb(shape.tone), 0.25)
        if shape.width:
            canvas.line(points, shape.width * side, tone)
        else:
            canvas.fill(points, tone)


def paint_base(canvas: Canvas, box: Box, wet: bool) -> None:
    """Paint the ground under a thing: a soft shadow, or ripples on water."""
    x = (box[0] + box[2]) / 2
    bottom = box[3]
    half = (box[2] - box[0]) / 2
    if not wet:
        canvas.glow(
            x,
            bottom - 0.004,
            half * 1.06,
            half * 0.17,
            (22, 26, 44),
            15,
        )
        return
    for k, share in enumerate((0.98, 0.74, 0.46)):
        canvas.oval(
            x,
            bottom + 0.016 * k,
            half * share,
            0.007,
            canvas.shade((236, 248, 255)),
            150 - 35 * k,
        )
