"""Paint the landscapes behind scenes: sky, weather and land."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from demo.canvas import RGB, Canvas, entries, rgb


class Place(NamedTuple):
    """Landscape, with the lower end of its sky, and the y positions of the lower edges of things on
    land and on water."""

    horizon: float
    land: tuple[float, float] | None = (0.80, 0.95)
    water: tuple[float, float] | None = None


PLACES = {
    "beach": Place(0.48, (0.80, 0.95), (0.57, 0.64)),
    "sea": Place(0.5, None, (0.66, 0.92)),
    "lake": Place(0.5, (0.91, 0.96), (0.60, 0.80)),
    "meadow": Place(0.5, (0.78, 0.95)),
    "forest": Place(0.5, (0.82, 0.95)),
    "mountains": Place(0.55, (0.84, 0.95)),
    "desert": Place(0.55),
    "city": Place(0.5, (0.82, 0.95)),
    "snow": Place(0.5, (0.78, 0.95)),
    "lavender": Place(0.5, (0.78, 0.95)),
}
PLACE_ART = {
    "beach": """
        water #2480bc #5cccd6 48 72; hill #ecfafa 68.6 1.2 2.4; hill #f6dea8 71 1.2 2.4;
        hill #eed094 86 3;
        specks #d6b278 26 78 .4""",
    "sea": """
        water #3088c4 #4c9cd0 50 70; swell #2478b8 64; swell #1c68a8 75; swell #165a98 87""",
    "lake": """
        hill #7e9cbe 36 9 2.2; hill #5c8896 43 6 2; pines #32685c 22 50 51 6 10;
        water #78bad0 #2a76a0 50 92;
        hill #68a85c 88 2.5; hill #529450 95 2""",
    "meadow": """
        hill #96c896 52 6; hill #80c068 60 5; hill #6eb654 70 4; hill #5ca84a 86 3;
        specks #fffaec 12 74 .6;
        specks #ffd660 12 74 .6; specks #f08a96 12 74 .6""",
    "forest": """
        pines #86b2a8 16 62 66 40 52; pines #528c7a 13 68 72 36 50; hill #245848 70 1;
        pines #2c6452 9 72 76 30 50;
        hill #58804a 74 1.5; hill #6a9050 86 3; specks #8aae60 20 80 .7""",
    "mountains": """
        peaks #96a6c4 4 66 22 32; peaks #6a7a9c 3 77 32 46; hill #70a080 74 3;
        pines #346c60 14 75 79 8 13;
        hill #60a064 82 3""",
    "desert": """
        hill #e8b080 56 4 2.4; hill #eebc74 64 5; cacti #54865a 3 68 16; hill #e6aa60 75 4;
        hill #d89652 88 4""",
    "city": """
        towers #96a8c4 42 0; towers #64729a 60 1; band #bebec8 #aaaab6 74 79;
        band #686a78 #545664 79 100;
        dashes #f6eece 88.5""",
    "snow": """
        hill #cedef0 54 6; pines #608a94 12 58 64 10 18; hill #e0ecf8 66 4; hill #eef5fc 80 4;
        specks #ffffff 60 0 .9""",
    "lavender": """
        hill #96b2aa 50 5; hill #8cba78 55 2; band #96b06e #7a9c5c 57 100;
        rows #8a68be #a482d4 57""",
}


# Positions and sizes of a cloud's puffs.
CLOUD = (
    (-0.62, 0.0, 0.36),
    (0.62, 0.02, 0.34),
    (-0.2, -0.18, 0.5),
    (0.26, -0.1, 0.42),
    (0, 0.1, 0.4),
)


def paint_sky(canvas: Canvas, name: str, bottom: float) -> None:
    """Paint the sky down to ``bottom``, with its sun, moon, stars or clouds."""
    rng = canvas.rng
    x = canvas.rng.uniform(0.14, 0.86)
    canvas.gradient(
        [rgb(stop) for stop in canvas.sky.stops.split()],
        0,
        bottom,
    )
    if name == "sunset":
        canvas.glow(x, bottom - 0.2, 0.34, 0.34, (255, 226, 150), 15)
        canvas.oval(x, bottom - 0.2, 0.09, 0.09, (255, 236, 178))
    elif name == "sunny":
        canvas.glow(x, 0.13, 0.15, 0.15, (255, 250, 210), 20)
        canvas.oval(x, 0.13, 0.06, 0.06, (255, 240, 150))
    elif name == "night":
        _moon_and_stars(canvas, x, bottom)
    for _ in range(canvas.sky.clouds):
        x = rng.uniform(-0.05, 1.05)
        y = rng.uniform(0.05, bottom * 0.7)
        half = rng.uniform(0.07, 0.15)
        for dx, dy, share in CLOUD:
            radius = half * share
            colour = rgb(canvas.sky.cloud)
            canvas.oval(x + dx * half, y + dy * half, radius * 1.3, radius, colour)


