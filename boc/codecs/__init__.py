"""Codecs: scikit-learn transformers that turn vectors into sparse integer term frequencies."""

from boc.codecs.center import Center
from boc.codecs.compose import CODES, STEPS, SurrogateCodec, global_code
from boc.codecs.crelu import CReLU
from boc.codecs.norm import UnitNorm
from boc.codecs.permutation import DeepPermutation
from boc.codecs.rotation import RandomRotation
from boc.codecs.scalar import BitQuantizer, ScalarQuantizer
from boc.codecs.shifted import ShiftedCReLU
from boc.codecs.topz import TopZ

__all__ = [
    "CODES",
    "STEPS",
    "BitQuantizer",
    "CReLU",
    "Center",
    "DeepPermutation",
    "RandomRotation",
    "ScalarQuantizer",
    "ShiftedCReLU",
    "SurrogateCodec",
    "TopZ",
    "UnitNorm",
    "global_code",
]
