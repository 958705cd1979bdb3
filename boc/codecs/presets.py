"""Build codes by name, as chains of codec steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from boc.codecs.bag_of_concepts import HardAssignment, SoftAssignment
from boc.codecs.base import Step
from boc.codecs.codec import SurrogateCodec
from boc.codecs.dictionary import dictionary_steps
from boc.codecs.frequencies import BitQuantizer, DeepPermutation, ScalarQuantizer, TopZ, UnitNorm
from boc.codecs.learned import LearnedTerms
from boc.codecs.signed import Center, CReLU, RandomRotation
from boc.codecs.words import WordTerms
from boc.errors import BocError
from boc.names import GLOBAL_CODES

if TYPE_CHECKING:
    from boc.clustering.codebook import Codebook

WORD_BITS = 3  # with few bits, terms stay readable and BM25 ranks better
CONCEPT_SCALE = 1e5
LEARNED_SCALE = 255  # frequencies fit into 8 bits


def global_code(
    code: str = "scalar",
    *,
    z: int | None = None,
    query_z: int | None = None,
    plain: bool = False,
    bits: int = 4,
    terms: int | None = None,
) -> SurrogateCodec:
    """Return an unfitted codec over global vectors: ``scalar``, ``bits``, ``permutation`` or
    ``dictionary``.

    The steps are centring, rotation, c-ReLU, top-z, unit norm (except for ``permutation``, whose
    codes have a constant norm) and quantisation. A ``plain`` code omits centring and rotation, as
    in the papers. The BoC paper (section III-A) reverses the last steps, which makes little
    difference (``bench/paper/variants.py`` measures both orders).

    The steps of ``dictionary`` are centring and a vocabulary of ``terms`` centroids. The default
    budgets are 2 terms per item and 64 terms per query; ``plain`` and ``bits`` are ignored. Raises
    BocError if the code is unknown.
    """
    if code not in GLOBAL_CODES:
        raise BocError(f"unknown code {code!r}; known: {', '.join(GLOBAL_CODES)}")
    if code == "dictionary":
        return SurrogateCodec(dictionary_steps(terms, z or 2, query_z or 64))
    chain = [] if plain else [Center(), RandomRotation()]
    chain += [CReLU(), TopZ(z, query_z)]
    if code == "permutation":
        return SurrogateCodec([*chain, DeepPermutation()])
    return SurrogateCodec(
        [*chain, UnitNorm(), ScalarQuantizer() if code == "scalar" else BitQuantizer(bits)],
    )


def concept_code(
    codebook: Codebook,
    code: str = "soft",
    *,
    z: int | None = None,
    query_z: int | None = None,
    similarity: str = "inverse",
    aggregate: str = "sum",
) -> SurrogateCodec:
    """Return a fitted codec over concept sets: ``hard`` or ``soft`` assignment, unit norm and
    scalar quantisation.

    The scale is 100 times as large as for global codes, because the components of a dense row are
    nearly equal (0.03 +- 0.003 for 1,000 centroids), so a scale of 1,000 would distinguish only 6
    levels. Raises BocError if the code is unknown, and ValueError if an option is out of range.
    """
    step: HardAssignment | SoftAssignment
    if code == "soft":
        step = SoftAssignment.from_codebook(
            codebook,
            z=z,
            query_z=query_z,
            similarity=similarity,
            aggregate=aggregate,
        )
    elif code != "hard":
        raise BocError(f"unknown assignment {code!r}; known: hard, soft")
    elif z is not None or query_z is not None:
        raise BocError(
            "hard counts only the nearest centroid of each concept; omit z and query_z",
        )
    else:
        step = HardAssignment.from_codebook(codebook)
    return SurrogateCodec(_complete([step, UnitNorm(), ScalarQuantizer(CONCEPT_SCALE)]))


def book_code(
    codebook: Codebook,
    code: str,
    *,
    z: int | None = None,
    query_z: int | None = None,
) -> SurrogateCodec:
    """Return the codec ``words`` or ``learned``, with at most ``z`` terms per item and ``query_z``
    per query. The defaults are the budgets with which the terms were learned, or 32.

    For ``words``, frequencies range from 1 to 7, and ``fit`` must still learn the mean of the
    pictures. For ``learned``, activations are scaled to unit length.
    """
    options = codebook.options
    budgets = {"z": z or options.get("z", 32), "query_z": query_z or options.get("query_z", 32)}
    if code == "words":
        return SurrogateCodec(
            [WordTerms.from_codebook(codebook, **budgets), BitQuantizer(WORD_BITS)],
        )
    step = LearnedTerms.from_codebook(codebook, **budgets)
    return SurrogateCodec(_complete([step, UnitNorm(), ScalarQuantizer(LEARNED_SCALE)]))


def _complete(chain: list[Step]) -> list[Step]:
    """Fit the steps after the codebook step, which learn only their width."""
    for step in chain[1:]:
        step.fit(np.zeros((1, chain[0]._n_features_out), np.float32))
        step.frozen = True
    return chain
