"""Names that users type on the command line, on the page and in Python.

This module imports only ``typing``, so that the command line can list the names without loading
NumPy.
"""

from typing import Literal, TypeAlias, get_args

Metric: TypeAlias = Literal["dot", "mrsw", "mwsr", "symm", "mravgw"]
METRICS: tuple[Metric, ...] = get_args(Metric)
"""Re-rank metrics: the dot product of vectors, or an alignment of concept sets."""

Hybrid: TypeAlias = Literal["rrf"]
HYBRIDS: tuple[Hybrid, ...] = get_args(Hybrid)
"""Ways to combine a search with BM25 over the words of a sentence; ``rrf`` fuses the rankings."""

Modality: TypeAlias = Literal["image", "text"]
MODALITIES: tuple[Modality, Modality] = ("image", "text")

ConceptDtype: TypeAlias = Literal["float16", "int8"]
CONCEPT_DTYPES: tuple[ConceptDtype, ...] = get_args(ConceptDtype)
"""Types of stored concept sets."""

VectorDtype: TypeAlias = Literal["float16", "int8"]
VECTOR_DTYPES: tuple[VectorDtype, ...] = get_args(VectorDtype)
"""Types to which vectors can be rounded before they are stored."""

GLOBAL_CODES = ("scalar", "bits", "permutation", "dictionary")
"""Codes of the global vector that need no codebook."""

WORD_CODES = ("words",)
"""Codes of the global vector whose terms are the words of a vocabulary."""

LEARNED_CODES = ("learned",)
"""Codes of the global vector and of concepts with learned terms."""

CONCEPT_CODES = ("hard", "soft", "late")
"""Codes of concept sets. All of them except late need a codebook."""

CODEBOOKS = ("plain", "centered", "rescaled", "words", "learned")
"""Kinds of codebooks: for concepts in one of three spaces, for words, or for learned terms."""
