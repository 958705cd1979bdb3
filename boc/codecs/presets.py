"""The codes by name, each a chain of codec steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from boc.codecs.bag_of_concepts import concept_steps
from boc.codecs.base import Step
from boc.codecs.center import Center
from boc.codecs.codec import SurrogateCodec
from boc.codecs.crelu import CReLU
from boc.codecs.dictionary import dictionary_steps
from boc.codecs.late_interaction import LateInteraction
from boc.codecs.learned import LearnedTerms
from boc.codecs.permutation import DeepPermutation
from boc.codecs.quantizers import BitQuantizer, ScalarQuantizer
from boc.codecs.rotation import RandomRotation
from boc.codecs.shifted_crelu import ShiftedCReLU
from boc.codecs.topz import TopZ
from boc.codecs.unit_norm import UnitNorm
from boc.codecs.words import WordTerms
from boc.errors import BocError
from boc.names import CONCEPT_CODES, GLOBAL_CODES, READINGS

if TYPE_CHECKING:
    from boc.clustering.codebook import Codebook

MIXED_SCALE = 100
WORD_BITS = 3  # few enough to read, and BM25 ranks better by them than by finer frequencies
LEARNED_SCALE = 255  # frequencies fit into 8 bits
FINE_SCALE = 10_000  # of codes that lose nothing else, or have rounded already


def global_code(
    code: str = "scalar",
    *,
    z: int | None = None,
    query_z: int | None = None,
    center: bool = True,
    rotate: bool = True,
    shift: bool = False,
    expand: int = 1,
    seed: int = 0,
    bits: int = 4,
    terms: int | None = None,
    reading: str = "kept",
) -> SurrogateCodec:
    """One of the codes over global vectors, unfitted: ``scalar``, ``bits``, ``permutation`` or ``dictionary``.

    The chain is centring, rotation, c-ReLU, top-z, unit norm (not for ranks, whose norm is constant), quantiser.
    Without centring and rotation it is the chain of the papers, except for the order of its last steps: the BoC paper
    (section III-A) quantises all components and then keeps the z highest, with ``reading="printed"``. The cosine of
    these rows is the dot product after a unit norm, which is rounded once more, finely. ``reading="offset"`` adds the
    number of kept terms to each rank (``DeepPermutation``).

    With ``shift`` the code keeps the order of the dense
    vectors: there is no centring (which moves queries, too), no sparsification and no norm, and c-ReLU is shifted.

    For ``dictionary`` the chain is centring and a vocabulary of ``terms`` centroids; default budgets are 2 terms per
    item and 64 per query. It ignores ``rotate``, ``shift``, ``expand``, ``bits`` and ``reading``.

    BocError for an unknown code, a reading that the code does not have, or a shifted code with budgets or a reading.
    """
    if code not in GLOBAL_CODES:
        raise BocError(f"no code {code!r}; known: {', '.join(GLOBAL_CODES)}")
    if code == "dictionary":
        return SurrogateCodec(dictionary_steps(terms, z or 2, query_z or 64, center=center, seed=seed))
    if shift and (z is not None or query_z is not None or reading != "kept"):
        raise BocError("a shifted code keeps every term; leave out z, query_z and reading, or leave out shift")
    if reading not in READINGS[code]:
        raise BocError(f"no reading {reading!r} of {code}; known: {', '.join(READINGS[code])}")
    chain: list[Step] = [Center()] if center and not shift else []
    chain += [RandomRotation(seed, expand)] if rotate else []
    chain += [ShiftedCReLU() if shift else CReLU()]
    keep = TopZ(z, query_z)
    if code == "permutation":
        last = [DeepPermutation(), keep, ScalarQuantizer(1)] if reading == "printed" else []
        return SurrogateCodec([*chain, *(last or [keep, DeepPermutation(reading == "offset")])])
    if reading == "printed":
        return SurrogateCodec([*chain, ScalarQuantizer(), keep, UnitNorm(), ScalarQuantizer(FINE_SCALE)])
    chain += [keep] if shift else [keep, UnitNorm()]
    scalar = ScalarQuantizer(FINE_SCALE) if shift else ScalarQuantizer()
    return SurrogateCodec([*chain, scalar if code == "scalar" else BitQuantizer(bits)])


def concept_code(
    codebook: Codebook,
    code: str = "soft",
    *,
    z: int | None = None,
    query_z: int | None = None,
    similarity: str = "inverse",
    aggregate: str = "sum",
    drop_stopwords: bool = False,
    terms: int | None = None,
    seed: int = 0,
) -> SurrogateCodec:
    """One of the codes over concept sets: ``hard`` or ``soft`` Bag of Concepts over ``codebook``, or ``mixed``.

    ``mixed`` concatenates a soft Bag of Concepts (``z`` nearest centroids per concept, default 2) and the dictionary of
    the global vectors; only the dictionary is still to be fitted. The concepts are scaled so that two equal sets score
    about as much as two equal global vectors. ``drop_stopwords`` leaves out the concepts of English stop-words.
    """
    if code not in CONCEPT_CODES:
        raise BocError(f"no code {code!r} over concepts; known: {', '.join(CONCEPT_CODES)}")
    if code == "hard":
        if z is not None or query_z is not None:
            raise BocError("hard counts the one nearest centroid of each concept; leave out z and query_z")
        return SurrogateCodec(frozen(concept_steps(codebook, "hard", drop_stopwords=drop_stopwords)))
    soft: dict[str, Any] = {"similarity": similarity, "aggregate": aggregate, "drop_stopwords": drop_stopwords}
    if code == "soft":
        return SurrogateCodec(frozen(concept_steps(codebook, z=z, query_z=query_z, **soft)))
    concepts = concept_steps(codebook, scale=MIXED_SCALE, z=z or 2, query_z=query_z or z or 2, **soft)
    return SurrogateCodec(frozen(concepts), dictionary_steps(terms, seed=seed))


def late_code(terms: int | None = None, density: int = 20, seed: int = 0) -> SurrogateCodec:
    """Late interaction over ``terms`` centroids of words (default 1,024), unfitted; see ``LateInteraction``."""
    return SurrogateCodec([LateInteraction(terms or 1024, density, seed)])


def word_code(codebook: Codebook, *, z: int | None = None, query_z: int | None = None) -> SurrogateCodec:
    """Items written in the words of a vocabulary: at most ``z`` words per item (default 32) and ``query_z`` per query
    (default 32), frequencies from 1 to 7. The mean of the pictures is still to be fitted."""
    step = WordTerms.from_codebook(codebook, z=z or 32, query_z=query_z or 32)
    return SurrogateCodec([step, BitQuantizer(WORD_BITS)])


def learned_code(codebook: Codebook, *, z: int | None = None, query_z: int | None = None) -> SurrogateCodec:
    """Learned terms: the ``z`` largest activations of an item and the ``query_z`` largest of a query (by default as
    many as they were learned with), scaled to unit length; see ``LearnedTerms``. Nothing is still to be fitted."""
    budgets = (z or codebook.options.get("z", 32), query_z or codebook.options.get("query_z", 32))
    step = LearnedTerms.from_codebook(codebook, z=budgets[0], query_z=budgets[1])
    return SurrogateCodec(frozen([step, UnitNorm(), ScalarQuantizer(LEARNED_SCALE)]))


def frozen(chain: list[Step]) -> list[Step]:
    """The chain over a given codebook; the steps after the codebook learn only their width."""
    for step in chain[1:]:
        step.fit(np.zeros((1, chain[0]._n_features_out), np.float32))
        step.frozen = True
    return chain
