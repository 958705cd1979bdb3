"""Codecs: scikit-learn transformers that turn vectors into sparse integer term frequencies.

The names below are imported when they are first used: codes are parsed and listed without numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from boc.codecs.code import ARGUMENTS, CODES, Code, parse_code

if TYPE_CHECKING:
    from boc.codecs.bag_of_concepts import HardAssignment, SoftAssignment, concept_steps
    from boc.codecs.center import Center
    from boc.codecs.code_from_config import code_of
    from boc.codecs.codec import STEPS, SurrogateCodec
    from boc.codecs.crelu import CReLU
    from boc.codecs.dictionary import Dictionary, dictionary_steps
    from boc.codecs.permutation import DeepPermutation
    from boc.codecs.presets import concept_code, global_code
    from boc.codecs.quantizers import BitQuantizer, ScalarQuantizer
    from boc.codecs.rotation import RandomRotation
    from boc.codecs.shifted_crelu import ShiftedCReLU
    from boc.codecs.topz import TopZ
    from boc.codecs.unit_norm import UnitNorm
    from boc.codecs.words import WordTerms
else:
    LATER = {
        "bag_of_concepts": ("HardAssignment", "SoftAssignment", "concept_steps"),
        "center": ("Center",),
        "code_from_config": ("code_of",),
        "codec": ("STEPS", "SurrogateCodec"),
        "crelu": ("CReLU",),
        "dictionary": ("Dictionary", "dictionary_steps"),
        "permutation": ("DeepPermutation",),
        "presets": ("concept_code", "global_code"),
        "quantizers": ("BitQuantizer", "ScalarQuantizer"),
        "rotation": ("RandomRotation",),
        "shifted_crelu": ("ShiftedCReLU",),
        "topz": ("TopZ",),
        "unit_norm": ("UnitNorm",),
        "words": ("WordTerms",),
    }

    def __getattr__(name: str) -> Any:
        for module, names in LATER.items():
            if name in names:
                return getattr(import_module(f"boc.codecs.{module}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "ARGUMENTS",
    "CODES",
    "STEPS",
    "BitQuantizer",
    "CReLU",
    "Center",
    "Code",
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
    "WordTerms",
    "code_of",
    "concept_code",
    "concept_steps",
    "dictionary_steps",
    "global_code",
    "parse_code",
]
