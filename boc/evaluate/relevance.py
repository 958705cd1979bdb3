"""Compute the relevance of pictures to sentences, including sentences about other pictures, by
ROUGE-L, or read it from a file.

A relevance matrix is float32 (n_texts, n_pictures) and compares each sentence with all sentences
about each picture. The files published with TERN and TERAN have no header; rows are in the order of
the sentences, and missing values are -1.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from boc.errors import BocError
from boc.progress import Tick
from boc.vectors import Doubles, Floats, Ints

BETA = 1.2
PICTURES = 256  # pictures compared at a time, so that their masks fit into the cache
ROWS = 1024  # rows of a file checked at a time
UNFILLED = -1


def tokens(sentence: str) -> list[str]:
    """Convert a sentence to lower case and split it at single spaces, as the COCO implementation of
    ROUGE-L does. There is an empty token between two adjacent spaces."""
    return sentence.lower().split(" ")


def rouge_l_matrix(
    texts: Sequence[str],
    owners: Ints,
    *,
    block: int = PICTURES,
    tick: Tick = lambda done: None,
) -> Floats:
    """Compute ROUGE-L between each sentence and all sentences about each picture, float32 (n_texts,
    n_pictures).

    Let l_r be the length of the longest common subsequence of candidate c and reference r. Then P =
    max_r l_r / |c|, R = max_r l_r / |r| and F = (1 + b^2) P R / (R + b^2 P) with b = 1.2, or 0 if
    there is no common token (Lin, ROUGE, ACL 2004 workshop, eq. 2-4). The maxima of P and R are
    computed separately (Chen et al., Microsoft COCO Captions, 2015).

    ``owners`` (n_texts,) contains the number of the picture that each sentence describes. Raises
    BocError if a picture has no sentence. ``tick`` is called with the number of values in each
    finished block.
    """
    if len(texts) != len(owners) or not len(texts):
        raise BocError(
            f"relevance needs one owner per caption, got {len(texts)} captions and {len(owners)} "
            "owners",
        )
    counts = np.bincount(owners)
    if not counts.all():
        raise BocError(
            f"picture {int(counts.argmin())} has no caption, so its relevance is undefined; omit "
            "this picture",
        )
    order = np.argsort(owners, kind="stable")
    starts = np.cumsum([0, *counts])
    number: dict[str, int] = {}
    ids = [np.array([number.setdefault(t, len(number)) for t in tokens(text)]) for text in texts]
    relevance = np.empty((len(texts), len(starts) - 1), dtype=np.float32)
    for first in range(0, relevance.shape[1], block):
        edges = starts[first : first + block + 1]
        references = [ids[i] for i in order[edges[0] : edges[-1]]]
        columns = relevance[:, first : first + block]
        columns[:] = _rouge_l_columns(ids, references, edges[:-1] - edges[0], len(number))
        tick(columns.size)
    return relevance


def read_relevance(path: Path, n_texts: int) -> Floats:
    """Memory-map a relevance file with ``n_texts`` rows, read-only.

    Raises BocError if the file is missing or incomplete, or if it has a NumPy header, an unexpected
    size or negative values.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as handle:
            magic = handle.read(6)
    except OSError as error:
        raise BocError(
            f"{path}: cannot be read ({error.strerror or error}); give a relevance matrix",
        ) from error
    if magic == b"\x93NUMPY":
        raise BocError(
            f"{path}: has a NumPy header, but a relevance matrix must be float32 without a "
            "header; write the matrix with tofile",
        )
    if not size or size % (4 * n_texts):
        raise BocError(
            f"{path}: {size} bytes are not complete float32 rows for {n_texts} captions; give the "
            "matrix for these captions",
        )
    shape = (n_texts, size // (4 * n_texts))
    relevance: Floats = np.memmap(path, "<f4", "r", shape=shape)
    for start in range(0, n_texts, ROWS):
        rows = relevance[start : start + ROWS]
        if ((rows < 0) & (rows != UNFILLED)).any():
            raise BocError(
                f"{path}: contains {np.nanmin(rows):g}, but relevance cannot be negative; check "
                "that the file is a float32 matrix",
            )
        if (rows == UNFILLED).any():
            row = start + int(np.argwhere(rows == UNFILLED)[0, 0])
            raise BocError(
                f"{path}: has missing values (-1), the first in row {row}; compute all values",
            )
    return relevance


def _rouge_l_columns(
    candidates: Sequence[Ints],
    references: Sequence[Ints],
    starts: Ints,
    n_tokens: int,
) -> Doubles:
    """Compute ROUGE-L between all candidates and the pictures whose references start at
    ``starts``."""
    lengths = np.array([len(r) for r in references])
    met, masks = _masks(references, n_tokens)
    columns = np.zeros((len(candidates), len(starts)))
    for row, candidate in zip(columns, candidates, strict=True):
        known = met[candidate]
        common = _lcs_lengths(masks, known[known >= 0])
        precision = np.maximum.reduceat(common, starts) / len(candidate)
        recall = np.maximum.reduceat(common / lengths, starts)
        above = (1 + BETA**2) * precision * recall
        below = recall + BETA**2 * precision
        np.divide(above, below, out=row, where=above > 0)
    return columns


def _masks(
    references: Sequence[Ints],
    n_tokens: int,
) -> tuple[Ints, NDArray[np.uint64]]:
    """Return the row of each token, or -1 if the token does not occur, and masks of token
    positions. Bit i of [w, row, r] is set if the token of the row is at position 64 w + i of
    reference r."""
    lengths = [len(r) for r in references]
    owner = np.repeat(np.arange(len(references)), lengths)
    position = np.concatenate([np.arange(length) for length in lengths])
    seen, row = np.unique(np.concatenate(references), return_inverse=True)
    word, bit = np.divmod(position, 64)
    masks = np.zeros((word.max() + 1, len(seen), len(references)), dtype=np.uint64)
    np.bitwise_or.at(masks, (word, row, owner), np.uint64(1) << bit.astype(np.uint64))
    met = np.full(n_tokens, -1)
    met[seen] = np.arange(len(seen))
    return met, masks


def _lcs_lengths(masks: NDArray[np.uint64], candidate: Iterable[int]) -> Ints:
    """Compute the length of the longest common subsequence of a candidate and each reference.

    Bit i of V is 0 if the row of the dynamic-programming table increases at b_i. A token with
    positions M in b updates V to (V + (V & M)) | (V & ~M). For long references, the sum carries
    over from one 64-bit word to the next. Source: Hyyro, Bit-parallel LCS-length computation
    revisited, AWOCA 2004.
    """
    n_words, _, n = masks.shape
    V = np.full((n_words, n), np.uint64(2**64 - 1))
    for token in candidate:
        carry = np.zeros(n, dtype=bool)
        for v, mask in zip(V, masks[:, token], strict=True):
            met = v & mask
            total = v + met
            if n_words > 1:
                over = total < v
                total += carry
                carry = over | (total < carry)
            np.bitwise_xor(v, met, out=v)
            v |= total
    lengths: Ints = np.bitwise_count(~V).sum(axis=0, dtype=np.int64)
    return lengths
