"""Load VSRN from a model folder with ``load_encoder``. The network is in ``networks/vsrn.py``."""

from functools import partial

from .runtime.set_encoder import load_encoder

load = partial(load_encoder, "vsrn")
