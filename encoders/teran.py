"""Loads TERAN from a model folder, as ``load_encoder``; the network is ``networks/teran.py``."""

from functools import partial

from .runtime.set_encoder import load_encoder

load = partial(load_encoder, "teran")
