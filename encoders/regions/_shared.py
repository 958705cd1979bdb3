"""Functions shared by region sources, for spec parameters (``NAME?top=36&threshold=0.2``) and for
cell boxes."""

from dataclasses import fields
from typing import TypeVar

import numpy as np

from boc.errors import EncoderError
from boc.foreign import typed
from boc.vectors import Doubles, Floats

T = TypeVar("T")


def parse_spec(argument: str, kind: type[T]) -> tuple[str, T]:
    """Split ``argument`` into the name before ``?`` and an instance of the dataclass ``kind``,
    whose fields declare the known parameters with types and ranges.

    Raises EncoderError for an unknown, repeated or invalid parameter.
    """
    name, mark, query = argument.partition("?")
    defaults = {field.name: field.default for field in fields(kind)}  # type: ignore[arg-type]
    known = ", ".join(f"{key}={value}" for key, value in defaults.items())
    values = {}
    for part in query.split("&") if mark else []:
        key, equals, text = part.partition("=")
        if not equals or key not in defaults:
            raise EncoderError(f"{argument}: unknown parameter {part!r}; known: {known}")
        if key in values:
            raise EncoderError(f"{argument}: {key} occurs twice; give it once")
        values[key] = text
    try:
        return name, typed(values, kind, strict=False)
    except ValueError as error:
        raise EncoderError(f"{argument}: {error}; known: {known}") from None


def write_spec(kind: str, name: str, options: object) -> str:
    """Return the spec ``kind:name?...`` with non-default parameters only, as the inverse of
    ``parse_spec``."""
    said = [
        f"{field.name}={getattr(options, field.name)}"
        for field in fields(options)  # type: ignore[arg-type]
        if getattr(options, field.name) != field.default
    ]
    return f"{kind}:{name}" + ("?" + "&".join(said) if said else "")


def cell_boxes(rows: int, columns: int, span: int = 1) -> Floats:
    """Return the boxes of a grid over the picture, row by row, float32 (rows * columns, 4). Each
    box covers ``span`` steps of the grid in both directions, so boxes overlap if ``span`` is
    greater than 1."""
    y, x = np.mgrid[0:rows, 0:columns].reshape(2, -1)
    steps = np.array([columns, rows, columns, rows]) + span - 1
    edges: Doubles = np.stack([x, y, x + span, y + span], axis=1) / steps
    return edges.astype(np.float32)
