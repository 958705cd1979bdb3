"""Load TERN from a model folder with ``load_encoder``. The network is in ``networks/tern.py``."""

from functools import partial

from .runtime.set_encoder import load_encoder

load = partial(load_encoder, "tern")
