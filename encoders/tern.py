"""Loads TERN from a model folder; the network is ``networks/tern.py``."""

from boc.plugins import Encoder
from boc.types import Runtime

from .runtime.set_encoder import load_encoder


def load(argument: str, runtime: Runtime) -> Encoder:
    """Return the encoder in the folder ``argument``, as ``boc train`` and ``boc convert`` write it.

    ``FOLDER?alone`` encodes regions and words without context; it has the same global vectors, and another digest.
    Raises EncoderError if the folder holds no TERN.
    """
    return load_encoder("tern", argument, runtime)
