"""Codecs: scikit-learn transformers that turn vectors into sparse integer term frequencies."""

from boc.codecs.center import Center
from boc.codecs.codes import CONCEPT_CODES, GLOBAL_CODES, concept_code, global_code
from boc.codecs.compose import STEPS, SurrogateCodec
from boc.codecs.concepts import HardAssignment, SoftAssignment, concept_steps
from boc.codecs.crelu import CReLU
from boc.codecs.dictionary import Dictionary, dictionary_steps
from boc.codecs.norm import UnitNorm
from boc.codecs.permutation import DeepPermutation
from boc.codecs.rotation import RandomRotation
from boc.codecs.scalar import BitQuantizer, ScalarQuantizer
from boc.codecs.shifted import ShiftedCReLU
from boc.codecs.topz import TopZ

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
