"""The explanation of a score as a self-contained HTML page."""

from collections.abc import Iterable
from html import escape
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from boc.atomic_files import write_text
from boc.errors import ImageError
from boc.explain.score import Explanation, Match, Parts
from boc.inputs.images import thumbnail_uri
from boc.labels import Example, Label, content_words
from boc.paths import path_of
from boc.types import Item

DRAWN = 5  # regions drawn on the picture
LARGE, MEDIUM, SMALL = 720, 240, 120  # pixels of the longer side
COLUMNS = 12  # columns of the table of cosines at most, and rows, if they are regions
AROUND = 3  # side of the shown part of a picture, in sides of the box
SMALLEST = 0.05  # smallest side of a box that is enlarged
ALIKE = 0.05  # range of cosines below which they say little
MAPS = 8  # words with a separate picture
STRONGEST = 0.8  # opacity of the largest value: text stays readable on it

STYLE = """
:root { color-scheme: light dark; --line: #8884; --quiet: #737373; --ink: #0b5fff; --heat: 11 95 255; --paper: #fff; }
@media (prefers-color-scheme: dark) {
  :root { --quiet: #a3a3a3; --ink: #6ea8ff; --heat: 64 132 255; --paper: #161616; }
}
body { font: 16px/1.5 system-ui, sans-serif; max-width: 1180px; margin: 2.5rem auto; padding: 0 1.25rem;
       background: var(--paper); }
h1 { font-size: 1.35rem; font-weight: 600; margin: 0; }
h2 { font-size: 1rem; font-weight: 600; margin: 2.5rem 0 .3rem; }
p { margin: .2rem 0 1rem; } .quiet { color: var(--quiet); font-size: .85rem; }
.number { font-variant-numeric: tabular-nums; white-space: nowrap; }
.top { display: grid; gap: 2rem; grid-template-columns: minmax(260px, 5fr) 7fr; margin-top: 1.75rem;
       align-items: start; }
@media (max-width: 800px) { .top { grid-template-columns: 1fr; } }
.asked { max-width: 240px; margin: 1rem 0; }
figure { margin: 0; } figcaption { margin-top: .5rem; color: var(--quiet); font-size: .85rem; }
.frame { position: relative; overflow: hidden; border-radius: 8px; line-height: 0; }
.frame img { width: 100%; display: block; } .frame i { position: absolute; box-sizing: border-box; }
.box { border: 2px solid #fff; outline: 1.5px solid #000; border-radius: 2px; }
.box b { position: absolute; left: 0; top: 0; font: 600 12px/1 system-ui, sans-serif; padding: 3px 5px; color: #fff;
         background: #000c; }
table { border-collapse: collapse; width: 100%; } th { font-weight: 500; text-align: left; }
.terms td { padding: .55rem .6rem .55rem 0; border-top: 1px solid var(--line); vertical-align: middle; }
.terms tr:first-child td { border-top: 0; padding-top: 0; } .terms .share { width: 30%; }
.bar { height: 9px; border-radius: 4px; background: var(--ink); margin-top: .25rem; min-width: 2px; }
.examples { display: flex; gap: 6px; justify-content: flex-end; }
.examples .frame { width: 60px; height: 60px; border-radius: 5px; flex: none; }
.examples img { position: absolute; width: 100%; height: 100%; object-fit: fill; }
.scroll { overflow-x: auto; } .heat { font-size: .85rem; border-collapse: separate; border-spacing: 2px; width: auto; }
.heat th { padding: .2rem .6rem .2rem 0; white-space: nowrap; } .heat thead th { text-align: center; padding: .2rem; }
.heat td { padding: .3rem .5rem; text-align: center; border-radius: 3px; background: rgb(var(--heat) / var(--v)); }
.maps { display: grid; gap: 14px; grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); }
.maps i { background: rgb(255 196 0 / var(--v)); } .maps img { filter: grayscale(1) brightness(.6); }
blockquote { margin: 0; padding: .9rem 1rem; border: 1px solid var(--line); border-radius: 8px; font-size: 1.1rem; }
blockquote span { background: rgb(var(--heat) / var(--v)); border-radius: 4px; padding: .05rem .25rem; }
"""


def write_page(path: Path, explanation: Explanation, top: int = 10) -> None:
    """Write an HTML page with the ``top`` terms, the regions or words behind them, and the cosines between the parts
    of query and item. Pictures are embedded, so the file can be sent as it is; an unreadable picture is named."""
    query, item = explanation.query, explanation.item
    title = escape(_title(query))
    total = len(explanation.matches)
    write_text(
        path,
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title} - {escape(item.id)} - boc</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f'<h1>{title}</h1>\n<p class="quiet">{escape(item.id)} scores <b class="number">{explanation.score:,}</b> '
        f"by {total} shared {'term' if total == 1 else 'terms'}</p>\n"
        f'{_query_picture(explanation)}<div class="top">\n{_item(explanation)}\n{_terms(explanation, top)}\n</div>\n'
        f"{_maps(explanation)}\n{_table(explanation)}\n</body>\n</html>\n",
    )


