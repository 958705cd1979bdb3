"""The figure of an alignment, as for print: the words on the photo, the attention map, the words one by one.

All measures are points (1/72 inch) until they are drawn; a figure is as wide as the text of a page with two columns.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont, ImageOps

from boc.atomic_files import replacing
from boc.errors import BocError
from boc.explain.alignment import Alignment

Colour: TypeAlias = tuple[int, int, int]
Font: TypeAlias = ImageFont.FreeTypeFont | ImageFont.ImageFont

DPI = 300
WIDTH = 504.0  # 7 inches
MARGIN, GAP = 6.0, 10.0
HIGHEST, MAP_HIGHEST = 300.0, 130.0  # of a panel, of a word's map
SIDE_BY_SIDE = 2.3  # width of a photo by its height from which the panels lie one below the other
MAPS = 5  # words with a map of their own
LINE, CASING = 1.4, 0.5  # width of a box's line, and of the dark rim on each side of it
BODY, SMALL, TAG = 9.0, 7.0, 6.5  # sizes of type
LEADING = 1.35
BLEND = 0.6  # of the colour in a map; the rest is the photo in grey

INK, QUIET, PAPER = (26, 26, 26), (112, 112, 112), (255, 255, 255)
# Okabe & Ito, Color Universal Design (2008), without black.
PALETTE = (
    (213, 94, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66), (204, 121, 167), (230, 159, 0), (0, 114, 178),
)  # fmt: skip
# Viridis of matplotlib (van der Walt & Smith) at nine even steps.
COLOURS = np.array(
    [
        (68, 1, 84), (71, 45, 123), (59, 82, 139), (44, 114, 142), (33, 145, 140), (40, 174, 128), (94, 201, 98),
        (173, 220, 48), (253, 231, 37),
    ],
    dtype=np.float64,
)  # fmt: skip
FALLBACKS = ("NotoSans-Regular.ttf", "DejaVuSans.ttf", "NotoSansCJK-Regular.ttc", "Arial Unicode.ttf")
BEGINS = {"PNG": b"\x89PNG", "JPEG": b"\xff\xd8", "PDF": b"%PDF"}
FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".pdf": "PDF"}


class _Mark(NamedTuple):
    """How a drawn word looks: words beyond the palette repeat its colours with dashes."""

    colour: Colour
    dashed: bool

    @property
    def text(self) -> Colour:
        """The colour of the word on its chip."""
        return INK if self.dashed else _readable(self.colour)


def draw_figure(photo: Image.Image, alignment: Alignment, *, all_words: bool = False) -> Image.Image:
    """The figure, RGB, 2100 pixels wide at 300 dots an inch; the same input gives the same pixels.

    (a) the photo with each word's best region, (b) its attention map, below them the sentence with each word's largest
    cosine, and (c) maps of the mean cosine for the words of largest cosine. Stop-words have neither box nor map,
    unless there is no other word or ``all_words`` asks for them.
    """
    drawn = _drawn(alignment, all_words=all_words)
    marks = {word: _Mark(PALETTE[i % len(PALETTE)], i >= len(PALETTE)) for i, word in enumerate(drawn)}
    inner = WIDTH - 2 * MARGIN
    pair = photo.width < SIDE_BY_SIDE * photo.height
    column = (inner - GAP) / 2 if pair else inner
    shown = _fit(photo, column, HIGHEST)
    attention = alignment.attention(*shown.size)
    panels = [
        _captioned(_boxes(shown, alignment, marks), column, "(a) best region of each word"),
        _captioned(_map(shown, attention), column, "(b) attention of the whole picture", _scale(attention)),
    ]
    blocks = [_beside(panels, GAP)] if pair else panels
    blocks += [_sentence(alignment, marks, inner), _maps(photo, alignment, drawn, inner)]
    return ImageOps.expand(_below(blocks, GAP), _px(MARGIN), PAPER)


def save_figure(path: Path, figure: Image.Image) -> None:
    """Write ``figure`` in the format that the suffix names, at its size for print. BocError as ``format_of``."""
    kind = format_of(path)
    with replacing(path) as temporary:
        if kind == "PDF":
            figure.save(temporary, kind, resolution=DPI, quality=95, subsampling=0, creationDate=None, modDate=None)
        else:
            figure.save(temporary, kind, dpi=(DPI, DPI), quality=95, subsampling=0)


def format_of(path: Path) -> str:
    """The format that a figure at ``path`` has. BocError for a suffix that names none."""
    if path.suffix.lower() not in FORMATS:
        raise BocError(f"{path}: figures are written as {', '.join(FORMATS)}; choose a name that ends so")
    return FORMATS[path.suffix.lower()]


def _drawn(alignment: Alignment, *, all_words: bool) -> list[int]:
    if alignment.content and not all_words:
        return alignment.content
    spoken = [i for i, word in enumerate(alignment.words) if _spoken(word)]
    return spoken or list(range(len(alignment.words)))


def _spoken(word: str) -> bool:
    return any(character.isalnum() for character in word)


def _boxes(photo: Image.Image, alignment: Alignment, marks: dict[int, _Mark]) -> Image.Image:
    """The photo with the best region of each word, under the word."""
    panel = photo.copy()
    draw = ImageDraw.Draw(panel)
    places = _offset([_place(alignment.boxes[alignment.best[word]], photo) for word in marks])
    for place, mark in zip(places, marks.values(), strict=True):
        _outline(draw, place, mark)
    _tags(draw, photo, places, [alignment.words[word] for word in marks], list(marks.values()))
    return panel


def _place(box: NDArray[np.float32], photo: Image.Image) -> tuple[int, int, int, int]:
    """A box in pixels, edges included, inside the photo."""
    x1, y1, x2, y2 = np.clip(box.astype(np.float64), 0, 1) * (*photo.size, *photo.size)
    left, top = min(round(x1), photo.width - 1), min(round(y1), photo.height - 1)
    return left, top, max(round(x2) - 1, left), max(round(y2) - 1, top)


def _offset(places: Sequence[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    """Each box drawn in by so many line widths that no two of its sides lie on those of a box before it."""
    line = _px(LINE + 2 * CASING)
    drawn: list[tuple[int, int, int, int]] = []
    for x1, y1, x2, y2 in places:
        most = max(min(x2 - x1, y2 - y1) * 2 // 5 // line, 0)
        nested = [(x1 + line * i, y1 + line * i, x2 - line * i, y2 - line * i) for i in range(most + 1)]
        drawn.append(
            next((box for box in nested if not any(_collide(box, other, line) for other in drawn)), nested[-1])
        )
    return drawn


def _collide(a: tuple[int, ...], b: tuple[int, ...], line: int) -> bool:
    """Whether the boxes overlap and two sides of ``a`` lie less than ``line`` from the same sides of ``b``."""
    overlap = a[0] <= b[2] and b[0] <= a[2] and a[1] <= b[3] and b[1] <= a[3]
    return overlap and sum(abs(x - y) < line for x, y in zip(a, b, strict=True)) >= 2


def _outline(draw: ImageDraw.ImageDraw, place: tuple[int, int, int, int], mark: _Mark) -> None:
    casing, line = _px(CASING), _px(LINE)
    x1, y1, x2, y2 = place[0] + casing, place[1] + casing, place[2] - casing, place[3] - casing
    if min(x2 - x1, y2 - y1) < 2 * line:
        draw.rectangle(place, fill=mark.colour)
        return
    draw.rectangle(place, outline=INK, width=line + 2 * casing)
    dash = _px(5) if mark.dashed else max(x2 - x1, y2 - y1) + 1
    for x in range(x1, x2 + 1, dash + dash // 2):
        for y in (y1, y2 - line + 1):
            draw.rectangle((x, y, min(x + dash, x2), y + line - 1), fill=mark.colour)
    for y in range(y1, y2 + 1, dash + dash // 2):
        for x in (x1, x2 - line + 1):
            draw.rectangle((x, y, x + line - 1, min(y + dash, y2)), fill=mark.colour)


def _tags(
    draw: ImageDraw.ImageDraw,
    photo: Image.Image,
    places: Sequence[tuple[int, int, int, int]],
    words: Sequence[str],
    marks: Sequence[_Mark],
) -> None:
    """Each word near its box: where it hides no other word, and as little of a box as can be."""
    boxes, taken = np.array(places) + np.array([0, 0, 1, 1]), np.zeros((0, 4), dtype=np.int64)
    height = _px(TAG * LEADING)
    for box, word, mark in zip(boxes, words, marks, strict=True):
        text = _cut(word, TAG, photo.width - _px(4))
        width = _length(text, TAG) + _px(4)
        tags = _candidates(photo, np.concatenate([box[None], taken]), width, height)
        cost = _distance(tags, box) + 0.5 * _shared(tags, boxes) / height + 1000 * _shared(tags, taken)
        best = tags[cost.argmin()]
        taken = np.concatenate([taken, best[None]])
        x1, y1, x2, y2 = best.tolist()
        _chip(draw, (x1, y1, x2 - 1, y2 - 1), mark)
        _write(draw, (x1 + _px(2), y1 + _baseline(height)), text, TAG, mark.text)


def _candidates(photo: Image.Image, beside: NDArray[np.int64], width: int, height: int) -> NDArray[np.int64]:
    """Places (n, 4) for a tag inside the photo: at the sides of the boxes ``beside`` (m, 4), and on a lattice."""
    x1, y1, x2, y2 = beside.T
    x = np.concatenate([x1, x2, x1 - width, x2 - width, np.arange(0, photo.width, height)])
    y = np.concatenate([y1, y2, y1 - height, y2 - height, np.arange(0, photo.height, height)])
    x = np.unique(np.clip(x, 0, max(photo.width - width, 0)))
    y = np.unique(np.clip(y, 0, max(photo.height - height, 0)))
    corners = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)
    return np.concatenate([corners, corners + np.array([width, height])], axis=1)


def _distance(tags: NDArray[np.int64], box: NDArray[np.int64]) -> NDArray[np.float64]:
    """How far tags (n, 4) are from a box, and, a tenth of that, from standing on its upper left corner."""
    apart = np.maximum(np.maximum(box[:2] - tags[:, 2:], tags[:, :2] - box[2:]), 0).max(axis=1)
    far: NDArray[np.float64] = 3 * (apart + 0.1 * np.hypot(tags[:, 0] - box[0], tags[:, 3] - box[1]))
    return far


def _shared(tags: NDArray[np.int64], boxes: NDArray[np.int64]) -> NDArray[np.int64]:
    """The area (n,) that tags (n, 4) share with boxes (m, 4), counted once a box."""
    a, b = tags[:, None], boxes[None]
    sides = np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2])
    area: NDArray[np.int64] = np.maximum(sides, 0).prod(axis=2).sum(axis=1)
    return area


def _sentence(alignment: Alignment, marks: dict[int, _Mark], width: float) -> Image.Image:
    """The words in lines, those with a box on its colour, their largest cosines below them."""
    pad, space, height = _px(2.5), _px(2.5), _px(BODY * LEADING)
    line = height + _px(SMALL * LEADING + 5)
    words = [_cut(word, BODY, _px(width) - 2 * pad) for word in alignment.words]
    cosines = [_number(value) for value in alignment.cosines.max(axis=1)]
    places, x, y = [], 0, 0
    for i, word in enumerate(words):
        if not _spoken(word):  # a mark stands at the word before it, without a number
            each, cosines[i], x = _length(word, BODY), "", x - space if x else x
        else:
            each = max(_length(word, BODY) + 2 * pad, _length(cosines[i], SMALL))
        if x and x + each > _px(width):
            x, y = 0, y + line
        places.append((x, y, each))
        x += each + space
    block = Image.new("RGB", (_px(width), y + line - _px(4)), PAPER)
    draw = ImageDraw.Draw(block)
    for i, (x, y, each) in enumerate(places):
        mark, middle = marks.get(i), x + each / 2
        if mark is not None:
            _chip(draw, (x, y, x + each - 1, y + height - 1), mark)
        _write(draw, (middle, y + _baseline(height)), words[i], BODY, mark.text if mark else QUIET, "ms")
        _write(draw, (middle, y + height + _px(SMALL * 1.1)), cosines[i], SMALL, INK if mark else QUIET, "ms")
    return block


def _chip(draw: ImageDraw.ImageDraw, place: tuple[int, int, int, int], mark: _Mark) -> None:
    """The ground of a word: full of its colour, or white with a rim where its box is dashed."""
    draw.rectangle(place, fill=PAPER if mark.dashed else mark.colour, outline=mark.colour, width=_px(LINE))


def _maps(photo: Image.Image, alignment: Alignment, drawn: Sequence[int], width: float) -> Image.Image:
    """A row of maps for the words of largest cosine, in the sentence's order, each in colours of its own range."""
    largest = alignment.cosines.max(axis=1)
    chosen = sorted(sorted(drawn, key=lambda word: (-largest[word], word))[:MAPS])
    column = (width - (MAPS - 1) * GAP / 2) / MAPS
    small = _fit(photo, column, MAP_HIGHEST)
    cells = []
    for word in chosen:
        heat = alignment.heat(word, *small.size)
        cells.append(_captioned(_map(small, heat), column, alignment.words[word], _range(heat)))
    title = _text("(c) mean cosine of a word with the regions at a place", SMALL, INK)
    return _below([_beside(cells, GAP / 2), title], 1)


