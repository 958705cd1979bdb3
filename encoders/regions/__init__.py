"""Load region sources from their specs."""

from importlib import import_module
from pathlib import Path

from boc.errors import EncoderError, needing
from boc.plugins import RegionSource

KINDS = {
    "bottomup": ("bottomup", "load", "FILE?top=36&threshold=0", "detectors"),
    "efficientnet": ("efficientnet", "load", "NAME?cells=0&crops=0", "eyes"),
    "files": ("precomputed", "load_files", "DIR", "encoders"),
    "grid": ("grid", "load", "", "encoders"),
    "onnx": ("feature_maps", "load", "FILE?cells=0&crops=0", "search"),
    "scan": ("precomputed", "ScanRegions", "DIR", "encoders"),
}
"""Region sources by kind: the module, a function or class ``(argument) -> RegionSource``, the form
of the argument, and the extra that installs the required packages."""


def load(spec: str, network: Path | None = None) -> RegionSource:
    """Load the region source ``KIND`` or ``KIND:ARGUMENT``. ``network`` is a file written by its
    ``save_onnx``, from which the source is loaded without torch. Raises EncoderError for an unknown
    kind or a missing package."""
    kind, _, argument = spec.partition(":")
    if kind not in KINDS:
        raise EncoderError(f"no region source {spec!r}; known: {', '.join(spec_forms().values())}")
    name, function, _, extra = KINDS[kind]
    with needing(kind, extra, EncoderError):
        module = import_module(f".{name}", __name__)
    files = [] if network is None else [network]
    source: RegionSource = getattr(module, function)(argument, *files)
    return source


def spec_forms() -> dict[str, str]:
    """Return the spec form of each region source by name, such as ``files:DIR`` for ``files``."""
    return {
        kind: f"{kind}:{argument}" if argument else kind
        for kind, (_, _, argument, _) in KINDS.items()
    }
