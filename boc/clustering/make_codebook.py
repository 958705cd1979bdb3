"""Codebooks made from feature files: by clustering their concepts, or of their frequent words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boc.clustering.centring import rescaling
from boc.clustering.codebook import Codebook, variant
from boc.clustering.kmeans import kmeans, spread
from boc.clustering.term_labels import codebook_labels, pack_labels
from boc.clustering.wordpieces import carries_content, continues, english_words, join_pieces, stop_words
from boc.errors import BocError, FeatureFileError
from boc.inputs.features import FeatureFile
from boc.types import MODALITIES, Identity, Modality

SAMPLE = 100_000  # number of concepts that the paper clusters (BoC, section III-B1)
ROWS = 65_536  # rows of a feature file read at a time


def labelled(codebook: Codebook, files: Sequence[FeatureFile]) -> Codebook:
    """Add labels to a codebook: the words and regions of ``files`` that are nearest to each centroid."""
    labels = codebook_labels(
        codebook.centroids, files, spherical=codebook.spherical, names=codebook.words, means=codebook.means,
        axes=codebook.axes,
    )  # fmt: skip
    return replace(codebook, labels=pack_labels(labels))


def check_files(files: Sequence[FeatureFile], modalities: Sequence[Modality] = MODALITIES) -> Identity:
    """The encoder of all ``files``; FeatureFileError for a file by another encoder, or without concepts of any of
    ``modalities``."""
    if not files:
        raise FeatureFileError("no feature file to make a codebook from; write some with boc extract --encoder")
    first = files[0]
    for file in files:
        if file.header.kind != "embeddings":
            raise FeatureFileError(f"{file.path}: holds regions, not vectors; use boc extract --encoder on it first")
        if file.header.digest != first.header.digest:
            raise FeatureFileError(
                f"{file.path}: made by {file.header.spec}, but {first.path} by {first.header.spec}; use one encoder"
            )
        if modalities and all(_concepts(file, modality) is None for modality in modalities):
            of = "words" if list(modalities) == ["text"] else "regions or words"
            raise FeatureFileError(f"{file.path}: holds no concept vectors of {of}; extract it again, with concepts")
    return first.header.identity


def check_alone(files: Sequence[FeatureFile]) -> None:
    """FeatureFileError unless the concepts of all files have no context."""
    for file in files:
        if variant(file.header.identity) != "alone":
            spec = file.header.spec.partition("?")[0]
            raise FeatureFileError(
                f"{file.path}: its concepts know their context; extract it again with --encoder '{spec}?alone'"
            )


def cluster(
    files: Sequence[FeatureFile],
    clusters: int = 1000,
    *,
    sample: int = SAMPLE,
    seed: int = 0,
    modalities: Sequence[Modality] = MODALITIES,
    drop_stopwords: bool = False,
    balanced: bool = False,
    spherical: bool = False,
    centered: bool = False,
    rescaled: bool = False,
    tell: Callable[[str], None] = lambda stage: None,
) -> Codebook:
    """Make a codebook by k-means over a sample of the concepts in ``files`` (BoC, section III-B1).

    With ``centered`` the mean concept of each modality is subtracted first: the modalities lie apart, and would use
    different centroids. ``rescaled`` scales the axes of the centred concepts, too, for sums of ``similarity=deviation``
    (``boc.clustering.centring``). ``tell`` is called with the name of each stage. See ``sample_concepts`` for the other
    options.
    """
    import faiss

    identity = check_files(files, modalities)
    options = {
        "mode": "kmeans",
        "clusters": clusters,
        "sample": sample,
        "seed": seed,
        "modalities": list(modalities),
        "drop_stopwords": drop_stopwords,
        "balanced": balanced,
        "spherical": spherical,
    }
    tell("reading concepts")
    means = mean_concepts(files, drop_stopwords=drop_stopwords) if centered or rescaled else None
    points = sample_concepts(
        files, sample, seed=seed, modalities=modalities, drop_stopwords=drop_stopwords, balanced=balanced, means=means
    )
    axes = rescaling(points) if rescaled else None
    points = points if axes is None else points @ axes
    tell(f"clustering {len(points)} concepts")
    centroids = kmeans(points, clusters, seed=seed, spherical=spherical)
    distance = spread(points, centroids, spherical=spherical)
    made = Codebook(centroids, identity, _sources(files), options, len(points), distance, means=means, axes=axes)
    return replace(made, versions=made.versions | {"faiss": faiss.__version__})


def sample_concepts(
    files: Sequence[FeatureFile],
    size: int = SAMPLE,
    *,
    seed: int = 0,
    modalities: Sequence[Modality] = MODALITIES,
    drop_stopwords: bool = False,
    balanced: bool = False,
    means: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """At most ``size`` concept vectors of all files, float32 (m, d), without repetition, in the order of the files.

    Every concept is equally likely: a uniform sample of the union of all visual and textual concepts, as in
    the paper. ``balanced`` takes equally many of both modalities instead, as far as possible. Files are
    memory-mapped; only the chosen rows are read. Stop-words are dropped before the choice, if at all. ``means`` (2, d)
    are subtracted from the concepts of their modality.
    """
    if size < 1:
        raise BocError(f"the sample must hold at least 1 concept, got {size}")
    groups = [(m,) for m in modalities] if balanced else [tuple(modalities)]
    pools = [[pool for m in group for pool in _pools(files, m, drop_stopwords, means)] for group in groups]
    pools.sort(key=_size)  # what the smaller pool lacks, the larger one provides
    rng = np.random.default_rng(seed)
    taken: list[NDArray[np.float32]] = []
    for i, pool in enumerate(pools):
        quota = (size - sum(map(len, taken))) // (len(pools) - i)
        taken += _draw(pool, min(quota, _size(pool)), rng)
    if not sum(map(len, taken)):
        raise FeatureFileError(f"{files[0].path}: holds no concepts to choose from; extract more items")
    return np.concatenate(taken)


def dictionary(
    files: Sequence[FeatureFile], clusters: int = 1000, *, tell: Callable[[str], None] = lambda stage: None
) -> Codebook:
    """Make a codebook of the ``clusters`` most frequent words of the captions that are English and no stop-words.

    The centroid of a word is the mean of its concept vectors over all its pieces and occurrences. With files of an
    encoder variant ``?alone`` they have no context, so every occurrence has the same vector. Ties are broken
    alphabetically. BocError if there is no such word.
    """
    identity = check_files(files, ("text",))
    tell("counting words")
    counts: Counter[str] = Counter()
    for pieces, _ in _sentences(files):
        counts.update(word for word, piece in zip(join_pieces(pieces), pieces, strict=True) if not continues(piece))
    known = english_words(counts) - stop_words()
    words = sorted(known, key=lambda word: (-counts[word], word))[:clusters]
    if not words:
        raise FeatureFileError(f"{files[0].path}: no English words in its captions; give English captions")
    tell(f"averaging {len(words)} words")
    sums, rows_of = _word_sums(files, {word: i for i, word in enumerate(words)}, identity.dim)
    centroids = (sums / rows_of[:, None]).astype(np.float32)
    options = {"mode": "dictionary", "clusters": clusters, "drop_stopwords": True, "spherical": False}
    number = int(rows_of.sum())
    return Codebook(centroids, identity, _sources(files), options, number, _word_spread(centroids), tuple(words))


def _word_sums(
    files: Sequence[FeatureFile], number: dict[str, int], dim: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Sum (p, dim) and number (p,) of the concept vectors of each word."""
    sums, counts = np.zeros((len(number), dim)), np.zeros(len(number), dtype=np.int64)
    for pieces, concepts in _sentences(files):
        place = np.array([number.get(word, -1) for word in join_pieces(pieces)], dtype=np.int64)
        np.add.at(sums, place[place >= 0], concepts[place >= 0])
        np.add.at(counts, place[place >= 0], 1)
    return sums, counts


