"""Parts of several region sources: the parameters of a spec, ``NAME?top=36&threshold=0.2``, and boxes."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from boc.errors import EncoderError

T = TypeVar("T")


def parse_spec(argument: str, kind: type[T]) -> tuple[str, T]:
    """Split ``argument`` into the name before ``?`` and the dataclass ``kind``, whose fields are the known parameters.

    A value is parsed as the type of the default of its field. EncoderError for an unknown, repeated or unreadable
    parameter.
    """
    name, mark, query = argument.partition("?")
    defaults: dict[str, Any] = {field.name: field.default for field in fields(kind)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for part in query.split("&") if mark else []:
        key, equals, text = part.partition("=")
        if not equals or key not in defaults:
            raise EncoderError(f"{argument}: unknown parameter {part!r}; known: {_parameters(defaults)}")
        if key in values:
            raise EncoderError(f"{argument}: {key} is given twice; give it once")
        expected = type(defaults[key])
        try:
            values[key] = expected(text)
        except ValueError:
            raise EncoderError(
                f"{argument}: {key} must be of type {expected.__name__}, got {text!r}; known: {_parameters(defaults)}"
            ) from None
    try:
        return name, kind(**values)
    except ValueError as error:
        raise EncoderError(f"{argument}: {error}") from None


def write_spec(kind: str, name: str, options: object) -> str:
    """Return the region source ``kind:name?...``, with the non-default parameters only; the inverse of
    ``parse_spec``."""
    said = [
        f"{field.name}={getattr(options, field.name)}"
        for field in fields(options)  # type: ignore[arg-type]
        if getattr(options, field.name) != field.default
    ]
    return f"{kind}:{name}" + ("?" + "&".join(said) if said else "")


def _parameters(defaults: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in defaults.items()) or "none"


@dataclass(frozen=True)
class BoxOptions:
    """Options for the boxes of a detector that become regions.

    At most ``top`` of those whose class confidence reaches ``threshold``, the most confident first (36 and 0.2 are
    those of bottom-up attention, Anderson et al., CVPR 2018; VSRN++ quotes a threshold of 0.3).
    """

    top: int = 36
    threshold: float = 0.2

    def __post_init__(self) -> None:
        if self.top < 1:
            raise ValueError(f"top must be at least 1, got {self.top}")
        if not 0 <= self.threshold <= 1:
            raise ValueError(f"threshold must be between 0 and 1, got {self.threshold}")


def select(
    corners: NDArray[np.float32], confidence: NDArray[np.float32], options: BoxOptions
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return boxes (m, 4) and their rows (m,), from ``corners`` (n, 4) x1 y1 x2 y2 as fractions and ``confidence``
    (n,).

    The most confident first, ties to the lower row. Boxes are clipped at the edges of the picture; those without area
    are dropped.
    """
    boxes = corners.astype(np.float32).clip(0, 1)
    usable = (boxes[:, :2] < boxes[:, 2:]).all(axis=1) & (confidence >= options.threshold)
    order = np.argsort(-confidence, kind="stable")
    rows = order[usable[order]][: options.top].astype(np.int64)
    return boxes[rows], rows


def cell_boxes(rows: int, columns: int) -> NDArray[np.float32]:
    """Return boxes float32 (rows * columns, 4) of the cells of a grid over the picture, row by row."""
    y, x = (a.ravel() for a in np.mgrid[0:rows, 0:columns])
    edges = np.stack([x / columns, y / rows, (x + 1) / columns, (y + 1) / rows], axis=1)
    return edges.astype(np.float32)
