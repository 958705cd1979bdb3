"""Names that users type, for the command line, the page and the library alike.

Nothing is imported here but ``typing``, so that the command line can offer the names without loading numpy.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

Metric: TypeAlias = Literal["dot", "mrsw", "mwsr", "symm", "mravgw"]
METRICS: tuple[Metric, ...] = get_args(Metric)
"""How candidates are re-ranked: by dot products of vectors, or by an alignment of concept sets."""

Hybrid: TypeAlias = Literal["rrf", "sum"]
HYBRIDS: tuple[Hybrid, ...] = get_args(Hybrid)
"""How the words of a sentence are counted too: by fusing both rankings, or by adding both scores."""

Modality: TypeAlias = Literal["image", "text"]
MODALITIES: tuple[Modality, Modality] = ("image", "text")

ConceptDtype: TypeAlias = Literal["float16", "int8"]
CONCEPT_DTYPES: tuple[ConceptDtype, ...] = get_args(ConceptDtype)
"""Types that concept sets are stored as."""

SIGNED_CODES = ("scalar", "bits", "permutation")
GLOBAL_CODES = (*SIGNED_CODES, "dictionary")
"""Codes of the global vector."""

CONCEPT_CODES = ("hard", "soft", "mixed")
"""Codes of concept sets, which need a codebook."""
