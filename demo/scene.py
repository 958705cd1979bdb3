"""Compose scenes of things with a layout and captions, and draw galleries."""

import csv
import json
from collections.abc import Collection, Container, Iterator, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from demo.canvas import SKIES, Box, Canvas
from demo.land import PLACES, paint_land, paint_rain, paint_sky
from demo.things import ART, COLOURS, paint_base, paint_thing

# Side of a thing as a fraction of the picture's side.
SIZES = {"small": 0.21, "": 0.33, "big": 0.48}
# This table maps each relation to its inverse.
RELATIONS = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}
FLYERS = ("balloon", "kite", "rocket", "butterfly")
SWIMMERS = ("boat", "fish")
# This file marks a folder whose pictures may be replaced.
MARK = ".gallery"

NOUNS: dict[str, tuple[str, ...]] = {kind: (kind,) for kind in ART} | {
    "balloon": ("balloon", "hot-air balloon"),
    "boat": ("boat", "sailing boat", "sailboat"),
    "house": ("house", "cottage"),
    "umbrella": ("umbrella", "parasol"),
    "mushroom": ("mushroom", "toadstool"),
    "ball": ("ball", "beach ball"),
    "cat": ("cat", "kitten"),
    "dog": ("dog", "puppy"),
}
SIZE_WORDS = {"small": ("small", "little", "tiny"), "": (), "big": ("big", "large", "huge")}
RELATION_WORDS = {
    "left of": ("to the left of", "left of", "on the left of"),
    "right of": ("to the right of", "right of", "on the right of"),
    "above": ("above", "higher than"),
    "below": ("below", "lower than"),
}
VERBS: dict[str, tuple[str, ...]] = {
    "balloon": ("floats", "drifts"),
    "boat": ("sails", "floats"),
    "cat": ("sits",),
    "dog": ("stands", "plays"),
    "flower": ("grows", "blooms"),
    "kite": ("flies",),
    "car": ("is parked",),
    "ball": ("lies",),
    "rocket": ("flies", "zooms"),
    "butterfly": ("flutters",),
    "fish": ("leaps", "jumps"),
}
# Each place has a preposition for things on the ground, followed by its names.
PLACE_WORDS = {
    "beach": ("on", "a sandy beach", "the beach", "the seashore"),
    "sea": ("on", "the open sea", "the ocean", "the waves of the sea"),
    "lake": ("at", "a lake", "a quiet lake", "the shore of a lake"),
    "meadow": ("in", "a meadow", "a grassy meadow", "rolling meadows"),
    "forest": ("in", "a forest", "the woods", "a pine forest"),
    "mountains": ("in", "the mountains", "snowy mountains", "a mountain landscape"),
    "desert": ("in", "the desert", "a hot desert", "the desert dunes"),
    "city": ("in", "the city", "a city street", "a busy city"),
    "snow": ("in", "the snow", "a snowfield", "a winter landscape"),
    "lavender": ("in", "a lavender field", "the lavender", "a field of lavender"),
}
SKY_WORDS = {
    "sunny": ("on a sunny day", "in bright sunshine", "under a clear sky"),
    "cloudy": ("on a cloudy day", "under a cloudy sky", "in cloudy weather"),
    "rainy": ("in the rain", "on a rainy day", "in rainy weather"),
    "sunset": ("at sunset", "as the sun goes down", "in the evening glow"),
    "night": ("at night", "under the moon", "under a starry sky"),
}
TEMPLATES = (
    "{all} {where}",
    "{all} {where} {when}",
    "{all} {when}",
    "{place} {when} with {all}",
    "{place} with {all}",
    "there is {all} {where}",
    "{when} there is {all}",
    "a picture of {all} {where}",
)
TEMPLATES_OF_ONE = ("{a} {verb} {where}", "{a} {verb} {where} {when}", "{when} {a} {verb} {where}")
TEMPLATES_OF_A_RELATION = (
    "{a} {relation} {b}",
    "{a} {relation} {b} {when}",
    "{b} {inverse} {a}",
    "{b} is {inverse} {a} {where}",
    "{a} {verb} {relation} {b}",
    "{when} {a} is {relation} {b}",
)


@dataclass(frozen=True)
class Thing:
    """Thing in a scene, with a kind from ``ART``, a colour and a size ("small", "", "big")."""

    kind: str
    colour: str
    size: str = ""


@dataclass(frozen=True)
class Scene:
    """Contents of a picture with one to three things. ``relation`` is the position of the first of
    two things relative to the second."""

    background: str
    sky: str
    things: tuple[Thing, ...]
    relation: str | None = None


def _pick(rng: np.random.Generator, choices: Sequence[str]) -> str:
    return choices[int(rng.integers(len(choices)))]


