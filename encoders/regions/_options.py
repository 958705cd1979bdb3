"""Parameters of a region source in its spec: ``NAME?top=36&threshold=0.2``."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from boc.errors import EncoderError

T = TypeVar("T")


def parse(argument: str, kind: type[T]) -> tuple[str, T]:
    """Split ``argument`` into the name before ``?`` and the dataclass ``kind``, whose fields are the known parameters.

    A value is parsed as the type of the default of its field. EncoderError for an unknown, repeated or unreadable
    parameter.
    """
    name, mark, query = argument.partition("?")
    defaults: dict[str, Any] = {field.name: field.default for field in fields(kind)}  # type: ignore[arg-type]
    given: dict[str, Any] = {}
    for part in query.split("&") if mark else []:
        key, equals, text = part.partition("=")
        if not equals or key not in defaults:
            raise EncoderError(f"{argument}: unknown parameter {part!r}; known: {_known(defaults)}")
        if key in given:
            raise EncoderError(f"{argument}: {key} is given twice; give it once")
        expected = type(defaults[key])
        try:
            given[key] = expected(text)
        except ValueError:
            raise EncoderError(
                f"{argument}: {key} must be of type {expected.__name__}, got {text!r}; known: {_known(defaults)}"
            ) from None
    try:
        return name, kind(**given)
    except ValueError as error:
        raise EncoderError(f"{argument}: {error}") from None


def spec(kind: str, name: str, options: object) -> str:
    """The region source ``kind:name?...``, with the non-default parameters only; the inverse of ``parse``."""
    said = [
        f"{field.name}={getattr(options, field.name)}"
        for field in fields(options)  # type: ignore[arg-type]
        if getattr(options, field.name) != field.default
    ]
    return f"{kind}:{name}" + ("?" + "&".join(said) if said else "")


def within(base: Path, argument: str) -> str:
    """``argument`` with its file or folder looked up in ``base``; unchanged if it is not there."""
    name, mark, query = argument.partition("?")
    if (base / argument).exists():
        return str(base / argument)
    return f"{base / name}{mark}{query}" if (base / name).exists() else argument


def _known(defaults: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in defaults.items()) or "none"
