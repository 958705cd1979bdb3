"""Codecs: scikit-learn transformers that turn vectors into sparse integer term frequencies."""

from boc.codecs.bag_of_concepts import HardAssignment, SoftAssignment, concept_steps
from boc.codecs.center import Center
from boc.codecs.codec import STEPS, SurrogateCodec
from boc.codecs.crelu import CReLU
from boc.codecs.dictionary import Dictionary, dictionary_steps
from boc.codecs.permutation import DeepPermutation
from boc.codecs.presets import CONCEPT_CODES, GLOBAL_CODES, concept_code, global_code
from boc.codecs.quantizers import BitQuantizer, ScalarQuantizer
from boc.codecs.rotation import RandomRotation
from boc.codecs.shifted_crelu import ShiftedCReLU
from boc.codecs.topz import TopZ
from boc.codecs.unit_norm import UnitNorm

__all__ = [
    "CONCEPT_CODES",
    "GLOBAL_CODES",
    "STEPS",
    "BitQuantizer",
    "CReLU",
    "Center",
    "DeepPermutation",
    "Dictionary",
    "HardAssignment",
    "RandomRotation",
    "ScalarQuantizer",
    "ShiftedCReLU",
    "SoftAssignment",
    "SurrogateCodec",
    "TopZ",
    "UnitNorm",
    "concept_code",
    "concept_steps",
    "dictionary_steps",
    "global_code",
]
