"""The codes by name: which steps make them up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from boc.codecs.bag_of_concepts import concept_steps
from boc.codecs.base import Step
from boc.codecs.center import Center
from boc.codecs.codec import SurrogateCodec
from boc.codecs.crelu import CReLU
from boc.codecs.dictionary import dictionary_steps
from boc.codecs.permutation import DeepPermutation
from boc.codecs.quantizers import BitQuantizer, ScalarQuantizer
from boc.codecs.rotation import RandomRotation
from boc.codecs.shifted_crelu import ShiftedCReLU
from boc.codecs.topz import TopZ
from boc.codecs.unit_norm import UnitNorm
from boc.errors import BocError

if TYPE_CHECKING:
    pass

if TYPE_CHECKING:
    from boc.clustering.codebook import Codebook

GLOBAL_CODES = ("scalar", "bits", "permutation", "dictionary")
CONCEPT_CODES = ("hard", "soft", "mixed")
MIXED_SCALE = 100
SHIFTED_SCALE = 10_000  # rounding is all that a shifted code loses


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
) -> SurrogateCodec:
    """One of the codes over global vectors, unfitted: ``scalar``, ``bits``, ``permutation`` or ``dictionary``.

    The chain is centring, rotation, c-ReLU, top-z, unit norm (not for ranks, which have it), quantiser. Without
    centring and rotation it is the papers' own. With ``shift`` it is made to keep the order of the dense vectors:
    neither centred, which moves queries too, nor sparsified nor normed, and c-ReLU is the shifted one.

    For ``dictionary`` it is centring and nearest centroids, ``terms`` of them, 2 an item and 64 a query unless told
    otherwise; rotation, shift and bits do not concern it.
    """
    if code not in GLOBAL_CODES:
        raise BocError(f"no code {code!r}; known: {', '.join(GLOBAL_CODES)}")
    if code == "dictionary":
        return SurrogateCodec(dictionary_steps(terms, z or 2, query_z or 64, center=center, seed=seed))
    if shift and (z is not None or query_z is not None):
        raise BocError("a shifted code keeps every term; leave out --z and --query-z, or leave out --shift")
    chain: list[Step] = [Center()] if center and not shift else []
    chain += [RandomRotation(seed, expand)] if rotate else []
    chain += [ShiftedCReLU() if shift else CReLU(), TopZ(z, query_z)]
    if code == "permutation":
        return SurrogateCodec([*chain, DeepPermutation()])
    chain += [] if shift else [UnitNorm()]
    scalar = ScalarQuantizer(SHIFTED_SCALE) if shift else ScalarQuantizer()
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

    ``mixed`` writes a soft Bag of Concepts (each concept's 2 nearest centroids, unless ``z`` says otherwise) and the
    dictionary of the global vectors side by side; only the dictionary is still to be fitted. Its concepts are scaled so
    that two equal sets score about what two equal global vectors do. ``drop_stopwords`` leaves the concepts of English
    stop-words out.
    """
    if code not in CONCEPT_CODES:
        raise BocError(f"no code {code!r} over concepts; known: {', '.join(CONCEPT_CODES)}")
    if code == "hard":
        if z is not None or query_z is not None:
            raise BocError("hard counts the one nearest centroid of each concept; leave out --z and --query-z")
        return SurrogateCodec(frozen(concept_steps(codebook, "hard", drop_stopwords=drop_stopwords)))
    soft: dict[str, Any] = {"similarity": similarity, "aggregate": aggregate, "drop_stopwords": drop_stopwords}
    if code == "soft":
        return SurrogateCodec(frozen(concept_steps(codebook, z=z, query_z=query_z, **soft)))
    concepts = concept_steps(codebook, scale=MIXED_SCALE, z=z or 2, query_z=query_z or z or 2, **soft)
    return SurrogateCodec(frozen(concepts), dictionary_steps(terms, seed=seed))


def frozen(chain: list[Step]) -> list[Step]:
    """The chain over a codebook made elsewhere: what follows the codebook has nothing to learn but its width."""
    for step in chain[1:]:
        step.fit(np.zeros((1, chain[0]._n_features_out), np.float32))
        step.frozen = True
    return chain


DEFAULT_Z = 64


DEFAULT_QUERY_Z = 128


def budgets(dim: int, z: int | None, query_z: int | None) -> tuple[int, int]:
    """Terms of a document and of a query: as asked, or the defaults as far as the 2 * dim terms of a code reach."""
    terms = 2 * dim
    for option, value in (("--z", z), ("--query-z", query_z)):
        if value is not None and not 1 <= value <= terms:
            raise BocError(f"{option} must be between 1 and {terms} (2 x {dim} components), got {value}")
    return z or min(DEFAULT_Z, terms), query_z or max(z or 0, min(DEFAULT_QUERY_Z, terms))
