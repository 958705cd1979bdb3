"""Convert vectors to sparse integer term frequencies by chains of scikit-learn transformers.

Names are imported on first use, so that the command line can parse and list codes without loading
NumPy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from boc.codecs.parse import ARGUMENTS, CODES, Code, code_of, parse_code

if TYPE_CHECKING:
    from boc.codecs.bag_of_concepts import HardAssignment, SoftAssignment
    from boc.codecs.codec import STEPS, SurrogateCodec
    from boc.codecs.dictionary import Dictionary, dictionary_steps
    from boc.codecs.frequencies import (
        BitQuantizer,
        DeepPermutation,
        ScalarQuantizer,
        TopZ,
        UnitNorm,
    )
    from boc.codecs.late_interaction import LateInteraction
    from boc.codecs.learned import LearnedTerms
    from boc.codecs.presets import concept_code, global_code
    from boc.codecs.signed import Center, CReLU, RandomRotation
    from boc.codecs.words import WordTerms
else:

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        codec = import_module("boc.codecs.codec")
        return getattr(codec, name, None) or getattr(import_module("boc.codecs.presets"), name)


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
    "LateInteraction",
    "LearnedTerms",
    "RandomRotation",
    "ScalarQuantizer",
    "SoftAssignment",
    "SurrogateCodec",
    "TopZ",
    "UnitNorm",
    "WordTerms",
    "code_of",
    "concept_code",
    "dictionary_steps",
    "global_code",
    "parse_code",
]