def sample_scene(rng: np.random.Generator) -> Scene:
    """Draw a plausible scene, in which boats are on water, cats are not in the air, and each kind
    of thing occurs at most once."""
    background = _pick(rng, list(PLACES))
    dry = background in ("desert", "snow")
    sky = _pick(rng, [sky for sky in SKIES if sky != "rainy" or not dry])
    number = int(rng.choice(3, p=(0.4, 0.4, 0.2))) + 1
    place = PLACES[background]
    known = [kind for kind in ART if place.water or kind not in SWIMMERS]
    if place.land is None:
        known = [*FLYERS, *SWIMMERS, "lighthouse"]
    kinds = [str(kind) for kind in rng.choice(known, number, replace=False)]
    sizes = ["big"] * 3
    # Things fit side by side without being drawn much smaller than their stated size.
    while sum(SIZES[size] for size in sizes) >= 1.06:
        sizes = [_pick(rng, list(SIZES)) for _ in range(number)]
    pairs = zip(kinds, sizes, strict=True)
    things = tuple(Thing(kind, _pick(rng, list(COLOURS)), size) for kind, size in pairs)
    if number != 2:
        return Scene(background, sky, things)
    relations = ["left of", "right of"]
    if kinds[0] in FLYERS:
        relations.append("above")
    if kinds[1] in FLYERS:
        relations.append("below")
    return Scene(background, sky, things, _pick(rng, relations))


def boxes(scene: Scene, rng: np.random.Generator) -> list[Box]:
    """Return the box of each thing, (left, top, right, bottom) in [0, 1], as painted by ``draw``
    with a generator in the same state."""
    return _layout(scene, np.random.default_rng(_seeds(rng)[1]))


def _seeds(rng: np.random.Generator) -> list[int]:
    """Return seeds for the background, the layout, and the appearance of the things."""
    return [int(seed) for seed in rng.integers(2**63, size=3)]


def _layout(scene: Scene, rng: np.random.Generator) -> list[Box]:
    sides = np.array([SIZES[thing.size] for thing in scene.things])
    # Things side by side fill at most this fraction of the width or the height.
    sides *= min(1.0, 0.93 / float(sides.sum()))
    pairs = zip(scene.things, sides, strict=True)
    feet = [_foot(scene.background, thing.kind, side, rng) for thing, side in pairs]
    if scene.relation in ("above", "below"):
        lefts, feet = _stacked(sides, feet, int(scene.relation == "below"), rng)
    else:
        lefts = _abreast(sides, scene.relation, rng)
    places = zip(lefts, feet, sides.tolist(), strict=True)
    return [(x, foot - side, x + side, foot) for x, foot, side in places]


def _foot(
    background: str,
    kind: str,
    side: float,
    rng: np.random.Generator,
) -> float:
    """Return the y position of the lower edge of a thing."""
    place = PLACES[background]
    if kind in FLYERS:
        return side + float(rng.uniform(0.03, max(0.06, place.horizon + 0.06 - side)))
    grounds = [place.land, place.water]
    if kind in SWIMMERS:
        grounds.reverse()
    low, high = grounds[0] or grounds[1] or (0.8, 0.95)
    return float(rng.uniform(low, high))


def _abreast(
    sides: NDArray[np.float64],
    relation: str | None,
    rng: np.random.Generator,
) -> list[float]:
    """Return the left edges of things placed side by side, in the order that the relation requires,
    or in random order without a relation."""
    number = len(sides)
    order = rng.permutation(number).tolist()
    if relation is not None:
        order = [0, 1] if relation == "left of" else [1, 0]
    gaps = rng.dirichlet([2.0] * (number + 1)) * (0.96 - sides.sum())
    lefts = [0.0] * number
    edge = 0.02
    for gap, k in zip(gaps, order, strict=False):
        lefts[k] = float(edge + gap)
        edge = lefts[k] + sides[k]
    return lefts


def _stacked(
    sides: NDArray[np.float64],
    feet: list[float],
    upper: int,
    rng: np.random.Generator,
) -> tuple[list[float], list[float]]:
    """Return the left edges and lower edges of two things. ``upper`` is the index of the upper
    thing."""
    lower = 1 - upper
    feet = list(feet)
    feet[lower] = float(max(feet[lower], sides.sum() + 0.04))
    feet[upper] = float(sides[upper] + rng.uniform(0.02, feet[lower] - sides.sum() - 0.01))
    centres = rng.uniform(0.38, 0.62) + rng.uniform(-0.08, 0.08, 2)
    return np.clip(centres - sides / 2, 0.02, 0.98 - sides).tolist(), feet


def draw(
    scene: Scene,
    rng: np.random.Generator,
    size: int = 224,
    hide: Container[int] = (),
) -> Image.Image:
    """Paint a scene as an RGB picture of ``size`` x ``size`` pixels, without the things at the
        indices in ``hide``.

    Hiding a thing does not change the rest of the picture.
    """
    backdrop, layout, looks = _seeds(rng)
    place = PLACES[scene.background]
    canvas = Canvas(size, scene.sky, np.random.default_rng(backdrop))
    paint_sky(canvas, scene.sky, place.horizon + 0.12)
    paint_land(canvas, scene.background)
    if scene.sky == "rainy":
        paint_rain(canvas)
    places = _layout(scene, np.random.default_rng(layout))
    for k in sorted(range(len(places)), key=lambda k: places[k][3]):
        if k in hide:
            continue
        thing = scene.things[k]
        foot = places[k][3]
        if thing.kind not in FLYERS and foot > place.horizon:
            low, high = place.water or (1, 0)
            paint_base(canvas, places[k], wet=low <= foot <= high)
        look = np.random.default_rng([looks, k])
        paint_thing(canvas, thing.kind, thing.colour, places[k], look)
    return canvas.picture(size)


