"""Vocabularies: codebooks whose centroids are the directions of single words in the space of an encoder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import solve

from boc.clustering.codebook import Codebook
from boc.clustering.make_codebook import check_files
from boc.clustering.term_labels import Label, content_words, pack_labels
from boc.errors import FeatureFileError
from boc.inputs.features import FeatureFile
from boc.vectors import unit_rows

MODE = "words"
RIDGE = 100.0  # regularisation, in captions; 10 to 100 found the same on training photographs
FREQUENT = 0.3  # power of a word's frequency; .2 to .4 found about the same there


def vocabulary(
    files: Sequence[FeatureFile], words: int = 1000, *, tell: Callable[[str], None] = lambda stage: None
) -> Codebook:
    """The ``words`` most frequent words in the captions of ``files``, without stop-words, and their directions.

    The vectors of captions, less their mean, are predicted from the words that they have, by ridge regression: a word
    has the direction that it adds to a caption. Its length is its frequency to the power .3, with 1 for the most
    frequent, so that of words equally near to a picture the usual one is preferred. Ties of frequency are broken
    alphabetically. Memory is 16 bytes per pair of words. FeatureFileError if there are no such words.
    """
    identity = check_files(files, ())
    tell("counting words")
    counts: Counter[str] = Counter()
    for file in files:
        counts.update(word for item in file.items("text") for word in dict.fromkeys(content_words(item.content)))
    chosen = sorted(counts, key=lambda word: (-counts[word], word))[:words]
    if not chosen:
        raise FeatureFileError(f"{files[0].path}: no words in its captions; give a file of pictures with captions")
    tell(f"learning {len(chosen)} words")
    origin, vectors = _directions(files, {word: term for term, word in enumerate(chosen)}, identity.dim)
    shares = np.array([counts[word] for word in chosen]) / counts[chosen[0]]
    lengths = (shares[:, None] ** FREQUENT).astype(np.float32)
    centroids = unit_rows(vectors.astype(np.float32)) * lengths
    spread = float(np.sqrt(centroids.var(axis=0, dtype=np.float64).sum()))
    return Codebook(
        centroids,
        identity,
        tuple(file.header.source for file in files),
        {"mode": MODE, "clusters": words},
        len(chosen),
        spread,
        tuple(chosen),
        pack_labels([Label((word,)) for word in chosen]),
        origin=origin.astype(np.float32),
    )


def _directions(
    files: Sequence[FeatureFile], terms: dict[str, int], dim: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The mean of the captions (d,), and what each word adds to it (p, d), by ridge regression."""
    p, captions = len(terms), 0
    pairs, sums = np.zeros((p, p)), np.zeros((p, dim))
    used, total = np.zeros(p), np.zeros(dim)
    for file in files:
        for batch in file.batches("text", sets=False):
            found = [{terms[word] for word in content_words(item.content) if word in terms} for item in batch.items]
            ends = np.cumsum([0, *map(len, found)])
            columns = np.array([term for row in found for term in sorted(row)], np.int32)
            present = sparse.csr_array((np.ones(len(columns)), columns, ends), shape=(len(found), p))
            vectors = batch.embeddings.vectors.astype(np.float64)
            pairs += (present.T @ present).toarray()
            sums += present.T @ vectors
            used += present.sum(axis=0)
            total += vectors.sum(axis=0)
            captions += len(batch)
    origin = total / captions
    pairs -= np.outer(used, used) / captions
    pairs[np.diag_indices(p)] += RIDGE
    return origin, solve(pairs, sums - np.outer(used, origin), assume_a="pos", overwrite_a=True)