def _title(query: Item) -> str:
    return f"\u201c{query.content}\u201d" if query.modality == "text" else Path(query.content).name


def _query_picture(explanation: Explanation) -> str:
    """Return the query picture, with the regions that are closest to a part of the item."""
    query, parts, cosines = explanation.query, explanation.query_parts, explanation.alignment
    if query.modality == "text":
        return ""
    marks = [] if parts is None or cosines is None else _marks(parts, cosines.max(axis=1), "largest cosine")
    return f'<div class="asked">{_picture(query.content, query.content, MEDIUM, marks)}</div>\n'


def _item(explanation: Explanation) -> str:
    item, weights, parts = explanation.item, explanation.weights, explanation.item_parts
    note = escape(explanation.missing) if weights is None else _note(explanation)
    if item.modality == "text":
        body = f"<blockquote>{_sentence(item, parts, weights)}</blockquote>"
    else:
        unit = "of what single regions carry" if explanation.weighed_by == "terms" else "mean cosine"
        marks = [] if parts is None or weights is None else _marks(parts, weights, unit)
        body = _picture(item.content, item.id, LARGE, marks)
    return f"<figure>{body}<figcaption>{note}</figcaption></figure>"


def _marks(parts: Parts, weights: NDArray[np.floating], unit: str) -> list[str]:
    """Return the boxes of the regions of largest weight, with their numbers."""
    if parts.boxes is None:
        return []
    return [
        _box(parts.boxes[i], parts.names[i], f"region {parts.names[i]}: {weights[i]:.3f} {unit}")
        for i in _strongest(weights, DRAWN)
    ]


def _note(explanation: Explanation) -> str:
    whole, parts = ("picture", "regions") if explanation.item.modality == "image" else ("sentence", "words")
    if explanation.weighed_by == "terms":
        return f"Marked: the {parts} that carry most of the shared terms."
    return f"The terms are of the whole {whole}. Marked: the {parts} that are closest to the query."


def _sentence(item: Item, parts: Parts | None, weights: NDArray[np.float64] | None) -> str:
    if parts is None or weights is None:
        return escape(item.content)
    return " ".join(
        f'<span style="--v:{shade:.2f}" title="{weight:.3f}">{escape(word)}</span>'
        for word, weight, shade in zip(parts.names, weights, _shades(weights), strict=True)
    )


def _terms(explanation: Explanation, top: int) -> str:
    if not explanation.matches:
        return "<p>This item shares no term with the query, so the index does not find it.</p>"
    most = explanation.matches[0].product
    rows = "\n".join(_term(explanation, match, most) for match in explanation.matches[:top])
    others = explanation.matches[top:]
    rest = f'<p class="quiet">and {len(others)} others: {_rest(explanation, others)}</p>' if others else ""
    return f'<div><table class="terms">\n{rows}\n</table>{rest}</div>'


def _term(explanation: Explanation, match: Match, most: int) -> str:
    label = match.label or Label()
    words = escape(", ".join(label.words)) or '<span class="quiet">no typical word</span>'
    frequencies = f"{match.query_frequency:,} \u00d7 {match.item_frequency:,} = {match.product:,}"
    return (
        f'<tr><td>{words}<div class="quiet number">term {match.term}: {frequencies}</div></td>'
        f'<td class="share number">{100 * float(explanation.share(match)):.1f} %'
        f'<div class="bar" style="width:{100 * match.product / most:.1f}%"></div></td>'
        f'<td><div class="examples">{"".join(map(_example, label.examples))}</div></td></tr>'
    )


def _rest(explanation: Explanation, others: Iterable[Match]) -> str:
    return f"{100 * float(sum(map(explanation.share, others))):.1f} % of the score"


def _example(example: Example) -> str:
    """Return a small picture; for an example with a box, the box and its surroundings."""
    if example.box is None:
        return _picture(example.content, example.id, SMALL, quiet=True)
    x1, y1, x2, y2 = _cut(example.box)
    side = min(1.0, AROUND * max(x2 - x1, y2 - y1, SMALLEST))
    left, top = (min(max((a + b - side) / 2, 0.0), 1 - side) for a, b in ((x1, x2), (y1, y2)))
    box = _box(((x1 - left) / side, (y1 - top) / side, (x2 - left) / side, (y2 - top) / side))
    size = 100 / side
    zoom = f"width:{size:.1f}%;height:{size:.1f}%;left:{-left * size:.1f}%;top:{-top * size:.1f}%"
    return _picture(example.content, example.id, MEDIUM, [box], zoom, quiet=True)