def _map(photo: Image.Image, values: NDArray[Any]) -> Image.Image:
    """The photo in grey under the colours of ``values`` (height, width), from the smallest to the largest one."""
    grey = np.asarray(ImageOps.grayscale(photo), dtype=np.float64)[..., None].repeat(3, axis=2)
    known = np.isfinite(values)
    if known.any():
        low, high = values[known].min(), values[known].max()
        shares = (values[known] - low) / ((high - low) or 1)
        grey[known] = BLEND * _coloured(shares) + (1 - BLEND) * grey[known]
    return Image.fromarray(grey.round().astype(np.uint8))


def _coloured(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Colours (n, 3) of shares (n,) in [0, 1]."""
    steps = np.linspace(0, 1, len(COLOURS))
    return np.stack([np.interp(shares, steps, channel) for channel in COLOURS.T], axis=-1)


def _scale(values: NDArray[np.int64]) -> Image.Image:
    """A bar of the colours between the smallest and the largest value."""
    low, high = (_text(f"{int(value):,}", SMALL, QUIET) for value in (values.min(), values.max()))
    colours = _coloured(np.linspace(0, 1, _px(48))).round().astype(np.uint8)
    bar = Image.new("RGB", (len(colours), low.height), PAPER)
    bar.paste(Image.fromarray(colours[None].repeat(_px(5), axis=0)), (0, (low.height - _px(5)) // 2))
    return _beside([low, bar, high], 3)


def _range(heat: NDArray[np.float64]) -> Image.Image:
    known = heat[np.isfinite(heat)]
    text = f"{_number(known.min())} to {_number(known.max())}" if len(known) else "no region"
    return _text(text, SMALL, QUIET)


def _captioned(image: Image.Image, width: float, caption: str, note: Image.Image | None = None) -> Image.Image:
    """``image`` in the middle of a column, the caption below its left end, the note below its right one."""
    note = note or Image.new("RGB", (0, 0))
    text = _text(_cut(caption, SMALL, _px(width - 4) - note.width), SMALL, INK)
    block = Image.new("RGB", (_px(width), image.height + _px(2) + text.height), PAPER)
    block.paste(image, ((block.width - image.width) // 2, 0))
    span = max(image.width, text.width + _px(4) + note.width)
    left, below = (block.width - span) // 2, image.height + _px(2)
    block.paste(text, (left, below))
    block.paste(note, (left + span - note.width, below))
    return block


def _beside(images: Sequence[Image.Image], gap: float) -> Image.Image:
    width = sum(image.width for image in images) + _px(gap) * (len(images) - 1)
    block = Image.new("RGB", (width, max(image.height for image in images)), PAPER)
    x = 0
    for image in images:
        block.paste(image, (x, 0))
        x += image.width + _px(gap)
    return block


def _below(images: Sequence[Image.Image], gap: float) -> Image.Image:
    height = sum(image.height for image in images) + _px(gap) * (len(images) - 1)
    block = Image.new("RGB", (max(image.width for image in images), height), PAPER)
    y = 0
    for image in images:
        block.paste(image, (0, y))
        y += image.height + _px(gap)
    return block


def _fit(photo: Image.Image, width: float, height: float) -> Image.Image:
    """The photo as large as it can be in so many points."""
    scale = min(_px(width) / photo.width, _px(height) / photo.height)
    size = max(round(photo.width * scale), 1), max(round(photo.height * scale), 1)
    return photo.resize(size, Image.Resampling.LANCZOS, reducing_gap=3.0)


def _px(points: float) -> int:
    return round(points * DPI / 72)


def _number(value: float) -> str:
    return f"{value:.2f}"


def _readable(background: Colour) -> Colour:
    """Ink or paper, whichever stands out more (relative luminance of WCAG 2)."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in background)]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return INK if luminance > 0.18 else PAPER


def _text(text: str, size: float, colour: Colour) -> Image.Image:
    """A line of text on paper."""
    block = Image.new("RGB", (max(_length(text, size), 1), _px(size * LEADING)), PAPER)
    _write(ImageDraw.Draw(block), (0, _baseline(block.height)), text, size, colour)
    return block


def _write(
    draw: ImageDraw.ImageDraw, place: tuple[float, float], text: str, size: float, colour: Colour, anchor: str = "ls"
) -> None:
    draw.text(place, text, fill=colour, font=_font(text, size), anchor=anchor)


def _baseline(height: int) -> int:
    """Where letters stand in a line of so many pixels."""
    return round(height * 0.74)


def _length(text: str, size: float) -> int:
    return math.ceil(_font(text, size).getlength(text))


def _cut(text: str, size: float, width: float) -> str:
    """``text``, shortened until it is at most ``width`` pixels long."""
    if _length(text, size) <= width:
        return text
    fitting = (f"{text[:n]}\u2026" for n in range(len(text) - 1, 0, -1))
    return next((short for short in fitting if _length(short, size) <= width), "")


def _font(text: str, size: float) -> Font:
    """The font that has most of the text's characters: Pillow's own, or one of the system's."""
    return min(_fonts(_px(size)), key=lambda font: sum(not _has(font, character) for character in set(text)))


@cache
def _fonts(size: int) -> list[Font]:
    fonts: list[Font] = [ImageFont.load_default(size)]
    for name in FALLBACKS:
        with contextlib.suppress(OSError):
            fonts.append(ImageFont.truetype(name, size))
    return fonts


@cache
def _has(font: Font, character: str) -> bool:
    """Whether the font draws ``character`` otherwise than one that no font has."""
    return character.isspace() or bytes(font.getmask(character)) != bytes(font.getmask("\U0010fffe"))