def _word_spread(centroids: NDArray[np.float32]) -> float:
    """The spread in dictionary mode, where there are no clusters: the root mean square distance to the mean."""
    return float(np.sqrt(centroids.var(axis=0, dtype=np.float64).sum()))


def _sentences(files: Sequence[FeatureFile]) -> Iterator[tuple[list[str], NDArray[np.float32]]]:
    """Word-pieces and concepts (m, d) of each caption."""
    for file in files:
        for batch in file.batches("text"):
            words, concepts = batch.embeddings.words, batch.embeddings.concepts
            if words is None or concepts is None:
                raise FeatureFileError(f"{file.path}: does not say which words its concepts are of; extract it again")
            yield from zip(words, (concepts[i] for i in range(len(batch))), strict=True)


@dataclass(frozen=True)
class _Pool:
    """The concepts of one modality in one file, memory-mapped: how many can be chosen, which rows, if not all, and
    what is subtracted from them, if anything."""

    data: NDArray[Any]
    size: int
    rows: NDArray[np.int64] | None = None
    mean: NDArray[np.float32] | None = None


def mean_concepts(files: Sequence[FeatureFile], *, drop_stopwords: bool = False) -> NDArray[np.float32]:
    """The mean concept of each modality, float32 (2, d); 0 for one without concepts."""
    found = []
    for modality in MODALITIES:
        total, count = np.zeros(files[0].header.dim), 0
        for pool in _pools(files, modality, drop_stopwords):
            rows = np.arange(len(pool.data)) if pool.rows is None else pool.rows
            for start in range(0, len(rows), ROWS):
                total += _gather(pool.data, rows[start : start + ROWS]).sum(axis=0, dtype=np.float64)
            count += len(rows)
        found.append(total / max(1, count))
    return np.array(found, np.float32)


