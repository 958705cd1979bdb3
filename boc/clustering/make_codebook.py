"""Build codebooks from feature files, by clustering concepts or from the words in captions."""

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

SAMPLE = 100_000  # sample size in the paper (BoC, section III-B1)
ROWS = 65_536  # rows of a feature file read at a time
# Strength of the regularisation, as a number of captions. On training pictures, values from 10 to
# 100 give the same results.
RIDGE = 100.0
CHECKED = 20_000  # concepts sampled from each modality to count shared centroids
SMALLEST = 16  # minimum number of centroids
SHARED = 0.5  # minimum fraction of centroids that are nearest to both regions and words
FREQUENT = 0.3  # exponent for word frequencies; .2 to .4 give similar results


_Pool: TypeAlias = tuple[Array, Modality]
"""Memory-mapped concepts of one modality in one file, and the modality."""


def add_labels(codebook: Codebook, files: Sequence[FeatureFile]) -> Codebook:
    """Label each centroid with the nearest words and regions in ``files``, and return the new
    codebook."""
    return replace(codebook, labels=pack_labels(codebook_labels(codebook, files)))


def check_files(files: Sequence[FeatureFile], *, concepts: bool = True) -> Identity:
    """Return the encoder of ``files``. Raises FeatureFileError if the encoders differ, or if
    ``concepts`` is True and a file contains no concepts."""
    if not files:
        raise FeatureFileError(
            "building a codebook needs at least one feature file",
            "write feature files with <boc extract --encoder>",
        )
    first = files[0]
    for file in files:
        file.check_embeddings()
        if file.header.digest != first.header.digest:
            raise FeatureFileError(
                f"{file.path}: encoded by {file.header.spec}, but {first.path} by "
                f"{first.header.spec}; use a single encoder",
            )
        if concepts and not _pools([file], *MODALITIES):
            raise FeatureFileError(
                f"{file.path}: contains no vectors of regions or words; extract the features "
                "again with concepts",
            )
    return first.header.identity


def cluster(
    files: Sequence[FeatureFile],
    clusters: int = 1000,
    *,
    space: str = "plain",
    tell: Callable[[str], None] = lambda stage: None,
) -> Codebook:
    """Build a codebook by k-means on a sample of the concepts in ``files``.

    With ``space="plain"``, a uniform sample of all concepts is clustered by Euclidean distance, as
    in the paper (BoC, section III-B1). With the other two spaces, both modalities are sampled
    equally and clustered by cosine similarity. "centered" first subtracts the mean concept of each
    modality; otherwise, the modalities would be so far apart that they would use different
    centroids. "rescaled" also scales the axes of the centred concepts (see
    ``boc.clustering.kmeans.rescaling``), as ``similarity=deviation`` requires. ``tell`` is called
    with the name of each stage.
    """
    import faiss

    if space not in CODEBOOKS[:3]:
        raise BocError(f"unknown space {space!r}; known: {', '.join(CODEBOOKS[:3])}")
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
    """Return the default number of centroids for ``files``: the square root of the number of
    concepts, but at most 1000.

    Hard assignment needs a small number of centroids, because each centroid must be shared by words
    and regions of several items.
    """
    return max(1, min(1000, int(_size(_pools(files, *MODALITIES)) ** 0.5)))


def shared_codebook(
    files: Sequence[FeatureFile],
    clusters: int,
    *,
    tell: Callable[[str], None],
) -> Codebook:
    """Build a plain codebook as in the paper. If regions and words share less than half of the
    centroids, build a centred codebook instead, and halve its size until half of the centroids are
    shared.

    Raises BocError if no centroid is shared, because sentences could not find pictures.
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
        f"regions and words share 0 of {len(codebook)} centroids, so sentences could not find "
        "pictures; use an encoder with a common space for regions and words",
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
    """Return a random sample of at most ``size`` concept vectors from all files without
    replacement, float32 (m, d), in file order.

    All concepts have the same probability, as in the paper, which draws a uniform sample from all
    visual and textual concepts. If ``balanced`` is True, equal numbers of concepts are drawn from
    both modalities if possible. Files are memory-mapped, and only the chosen rows are read.
    ``means`` (2, d) are subtracted from the concepts of each modality.
    """
    if size < 1:
        raise BocError(f"the sample must contain at least 1 concept, got {size}")
    pools = [_pools(files, *MODALITIES)]
    if balanced:
        pools = [_pools(files, modality) for modality in MODALITIES]
    # If the smaller pool has too few concepts, the larger pool provides the rest.
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
            f"{files[0].path}: contains no concepts; extract more items",
        )
    return np.concatenate(taken)


def vocabulary(
    files: Sequence[FeatureFile],
    words: int = 1000,
    *,
    tell: Callable[[str], None] = lambda stage: None,
) -> Codebook:
    """Build a codebook of the ``words`` most frequent words in captions, without stop words.

    A ridge regression predicts centred caption vectors from the words in the captions; the vector
    of a word has the direction of its contribution to a caption. The length of the vector is the
    frequency relative to the most frequent word, raised to the power .3, so that a common word is
    preferred to a rare word that is equally close. Words with the same frequency are sorted
    alphabetically. Memory use is 16 bytes per pair of words. Raises FeatureFileError if the
    captions contain no such words.
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
            f"{files[0].path}: the captions contain no words; give a file of pictures with "
            "captions",
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
    """Return the mean caption (d,) and the contributions of the words (p, d), computed by ridge
    regression."""
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
    """Return the mean concept of each modality, float32 (2, d), or zeros for a modality without
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
    """Draw ``size`` vectors from all pools without replacement. Yield one array per pool, after
    subtracting the mean of the modality in ``means`` (2, d)."""
    chosen = np.sort(rng.choice(_size(pools), size, replace=False))
    start = 0
    for data, modality in pools:
        rows = chosen[(chosen >= start) & (chosen < start + len(data))] - start
        yield center(data[rows].astype(np.float32), modality, means)
        start += len(data)


def sources_of(files: Sequence[FeatureFile]) -> tuple[str, ...]:
    return tuple(file.header.source for file in files)
