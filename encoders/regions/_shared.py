"""Parts of several region sources: the parameters of a spec, ``NAME?top=36&threshold=0.2``, and the
boxes of cells."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from boc.errors import EncoderError

T = TypeVar("T")
Floats = NDArray[np.float32]


def parse_spec(argument: str, kind: type[T]) -> tuple[str, T]:
    """Split ``argument`` into the name before ``?`` and the dataclass ``kind``, whose fields are
    the known parameters.

    A value is parsed as the type of the default of its field. EncoderError for an unknown, repeated
    or unreadable parameter.
    """
    name, mark, query = argument.partition("?")
    defaults: dict[str, Any] = {field.name: field.default for field in fields(kind)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for part in query.split("&") if mark else []:
        key, equals, text = part.partition("=")
        if not equals or key not in defaults:
            raise EncoderError(
                f"{argument}: unknown parameter {part!r}; known: {_parameters(defaults)}",
            )
        if key in values:
            raise EncoderError(f"{argument}: {key} is given twice; give it once")
        expected = type(defaults[key])
        try:
            values[key] = expected(text)
        except ValueError:
            raise EncoderError(
                f"{argument}: {key} must be of type {expected.__name__}, got {text!r}; known: "
                f"{_parameters(defaults)}",
            ) from None
    try:
        return name, kind(**values)
    except ValueError as error:
        raise EncoderError(f"{argument}: {error}") from None


def write_spec(kind: str, name: str, options: object) -> str:
    """Return the region source ``kind:name?...``, with the non-default parameters only; the inverse
    of ``parse_spec``."""
    said = [
        f"{field.name}={getattr(options, field.name)}"
        for field in fields(options)  # type: ignore[arg-type]
        if getattr(options, field.name) != field.default
    ]
    return f"{kind}:{name}" + ("?" + "&".join(said) if said else "")


def _parameters(defaults: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in defaults.items()) or "none"


def cell_boxes(rows: int, columns: int) -> Floats:
    """Return boxes float32 (rows * columns, 4) of the cells of a grid over the picture, row by
    row."""
    y, x = np.mgrid[0:rows, 0:columns].reshape(2, -1)
    edges = np.stack([x / columns, y / rows, (x + 1) / columns, (y + 1) / rows], axis=1)
    return edges.astype(np.float32)
