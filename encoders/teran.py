"""Loads TERAN from a model folder; the network is ``networks/teran.py``."""

from boc.plugins import Encoder
from boc.types import Runtime

from .runtime.set_encoder import load_encoder


def load(argument: str, runtime: Runtime) -> Encoder:
    """Return the encoder in the folder ``argument``, as ``boc train`` and ``boc convert`` write it; variants as of
    TERN."""
    return load_encoder("teran", argument, runtime)
