"""Pictures in a terminal, by the protocols of kitty and iTerm2, or as sixels."""

import io
import re
import sys
from base64 import b64encode
from collections.abc import Callable, Mapping

import numpy as np
from PIL.Image import Image

from boc.errors import note

NAMES = (
    "TERM",
    "TERM_PROGRAM",
    "LC_TERMINAL",
    "KONSOLE_VERSION",
    "WT_SESSION",
)  # variables that tell a terminal


def find_terminal(variables: Mapping[str, str]) -> Callable[[Image], str] | None:
    """Return what writes a picture as this terminal shows it; None, with a note, if that shows
    none."""
    named = " ".join(f"{name}={variables[name]}" for name in NAMES if name in variables)
    forms = [form for pattern, form in TERMINALS.items() if re.search(pattern, named)]
    if forms and sys.stdout.isatty() and not re.search("TERM=(screen|tmux)", named):
        return forms[0]
    note(
        "this is no terminal that shows pictures, as kitty, iTerm2 and foot do; --html FILE "
        "writes them as a page",
    )
    return None


def kitty(image: Image) -> str:
    """Write a picture as graphics of kitty, in parts of 4,096 characters."""
    parts = re.findall(".{1,4096}", _png(image))
    ends = [f"m={int(number < len(parts))};{part}\x1b\\" for number, part in enumerate(parts, 1)]
    return "\x1b_Ga=T,f=100,q=2," + "\x1b_G".join(ends)


def iterm(image: Image) -> str:
    """Write a picture as an inline file of iTerm2."""
    return f"\x1b]1337;File=inline=1:{_png(image)}\a"


def sixel(image: Image) -> str:
    """Write a picture of 64 colours as sixels, bands of six rows, in which runs of one colour are
    counted."""
    small = image.quantize(64)
    levels = [100 * value // 255 for value in small.getpalette() or []]
    text = "".join(
        f"#{i // 3};2;{levels[i]};{levels[i + 1]};{levels[i + 2]}" for i in range(0, len(levels), 3)
    )
    for band in np.split(pixels := np.asarray(small), range(6, len(pixels), 6)):
        for colour in np.unique(band):
            row = (
                ((1 << np.arange(len(band))) @ (band == colour) + 63)
                .astype(np.uint8)
                .tobytes()
                .decode()
            )
            text += (
                f"#{colour}"
                + re.sub(r"(.)\1{3,}", lambda run: f"!{len(run[0])}{run[1]}", row)
                + "$"
            )
        text += "-"
    return f'\x1bPq"1;1;{image.width};{image.height}{text}\x1b\\'


def _png(image: Image) -> str:
    image.save(file := io.BytesIO(), "PNG")
    return b64encode(file.getvalue()).decode()


TERMINALS = {
    "kitty|ghostty|KONSOLE": kitty,
    "iTerm|WezTerm|mintty": iterm,
    "WT_SESSION|TERM=(foot|mlterm)": sixel,
}