def _picture(
    content: str, name: str, side: int, boxes: Iterable[str] = (), style: str = "", *, quiet: bool = False
) -> str:
    try:
        uri = thumbnail_uri(path_of(content), side)
    except ImageError as error:
        return "" if quiet else f"<blockquote>{escape(str(error))}</blockquote>"
    image = f'<img src="{uri}" style="{style}" alt="{escape(name)}" title="{escape(name)}">'
    return f'<div class="frame">{image}{"".join(boxes)}</div>'


def _box(box: Iterable[float], badge: str = "", title: str = "") -> str:
    badge = badge and f"<b>{badge}</b>"
    return f'<i class="box" style="{_place(box)}" title="{escape(title)}">{badge}</i>'


def _place(box: Iterable[float]) -> str:
    """Return the CSS position of a box, in percent of its picture."""
    x1, y1, x2, y2 = (100 * x for x in _cut(box))
    return f"left:{x1:.2f}%;top:{y1:.2f}%;width:{x2 - x1:.2f}%;height:{y2 - y1:.2f}%"


def _cut(box: Iterable[float]) -> list[float]:
    return [min(max(float(x), 0.0), 1.0) for x in box]


def _maps(explanation: Explanation) -> str:
    """Return one picture per content word of the query, brighter where regions are closer to the word."""
    cosines, query, parts = explanation.alignment, explanation.query_parts, explanation.item_parts
    if cosines is None or query is None or parts is None or parts.boxes is None or explanation.query.modality != "text":
        return ""
    words = [i for i, word in enumerate(query.names) if content_words(word)][:MAPS]
    if not words:
        return ""
    maps = "\n".join(_map(explanation.item, query.names[i], parts.boxes, cosines[i]) for i in words)
    note = "Brighter: closer to the word than the other regions."
    if np.ptp(cosines) < ALIKE:
        note += f" All cosines lie within {np.ptp(cosines):.3f}: the encoder's regions and words hardly differ here."
    return f'<h2>Each word in the picture</h2>\n<p class="quiet">{note}</p>\n<div class="maps">\n{maps}\n</div>'


def _map(item: Item, word: str, boxes: NDArray[np.float32], cosines: NDArray[np.float32]) -> str:
    cells = [
        f'<i style="{_place(box)};--v:{shade:.2f}" title="region {n}: {cosine:.3f}"></i>'
        for n, (box, shade, cosine) in enumerate(zip(boxes, _shades(cosines), cosines, strict=True), 1)
    ]
    span = f"{cosines.min():.3f} to {cosines.max():.3f}"
    picture = _picture(item.content, item.id, MEDIUM, cells)
    return f"<figure>{picture}<figcaption>{escape(word)}, {span}</figcaption></figure>"


def _table(explanation: Explanation) -> str:
    """Return the table of cosines: words in order, regions by weight."""
    cosines, query, parts = explanation.alignment, explanation.query_parts, explanation.item_parts
    if cosines is None or query is None or parts is None or explanation.weights is None:
        return ""
    rows = _selection(explanation.query, cosines.max(axis=1))
    columns = _selection(explanation.item, explanation.weights)
    grid = cosines[np.ix_(rows, columns)]
    head = "".join(f"<th>{escape(parts.names[j])}</th>" for j in columns)
    body = "\n".join(
        f"<tr><th>{escape(query.names[i])}</th>{_cells(values, shades)}</tr>"
        for i, values, shades in zip(rows, grid, _shades(grid), strict=True)
    )
    note = "Stronger colour: larger. A word has the largest cosine of its word-pieces."
    if len(columns) < len(parts.names):
        note += f" Of {len(parts.names)} regions those of most weight."
    return (
        f'<h2>Cosines of concepts</h2>\n<p class="quiet">{note}</p>\n<div class="scroll"><table class="heat">\n'
        f"<thead><tr><th></th>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>"
    )


def _cells(values: NDArray[np.float32], shades: NDArray[np.float64]) -> str:
    return "".join(
        f'<td class="number" style="--v:{shade:.2f}">{value:.3f}</td>'
        for value, shade in zip(values, shades, strict=True)
    )


def _selection(item: Item, weights: NDArray[np.floating]) -> list[int]:
    """Return the indices of all words in order, or of the regions of largest weight."""
    return list(range(len(weights))) if item.modality == "text" else _strongest(weights, COLUMNS)


def _strongest(weights: NDArray[np.floating], most: int) -> list[int]:
    """Return the indices of the largest non-zero weights, largest first, ties to the lower index."""
    order = np.argsort(-weights, kind="stable")[:most]
    return [int(i) for i in order if weights[i]]


def _shades(values: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the opacities from 0 for the smallest to ``STRONGEST`` for the largest value; all 0 if all values are
    equal."""
    span = float(values.max() - values.min())
    shades: NDArray[np.float64] = STRONGEST * (values - values.min()).astype(np.float64) / (span or 1.0)
    return shades
