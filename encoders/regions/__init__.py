"""What cuts an image into regions: one module a kind, each with ``load(argument) -> RegionSource``."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from boc.errors import EncoderError
from boc.types import RegionSource


def load(spec: str, base: Path | None = None) -> RegionSource:
    """The region source ``KIND`` or ``KIND:ARGUMENT``; a file that it names is looked for in ``base`` first.

    Raises EncoderError for an unknown kind or a missing package.
    """
    kind, _, argument = spec.partition(":")
    known = sorted(m.name for m in iter_modules(__path__) if not m.name.startswith("_"))
    if kind not in known:
        raise EncoderError(f"no region source {spec!r}; known: grid, tflite:FILE, files:DIR")
    if base is not None and argument and (base / argument).exists():
        argument = str(base / argument)
    try:
        module = import_module(f".{kind}", __name__)
    except ModuleNotFoundError as error:
        extra = "tflite" if kind == "tflite" else "encoders"
        raise EncoderError(
            f"{kind} needs the package {error.name}; install it with: pip install 'boc[{extra}]'"
        ) from error
    source: RegionSource = module.load(argument)
    return source