def _moon_and_stars(canvas: Canvas, x: float, bottom: float) -> None:
    for left, top, radius in canvas.rng.uniform((0, 0, 0.0012), (1, bottom, 0.0036), (60, 3)):
        canvas.oval(left, top, radius, radius, (250, 246, 220))
    canvas.glow(x, 0.15, 0.19, 0.19, (190, 206, 255), 8)
    canvas.oval(x, 0.15, 0.075, 0.075, (252, 246, 214))
    for dx, dy, radius in ((-0.02, -0.02, 0.016), (0.025, 0.012, 0.012), (-0.012, 0.034, 0.009)):
        canvas.oval(x + dx, 0.15 + dy, radius, radius, (230, 222, 190))


def paint_rain(canvas: Canvas) -> None:
    """Paint slanting streaks of rain over the whole picture."""
    for x, y in canvas.rng.uniform(0, 1.1, (70, 2)):
        canvas.line(
            [[x, y], [x - 0.016, y + 0.05]],
            0.003,
            (226, 236, 246),
            120,
        )


def paint_land(canvas: Canvas, place: str) -> None:
    """Paint the landscape in front of the sky. Raises KeyError for an unknown place."""
    for entry in entries(PLACE_ART[place]):
        LAND[entry.verb](canvas, [canvas.shade(rgb(word)) for word in entry.words], *entry.numbers)


def _hill(
    canvas: Canvas,
    colours: list[RGB],
    y: float,
    rise: float,
    waves: float = 0.016,
) -> None:
    x = np.linspace(0, 1, 41)
    phase = canvas.rng.uniform(0, 2 * np.pi, 2)
    turns = 100 * np.pi * waves * x
    crest = y - rise * (0.7 * np.sin(turns + phase[0]) + 0.3 * np.sin(2.7 * turns + phase[1]))
    canvas.fill(np.concatenate([np.stack([x, crest], axis=-1), [[1, 1], [0, 1]]]), colours[0])


def _swell(canvas: Canvas, colours: list[RGB], y: float) -> None:
    x = np.linspace(0, 1, 61)
    crest = y - 0.012 * np.abs(np.sin((3 - 1.6 * y) * 3 * np.pi * x + canvas.rng.uniform(0, np.pi)))
    wave = np.stack([x, crest], axis=-1)
    canvas.fill(np.concatenate([wave, [[1, 1], [0, 1]]]), colours[0])
    canvas.line(wave, 0.005, canvas.shade((196, 228, 244)))


def _water(canvas: Canvas, colours: list[RGB], top: float, bottom: float) -> None:
    canvas.gradient(colours, top, bottom)
    for x, y in canvas.rng.uniform((0, top + 0.01), (1, bottom), (26, 2)):
        canvas.oval(
            x,
            y,
            0.02 + 0.09 * (y - top),
            0.0035,
            canvas.shade((232, 248, 255)),
            95,
        )


def _specks(
    canvas: Canvas,
    colours: list[RGB],
    count: float,
    top: float,
    radius: float,
) -> None:
    for x, y in canvas.rng.uniform((0, top), (1, 1), (round(100 * count), 2)):
        canvas.oval(
            x,
            y,
            radius * (0.4 + y),
            radius * (0.3 + 0.7 * y),
            colours[0],
        )


# These points are the right half of a fir, from the tip down.
FIR = ((0, -1), (0.2, -0.62), (0.1, -0.64), (0.3, -0.3), (0.16, -0.32), (0.38, 0))


def _pines(
    canvas: Canvas,
    colours: list[RGB],
    count: float,
    far: float,
    near: float,
    low: float,
    high: float,
) -> None:
    rng = canvas.rng
    number = round(100 * count)
    fir = np.array([*FIR, *((-x, y) for x, y in reversed(FIR))])
    where = rng.permutation((np.arange(number) + rng.uniform(0.1, 0.9, number)) / number)
    for x, y in zip(where, np.sort(rng.uniform(far, near, number)), strict=True):
        red, green, blue = (np.asarray(colours[0]) * rng.uniform(0.94, 1.06)).astype(int).tolist()
        canvas.fill((x, y) + fir * rng.uniform(low, high), (red, green, blue))