def captions(
    scene: Scene,
    rng: np.random.Generator,
    n: int = 5,
) -> list[str]:
    """Write ``n`` true sentences about a scene, in lower case. The sentences are distinct unless
    ``n`` is very large."""
    templates = list(TEMPLATES)
    if scene.relation:
        templates += TEMPLATES_OF_A_RELATION
    elif len(scene.things) == 1:
        templates += TEMPLATES_OF_ONE
    order = rng.permutation(len(templates))
    said = dict[str, None]()
    for k in range(20 * n):
        said[templates[order[k % len(order)]].format_map(_words(scene, rng))] = None
        if len(said) == n:
            break
    return (list(said) * n)[:n]


def _words(scene: Scene, rng: np.random.Generator) -> dict[str, str]:
    """Return the values of the placeholders in a template."""
    named = [_name(thing, rng, len(scene.things) < 3) for thing in scene.things]
    place = _pick(rng, PLACE_WORDS[scene.background][1:])
    *before, last = named
    together = last
    if before:
        together = f"{', '.join(before)} and {last}"
    words = {"all": together, "a": named[0]}
    where = f"{preposition(scene.background, [thing.kind for thing in scene.things])} {place}"
    words |= {"place": place, "where": where, "when": _pick(rng, SKY_WORDS[scene.sky])}
    words["verb"] = _pick(rng, VERBS.get(scene.things[0].kind, ("stands",)))
    if scene.relation:
        words["relation"] = _pick(rng, RELATION_WORDS[scene.relation])
        words |= {"b": named[1], "inverse": _pick(rng, RELATION_WORDS[RELATIONS[scene.relation]])}
    return words


def preposition(background: str, kinds: Collection[str]) -> str:
    """Return the preposition for things of these kinds and a background: "in", "on", "at", "near"
    or "over"."""
    if set(kinds) <= set(FLYERS):
        return "over"
    usual = PLACE_WORDS[background][0]
    if set(kinds) <= set(SWIMMERS):
        return {"beach": "near", "lake": "on"}.get(background, usual)
    return usual


def _name(thing: Thing, rng: np.random.Generator, sized: bool) -> str:
    words = [_pick(rng, NOUNS[thing.kind])]
    if rng.random() < 0.88:
        words.insert(0, thing.colour)
    if sized and thing.size and rng.random() < 0.7:
        words.insert(0, _pick(rng, SIZE_WORDS[thing.size]))
    return " ".join(["an" if words[0][0] in "aeiou" else "a", *words])


def draw_gallery(
    folder: Path,
    count: int,
    seed: int,
    size: int = 224,
) -> Iterator[int]:
    """Write ``count`` scenes to ``folder``: ``images/00000.jpg`` and so on, ``captions.csv``,
    ``fields.csv`` with the landscape and sky of each scene, and ``scenes.json`` with the contents
    and boxes of each scene.

    The function yields the number of finished pictures, and writes the three tables at the end. The
    same arguments produce the same bytes, and scene k does not depend on the number of scenes.
    Raises ValueError, before writing, if the folder contains files but is not a gallery, because
    these files would be replaced.
    """
    folder = Path(folder)
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MARK).exists():
        raise ValueError(f"{folder} contains files but is not a gallery; choose another folder")
    return _gallery(folder, count, seed, size)


def _gallery(folder: Path, count: int, seed: int, size: int) -> Iterator[int]:
    (folder / "images").mkdir(parents=True, exist_ok=True)
    (folder / MARK).touch()
    for old in (folder / "images").glob("[0-9]" * 5 + ".jpg"):
        old.unlink()
    scenes = []
    rows = [("image", "caption")]
    fields = [("id", "landscape", "sky")]
    for k in range(count):
        rng = np.random.default_rng([seed, k])
        name = f"{k:05d}.jpg"
        scene = sample_scene(rng)
        scenes.append(json.dumps(asdict(scene) | {"boxes": boxes(scene, deepcopy(rng))}))
        draw(scene, rng, size).save(folder / "images" / name, quality=90)
        rows += [(name, caption) for caption in captions(scene, rng)]
        fields.append((name, scene.background, scene.sky))
        yield k + 1
    for name, lines in (("captions.csv", rows), ("fields.csv", fields)):
        with (folder / name).open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(lines)
    table = "[\n" + ",\n".join(scenes) + "\n]\n"
    (folder / "scenes.json").write_text(table, encoding="utf-8", newline="\n")


def read_scenes(path: Path) -> list[Scene]:
    """Return the scenes in a file ``scenes.json``. Scene k belongs to picture k. Raises ValueError
    for any other file."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        scenes = []
        for entry in entries:
            entry.pop("boxes", None)
            things = tuple(Thing(**thing) for thing in entry.pop("things"))
            scenes.append(Scene(things=things, **entry))
        return scenes
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a table of scenes: {error}") from error