def _pools(
    files: Sequence[FeatureFile],
    modality: Modality,
    drop_stopwords: bool,
    means: NDArray[np.float32] | None = None,
) -> Iterator[_Pool]:
    mean = None if means is None else means[MODALITIES.index(modality)]
    for file in files:
        data = _concepts(file, modality)
        if data is not None and drop_stopwords and modality == "text":
            kept = (keep for pieces, _ in _sentences([file]) for keep in carries_content(pieces))
            rows = np.flatnonzero(np.fromiter(kept, dtype=bool))
            yield _Pool(data, len(rows), rows, mean)
        elif data is not None:
            yield _Pool(data, len(data), None, mean)


def _size(pools: Sequence[_Pool]) -> int:
    return sum(pool.size for pool in pools)


def _draw(pools: Sequence[_Pool], size: int, rng: np.random.Generator) -> Iterator[NDArray[np.float32]]:
    """Draw ``size`` vectors from all pools without repetition, one array per pool."""
    chosen = np.sort(rng.choice(_size(pools), size, replace=False)) if size else np.empty(0, np.int64)
    start = 0
    for pool in pools:
        mine = chosen[(chosen >= start) & (chosen < start + pool.size)] - start
        rows = mine if pool.rows is None else pool.rows[mine]
        yield _gather(pool.data, rows) - (0 if pool.mean is None else pool.mean)
        start += pool.size


def _gather(data: NDArray[Any], rows: NDArray[np.int64]) -> NDArray[np.float32]:
    vectors = np.empty((len(rows), data.shape[1]), np.float32)
    for start in range(0, len(rows), ROWS):
        vectors[start : start + ROWS] = data[rows[start : start + ROWS]]
    return vectors


def _concepts(file: FeatureFile, modality: Modality) -> NDArray[Any] | None:
    """All concept vectors of one modality (N, d), memory-mapped; None if the file has none."""
    try:
        return file.mapped(modality, "ragged/concepts")
    except KeyError:
        return None


def _sources(files: Sequence[FeatureFile]) -> tuple[str, ...]:
    return tuple(file.header.source for file in files)