def _peaks(
    canvas: Canvas,
    colours: list[RGB],
    count: float,
    base: float,
    low: float,
    high: float,
) -> None:
    rng = canvas.rng
    rock = colours[0]
    dark = (rock[0] * 4 // 5, rock[1] * 4 // 5, rock[2] * 5 // 6)
    right = [[0, -1], [0.34, -0.6], [0.2, -0.68], [0.1, -0.56]]
    left = [[-0.06, -0.68], [-0.2, -0.56], [-0.34, -0.6]]
    number = round(100 * count)
    for x in (np.arange(number) + rng.uniform(0.2, 0.8, number)) / number:
        foot = np.array([x, base])
        tall = rng.uniform(low, high)
        # A mountain has a lit side, a shaded side, and snow on top.
        canvas.fill(foot + tall * np.array([[0, -1], [0.85, 0], [-0.85, 0]]), rock)
        canvas.fill(foot + tall * np.array([[0, -1], [0.85, 0], [0.1, 0], [-0.06, -0.5]]), dark)
        canvas.fill(foot + tall * np.array([*right, *left]), canvas.shade((250, 252, 255)))
        canvas.fill(foot + tall * np.array([*right, [0, -0.66]]), canvas.shade((206, 218, 238)))


def _cacti(
    canvas: Canvas,
    colours: list[RGB],
    count: float,
    base: float,
    tall: float,
) -> None:
    arms = [
        [[0, 0.2], [0, -1]],
        [[0, -0.4], [0.3, -0.4], [0.3, -0.8]],
        [[0, -0.25], [-0.28, -0.25], [-0.28, -0.6]],
    ]
    for x, y in canvas.rng.uniform((0.04, base), (0.96, base + 0.06), (round(100 * count), 2)):
        for arm in arms:
            points = (x, y) + tall * np.array(arm)
            canvas.line(points, 0.16 * tall, colours[0])
            canvas.oval(
                points[-1, 0],
                points[-1, 1],
                0.08 * tall,
                0.08 * tall,
                colours[0],
            )


def _towers(canvas: Canvas, colours: list[RGB], tall: float, windows: float) -> None:
    rng = canvas.rng
    left = -0.05
    while left < 1:
        right = left + rng.uniform(0.1, 0.17)
        top = 0.74 - tall * rng.uniform(0.4, 1.0)
        canvas.fill([[left, top], [right, top], [right, 0.76], [left, 0.76]], colours[0])
        if windows:
            _windows(canvas, left + 0.018, top + 0.03, right - 0.026)
        left = right + rng.uniform(-0.01, 0.02)


def _windows(canvas: Canvas, left: float, top: float, right: float) -> None:
    lit = 0.75 - 0.7 * canvas.sky.tint[0]
    glass = canvas.shade((176, 200, 224))
    for y in np.arange(top, 0.7, 0.055):
        for x in np.arange(left, right, 0.034):
            pane = (255, 222, 130) if canvas.rng.random() < lit else glass
            right = x + 0.018
            bottom = y + 0.028
            canvas.fill([[x, y], [right, y], [right, bottom], [x, bottom]], pane)


def _dashes(canvas: Canvas, colours: list[RGB], y: float) -> None:
    for x in np.arange(-0.05, 1, 0.2):
        bottom = y + 0.015
        canvas.fill([[x, y], [x + 0.1, y], [x + 0.09, bottom], [x - 0.01, bottom]], colours[0])


def _rows(canvas: Canvas, colours: list[RGB], top: float) -> None:
    x = canvas.rng.uniform(0.35, 0.65)
    for k in range(-9, 10):
        far = x + 0.055 * k
        near = x + 0.34 * k
        left = [[near - 0.1, 1], [far - 0.012, top]]
        canvas.fill([*left, [far + 0.012, top], [near + 0.1, 1]], colours[0])
        canvas.fill([*left, [far, top], [near, 1]], colours[1])


LAND: dict[str, Callable[..., None]] = {
    "hill": _hill,
    "swell": _swell,
    "band": Canvas.gradient,
    "water": _water,
    "specks": _specks,
    "pines": _pines,
    "peaks": _peaks,
    "cacti": _cacti,
    "towers": _towers,
    "dashes": _dashes,
    "rows": _rows,
}
