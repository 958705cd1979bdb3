"""Score pictures and sentences by the cosines of their regions and words (TERAN, section 4).

Each score pools A, the matrix of cosines between regions and words, in which special rows and
padding are 0:

    mrsw    sum over words of the maximum over regions (eq. 3)
    mwsr    sum over regions of the maximum over words (eq. 3)
    symm    mrsw + mwsr (eq. 4)
    mravgw  mrsw / number of words (eq. 8)
    sum     sum of all cosines
    mean    sum / number of cells, padding included
    scan    sum over regions of the cosine between a region and the words that it attends to
            (after SCAN, ECCV 2018)

The zeros are part of the published networks, so a maximum over a padded set is never below 0.
Therefore mwsr and symm depend slightly on whether a set is padded, and ``mean`` depends on the
amount of padding.
"""

import torch
from torch import Tensor

POOLINGS = ("mrsw", "mwsr", "symm", "mravgw", "sum", "mean", "scan")


def pool_cosines(
    regions: Tensor,
    region_mask: Tensor,
    words: Tensor,
    word_mask: Tensor,
    pooling: str,
) -> Tensor:
    """Return alignment scores (images, sentences).

    Rows of ``regions`` (B, n, d) and ``words`` (T, L, d) have unit length; masks (B, n) and (T, L)
    are true for valid rows.
    """
    # Sums are computed in full precision.
    precise = torch.promote_types(regions.dtype, torch.float32)
    if pooling in ("mrsw", "mravgw"):
        # Masked words are excluded, because their cells would use most of the memory during
        # training.
        real = regions * region_mask[..., None]
        cosines = torch.einsum("bnd,wd->bnw", real, words[word_mask])
        best = cosines.max(dim=1).values.to(precise)
        by_word = best.new_zeros(len(regions), len(words)).index_add(
            1,
            word_mask.nonzero(as_tuple=True)[0],
            best,
        )
        if pooling == "mravgw":
            return by_word / word_mask.sum(dim=1).clamp(min=1)
        return by_word
    cosines = torch.einsum("bnd,tld->btnl", regions, words).to(precise)
    A = cosines * (region_mask[:, None, :, None] & word_mask[None, :, None, :])
    if pooling == "sum":
        return A.sum(dim=(2, 3))
    if pooling == "mean":
        return A.mean(dim=(2, 3))
    if pooling == "scan":
        weights = torch.nn.functional.normalize(A.clamp(min=0), dim=2)
        weights = weights.masked_fill(~word_mask[None, :, None, :], -torch.inf)
        # A sentence without words attends to nothing.
        weights = torch.softmax(weights, dim=3).nan_to_num()
        attended = torch.einsum("btnl,tld->btnd", weights, words)
        present = A.abs().amax(dim=3) > 0
        by_region = torch.cosine_similarity(regions[:, None], attended, dim=3)
        return (by_region * present).sum(dim=2)
    by_region = A.amax(dim=3).sum(dim=2)
    if pooling == "mwsr":
        return by_region
    return A.amax(dim=2).sum(dim=2) + by_region
