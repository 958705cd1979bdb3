"""Make codebooks from feature files, by clustering concepts or from the words in captions."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeAlias

import numpy as np
from scipy import sparse
from scipy.linalg import solve

from boc.clustering.codebook import Codebook
from boc.clustering.codebook_labels import codebook_labels
from boc.clustering.kmeans import center, kmeans, rescaling
from boc.errors import BocError, FeatureFileError
from boc.inputs.features import FeatureFile
from boc.labels import Label, content_words, pack_labels, ranked
from boc.names import CODEBOOKS
from boc.types import MODALITIES, Identity, Modality
from boc.vectors import Array, Doubles, Floats, batches, unit_rows

SAMPLE = 100_000  # number of concepts clustered in the paper (BoC, section III-B1)
ROWS = 65_536  # rows of a feature file read at a time
# Regularisation of the words, as a number of captions. Values from 10 to 100 give the same results
# on training photographs.
RIDGE = 100.0
CHECKED = 20_000  # concepts sampled from each modality to count shared centroids
SMALLEST = 16  # smallest number of centroids
SHARED = 0.5  # smallest share of centroids that are nearest to both regions and words
FREQUENT = 0.3  # exponent of a word's frequency; .2 to .4 give similar results


_Pool: TypeAlias = tuple[Array, Modality]
"""A pool: the memory-mapped concepts of one modality in one file, and the modality."""


def add_labels(codebook: Codebook, files: Sequence[FeatureFile]) -> Codebook:
    """Add labels to a codebook: the words and regions from ``files`` that are nearest to each
    centroid."""
    return replace(codebook, labels=pack_labels(codebook_labels(codebook, files)))


def check_files(files: Sequence[FeatureFile], *, concepts: bool = True) -> Identity:
    """Return the encoder of ``files``. Raises FeatureFileError if encoders differ, or if
    ``concepts`` are required and missing."""
    if not files:
        raise FeatureFileError(
            "no feature file to make a codebook from",
            "write some with <boc extract --encoder>",
        )
    first = files[0]
    for file in files:
        file.check_embeddings()
        if file.header.digest != first.header.digest:
            raise FeatureFileError(
                f"{file.path}: made by {file.header.spec}, but {first.path} by "
                f"{first.header.spec}; use one encoder",
            )
        if concepts and not _pools([file], *MODALITIES):
            raise FeatureFileError(
                f"{file.path}: no vectors of regions or words; extract it again with concepts",
            )
    return first.header.identity


def cluster(
    files: Sequence[FeatureFile],
    clusters: int = 1000,
    *,
    space: str = "plain",
    tell: Callable[[str], None] = lambda stage: None,
) -> Codebook:
    """Make a codebook by running k-means on a sample of the concepts in ``files``.

    With ``space="plain"``, follow the paper (BoC, section III-B1): cluster a uniform sample of all
    concepts by Euclidean distance. The other two spaces sample both modalities equally and cluster
    by cosine similarity. "centered" first subtracts each modality's mean concept; otherwise the
    modalities lie so far apart that they would use different centroids. "rescaled" also scales the
    axes of the centred concepts (see ``boc.clustering.kmeans.rescaling``), as
    ``similarity=deviation`` requires. ``tell`` is called with the name of each stage.
    """
    import faiss

    if space not in CODEBOOKS[:3]:
        raise BocError(f"no space {space!r} of concepts; known: {', '.join(CODEBOOKS[:3])}")
    identity = check_files(files)
    moved = space != "plain"
    tell("reading concepts")
    means = mean_concepts(files) if moved else None
    axes = None
    points = sample_concepts(
        files,
        SAMPLE,
        balanced=moved,
        means=means,
    )
    if space == "rescaled":
        axes = rescaling(points)
        points = points @ axes
    tell(f"clustering {len(points)} concepts")
    centroids = kmeans(points, clusters, spherical=moved)
    options = {
        "mode": "kmeans",
        "space": space,
        "clusters": clusters,
        "sample": SAMPLE,
        "seed": 0,
        "spherical": moved,
    }
    codebook = Codebook(
        centroids,
        identity,
        sources_of(files),
        options,
        len(points),
        means=means,
        axes=axes,
    )
    return replace(codebook, versions=codebook.versions | {"faiss": faiss.__version__})


def default_clusters(files: Sequence[FeatureFile]) -> int:
    """Return the default number of centroids for ``files``, the square root of the number of
    concepts but at most 1000.

    Hard assignment needs few centroids, because words and regions of many items must share each
    centroid.
    """
    return max(1, min(1000, int(_size(_pools(files, *MODALITIES)) ** 0.5)))


def shared_codebook(
    files: Sequence[FeatureFile],
    clusters: int,
    *,
    tell: Callable[[str], None],
) -> Codebook:
    """Make the plain codebook of the paper. If regions and words share less than half of its
    centroids, make the centred codebook instead, and halve its size until they share half of the
    centroids.

    Raises BocError if no centroid is shared, since no sentence would then find a picture.
    """
    space = CODEBOOKS[0]
    while True:
        codebook = cluster(
            files,
            clusters,
            space=space,
            tell=tell,
        )
        shared, one_sided = shared_centroids(codebook, files)
        tell(
            f"{shared} of {len(codebook)} centroids of the {space} codebook are shared by regions "
            "and words",
        )
        if one_sided or shared >= SHARED * len(codebook):
            return codebook
        if clusters <= SMALLEST and space == CODEBOOKS[1]:
            break
        if space != CODEBOOKS[0]:
            clusters //= 2
        space = CODEBOOKS[1]
    if shared:
        return codebook
    raise BocError(
        f"none of {len(codebook)} centroids is nearest to both a region and a word, so no sentence "
        "would find a picture; take an encoder that brings regions and words into one space",
    )


def shared_centroids(codebook: Codebook, files: Sequence[FeatureFile]) -> tuple[int, bool]:
    """Return the number of centroids that are nearest to both a region and a word in a sample, and
    whether regions or words are missing."""
    rng = np.random.default_rng(0)
    used = []
    for modality in MODALITIES:
        pools = _pools(files, modality)
        nothing = np.empty((0, codebook.centroids.shape[1]), np.float32)
        rows = np.concatenate([nothing, *_draw(pools, min(CHECKED, _size(pools)), rng)])
        columns, _ = codebook.assign(rows, modality)
        used.append(set(columns.tolist()))
    return len(used[0] & used[1]), not all(used)


def sample_concepts(
    files: Sequence[FeatureFile],
    size: int = SAMPLE,
    *,
    seed: int = 0,
    balanced: bool = False,
    means: Floats | None = None,
) -> Floats:
    """Return at most ``size`` different concept vectors from all files, float32 (m, d), in file
    order.

    Every concept is equally likely, as in the paper, which draws a uniform sample from all visual
    and textual concepts. ``balanced`` instead takes equal numbers from both modalities, as far as
    possible. Files are memory-mapped; only the chosen rows are read. ``means`` (2, d) are
    subtracted from the concepts of their modality.
    """
    if size < 1:
        raise BocError(f"the sample must contain at least 1 concept, got {size}")
    pools = [_pools(files, *MODALITIES)]
    if balanced:
        pools = [_pools(files, modality) for modality in MODALITIES]
    # The larger pool fills the share that the smaller pool cannot provide.
    pools.sort(key=_size)
    rng = np.random.default_rng(seed)
    taken: list[Floats] = []
    for i, pool in enumerate(pools):
        quota = (size - sum(map(len, taken))) // (len(pools) - i)
        taken += _draw(
            pool,
            min(quota, _size(pool)),
            rng,
            means,
        )
    if not sum(map(len, taken)):
        raise FeatureFileError(
            f"{files[0].path}: no concepts to choose from; extract more items",
        )
    return np.concatenate(taken)


def vocabulary(
    files: Sequence[FeatureFile],
    words: int = 1000,
    *,
    tell: Callable[[str], None] = lambda stage: None,
) -> Codebook:
    """Make a codebook of the ``words`` most frequent caption words, without stop-words, and their
    directions.

    Ridge regression predicts centred caption vectors from the words of the captions; the direction
    of a word is its contribution to a caption. Its length is its frequency to the power .3,
    relative to the most frequent word, so that a common word is preferred to an equally near rare
    word. Equal frequencies are ordered alphabetically. Memory use is 16 bytes per pair of words.
    Raises FeatureFileError if the captions have no such words.
    """
    identity = check_files(files, concepts=False)
    tell("counting words")
    counts: Counter[str] = Counter()
    for file in files:
        counts.update(
            word
            for item in file.items("text")
            for word in dict.fromkeys(content_words(item.content))
        )
    chosen = ranked(counts)[:words]
    if not chosen:
        raise FeatureFileError(
            f"{files[0].path}: no words in its captions; give a file of pictures with captions",
        )
    tell(f"learning {len(chosen)} words")
    origin, vectors = _directions(
        files,
        {word: term for term, word in enumerate(chosen)},
        identity.dim,
    )
    shares = np.array([counts[word] for word in chosen]) / counts[chosen[0]]
    return Codebook(
        unit_rows(vectors.astype(np.float32)) * (shares[:, None] ** FREQUENT).astype(np.float32),
        identity,
        sources_of(files),
        {"mode": "words", "clusters": words},
        len(chosen),
        words=tuple(chosen),
        labels=pack_labels([Label((word,)) for word in chosen]),
        origin=origin.astype(np.float32),
    )


def _directions(
    files: Sequence[FeatureFile],
    terms: dict[str, int],
    dim: int,
) -> tuple[Doubles, Doubles]:
    """Return the mean caption (d,) and the contribution of each word (p, d) by ridge regression."""
    p = len(terms)
    captions = 0
    pairs = np.zeros((p, p))
    sums = np.zeros((p, dim))
    used = np.zeros(p)
    total = np.zeros(dim)
    for file in files:
        for batch in file.batches("text", sets=False):
            columns = []
            ends = [0]
            for item in batch.items:
                words = terms.keys() & set(content_words(item.content))
                columns += sorted(terms[word] for word in words)
                ends.append(len(columns))
            present = sparse.csr_array((np.ones(len(columns)), columns, ends), (len(batch), p))
            vectors = batch.embeddings.vectors.astype(np.float64)
            pairs += (present.T @ present).toarray()
            sums += present.T @ vectors
            used += present.sum(axis=0)
            total += vectors.sum(axis=0)
            captions += len(batch)
    origin = total / captions
    pairs -= np.outer(used, used) / captions
    pairs[np.diag_indices(p)] += RIDGE
    return origin, solve(
        pairs,
        sums - np.outer(used, origin),
        assume_a="pos",
        overwrite_a=True,
    )


def mean_concepts(files: Sequence[FeatureFile]) -> Floats:
    """Return the mean concept of each modality, float32 (2, d), with zeros for a modality without
    concepts."""
    means = []
    for modality in MODALITIES:
        total = np.zeros(files[0].header.dim)
        count = 0
        for data, _ in _pools(files, modality):
            for rows in batches(data, ROWS):
                total += rows.astype(np.float32).sum(axis=0, dtype=np.float64)
            count += len(data)
        means.append(total / max(1, count))
    return np.array(means, np.float32)


def _pools(files: Sequence[FeatureFile], *modalities: Modality) -> list[_Pool]:
    pools = []
    for modality in modalities:
        for file in files:
            with suppress(KeyError):
                pools.append((file.memory_map(modality, "ragged/concepts"), modality))
    return pools


def _size(pools: Sequence[_Pool]) -> int:
    return sum(len(data) for data, _ in pools)


def _draw(
    pools: Sequence[_Pool],
    size: int,
    rng: np.random.Generator,
    means: Floats | None = None,
) -> Iterator[Floats]:
    """Draw ``size`` different vectors from all pools. Yield one array per pool, minus the mean of
    its modality in ``means`` (2, d)."""
    chosen = np.sort(rng.choice(_size(pools), size, replace=False))
    start = 0
    for data, modality in pools:
        rows = chosen[(chosen >= start) & (chosen < start + len(data))] - start
        yield center(data[rows].astype(np.float32), modality, means)
        start += len(data)


def sources_of(files: Sequence[FeatureFile]) -> tuple[str, ...]:
    return tuple(file.header.source for file in files)
