"""Loads TERN from a model folder, as ``load_encoder``; the network is ``networks/tern.py``."""

from functools import partial

from .runtime.set_encoder import load_encoder

load = partial(load_encoder, "tern")
