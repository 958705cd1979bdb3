"""What cuts an image into regions: one module a kind, each with ``load(argument) -> RegionSource``.

A module says what it takes (``ARGUMENT``) and which extra installs what it needs (``EXTRA``).
"""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from boc.errors import EncoderError
from boc.plugins import RegionSource

from . import _options


def load(spec: str, base: Path | None = None) -> RegionSource:
    """The region source ``KIND`` or ``KIND:ARGUMENT``; a file that it names is looked for in ``base`` first.

    Raises EncoderError for an unknown kind or a missing package.
    """
    kind, _, argument = spec.partition(":")
    kinds = known()
    if kind not in kinds:
        raise EncoderError(f"no region source {spec!r}; known: {', '.join(kinds.values())}")
    if base is not None and argument:
        argument = _options.within(base, argument)
    try:
        module = import_module(f".{kind}", __name__)
    except ModuleNotFoundError as error:
        extra = _said(kind)["EXTRA"]
        raise EncoderError(
            f"{kind} needs the package {error.name}; install it with: pip install 'boc[{extra}]'"
        ) from error
    source: RegionSource = module.load(argument)
    return source


def known() -> dict[str, str]:
    """How each kind of region source is written, by its name: ``tflite`` as ``tflite:FILE``."""
    kinds = sorted(module.name for module in iter_modules(__path__) if not module.name.startswith("_"))
    return {kind: ":".join(filter(None, (kind, _said(kind)["ARGUMENT"]))) for kind in kinds}


def _said(kind: str) -> dict[str, str]:
    """The plain values that a module binds to names, read without an import: what it needs may be missing."""
    tree = ast.parse((Path(__file__).parent / f"{kind}.py").read_text(encoding="utf-8"))
    return {
        node.targets[0].id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
    }
