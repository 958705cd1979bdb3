"""Names to plug-ins, loaded when asked for. The only module that knows the plug-in folders."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING

from boc.errors import BackendError, BocError, EncoderError
from boc.types import Runtime

if TYPE_CHECKING:
    from types import ModuleType

    from boc.types import Backend, Encoder, RegionSource

ROOT = Path(__file__).resolve().parent.parent


def backend(url: str) -> Backend:
    """The back end behind a URL: ``file:DIR`` for the embedded index."""
    scheme, colon, _ = url.partition(":")
    if not colon:
        raise BackendError(f"{url!r} is no address; write file:DIR, for example file:boc-data")
    found: Backend = _module("indexing", scheme.partition("+")[0]).connect(url)
    return found


def encoder(spec: str, device: str = "auto", runtime: Runtime | None = None) -> Encoder:
    """The encoder ``KIND:ARGUMENT``, for example ``tern:models/flickr8k``; ``runtime`` says more than ``device``."""
    kind, argument = _split(spec, "encoder", "tern:FOLDER")
    found: Encoder = _module("encoders", kind).load(argument, runtime or Runtime(device))
    return found


def region_source(spec: str) -> RegionSource:
    """The region source ``KIND`` or ``KIND:ARGUMENT``, for example ``grid`` or ``tflite:FILE``."""
    found: RegionSource = _package("encoders.regions").load(spec)
    return found


def trainer() -> ModuleType:
    """The module that trains encoders: Recipe, Training, describe, finished, best."""
    return _module("encoders.training", "train")


def converter() -> ModuleType:
    """The module that turns published checkpoints into model folders: convert."""
    return _module("encoders.conversion", "convert")


def _split(spec: str, what: str, example: str) -> tuple[str, str]:
    kind, colon, argument = spec.partition(":")
    if not colon or not argument:
        raise EncoderError(f"{spec!r} is no {what}; write KIND:ARGUMENT, for example {example}")
    return kind, argument


def _package(folder: str) -> ModuleType:
    """Our own package ``folder``; a stranger's of that name is refused."""
    package = import_module(folder)
    place = Path(next(iter(package.__path__))).resolve()
    if place != ROOT / folder.replace(".", "/"):
        raise BocError(f"the package {folder!r} was loaded from {place}, not from boc; rename or remove that one")
    return package


def _module(folder: str, name: str) -> ModuleType:
    known = sorted(m.name for m in iter_modules(_package(folder).__path__) if not (m.ispkg or m.name.startswith("_")))
    if name not in known:
        raise BocError(f"no {name!r} in {folder}; known: {', '.join(known)}")
    try:
        return import_module(f"{folder}.{name}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in {"boc", "encoders", "indexing"}:
            raise
        extra = name if folder == "indexing" else "encoders"
        what = {"encoders.training": "training", "encoders.conversion": "boc convert"}.get(folder, name)
        raise BocError(f"{what} needs the package {error.name}; install it with: pip install 'boc[{extra}]'") from error
