"""Other readings of the papers' codes, as chains of steps that no ``--code`` names.

The paper (III-A) turns all components into frequencies and then keeps "the first z higher values"; ``scalar`` and
``permutation`` keep first. With d components before c-ReLU:

- ``printed``: scalar is floor(1000 v) of all components, of which the z largest are kept; their cosine is the dot
  product after a unit norm, which is rounded once more, finely. Permutation ranks all 2d components, and keeps
  2d ... 2d - z + 1.
- ``offset``: ranks z ... 1 of the kept components with z added.
- ``authors``: scalar as in the package of the authors' group (str-encoders, ``TopKSQ``): the z largest, floor(1000 v),
  and the dot product, without a second unit norm.
- ``shifted``: nothing is clipped or left out, so that the order is that of the dense vectors (``ShiftedCReLU``).
  Several rotations side by side disturb the ranks less.

All are "plain", without centring and rotation, but for the rotations of a shifted code.
"""

from __future__ import annotations

from boc.codecs import (
    CReLU,
    DeepPermutation,
    RandomRotation,
    ScalarQuantizer,
    ShiftedCReLU,
    SurrogateCodec,
    TopZ,
    UnitNorm,
)

FINE = 10_000  # scale of what has been rounded already, or loses nothing else


def printed_order(code: str, z: int | None = None, query_z: int | None = None) -> SurrogateCodec:
    """Return ``scalar`` or ``permutation`` in the order that the paper prints: quantise, then keep."""
    if code == "permutation":
        return SurrogateCodec([CReLU(), DeepPermutation(), TopZ(z, query_z), ScalarQuantizer(1)])
    return SurrogateCodec([CReLU(), ScalarQuantizer(), TopZ(z, query_z), UnitNorm(), ScalarQuantizer(FINE)])


def offset_ranks(z: int | None = None, query_z: int | None = None) -> SurrogateCodec:
    """Return ``permutation`` whose ranks count from twice what is kept."""
    return SurrogateCodec([CReLU(), TopZ(z, query_z), DeepPermutation(offset=True)])


def authors_scalar(z: int | None = None, query_z: int | None = None) -> SurrogateCodec:
    """Return ``scalar`` as in the authors' package, for vectors of unit length."""
    return SurrogateCodec([CReLU(), TopZ(z, query_z), ScalarQuantizer()])


def shifted_crelu(code: str, rotations: int = 0) -> SurrogateCodec:
    """Return ``scalar`` or ``permutation`` of all terms, over so many rotations side by side."""
    before = [RandomRotation(expand=rotations)] if rotations else []
    if code == "permutation":
        return SurrogateCodec([*before, ShiftedCReLU(), TopZ(), DeepPermutation()])
    return SurrogateCodec([*before, ShiftedCReLU(), ScalarQuantizer(FINE)])
