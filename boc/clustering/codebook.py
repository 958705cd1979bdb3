"""Codebooks of concepts, made from feature files by clustering or from frequent words, and stored in one file.

A codebook file is an ``.npz`` archive without pickles: ``centroids`` float32 (p, d); ``words`` (p,) strings, if the
centroids are those of words; ``labels``, ``origin``, ``thresholds`` and ``means`` of a ``Codebook``, if it has them;
``about``, JSON as UTF-8 bytes, with its other fields.
"""

from __future__ import annotations

import json
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boc import __version__
from boc.atomic_files import replacing
from boc.clustering.kmeans import kmeans, spread
from boc.clustering.term_labels import codebook_labels, pack_labels, unpack_labels
from boc.clustering.wordpieces import carries_content, continues, english_words, join_pieces, stop_words
from boc.errors import BocError, FeatureFileError, check_system
from boc.inputs.features import FeatureFile
from boc.types import MODALITIES, Identity, Modality

BEGINS = (b"PK\x03\x04", b"about.npy")  # what says that a file may be a codebook
FORMAT = 1
SAMPLE = 100_000  # number of concepts that the paper clusters (BoC, section III-B1)
ARRAYS = ("centroids", "words", "labels", "origin", "thresholds", "means")
ROWS = 65_536  # rows of a feature file read at a time


@dataclass(frozen=True)
class Codebook:
    """Centroids of concepts, and their origin.

    ``centroids`` is float32 (p, d). ``identity`` is that of the encoder; ``sources`` the digests of the item lists of
    the feature files; ``options`` the options it was made with; ``concepts`` the number of vectors it was made from;
    ``spread`` their root mean square distance to the nearest centroid; ``words`` the word of each centroid, in
    dictionary mode; ``labels`` uint8, the labels of the centroids, packed by ``boc.clustering.term_labels``; ``origin``
    float32 (d,) the mean of the captions, of which a vocabulary's vectors are differences; ``thresholds`` float32
    (2, 2, p) those of learned terms, by modality and kind of row; ``means`` float32 (2, d) the mean concept of pictures
    and of sentences, which is subtracted before concepts are compared with the centroids.
    """

    centroids: NDArray[np.float32]
    identity: Identity
    sources: tuple[str, ...]
    options: dict[str, Any]
    concepts: int
    spread: float
    words: tuple[str, ...] | None = None
    labels: NDArray[np.uint8] | None = None
    versions: dict[str, str] = field(default_factory=lambda: {"boc": __version__, "numpy": np.__version__})
    origin: NDArray[np.float32] | None = None
    thresholds: NDArray[np.float32] | None = None
    means: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.centroids)

    @property
    def made_for(self) -> str:
        """What its terms are: "concepts", "words" of a vocabulary, or "learned" terms."""
        return "words" if self.origin is not None else "concepts" if self.thresholds is None else "learned"

    @property
    def spherical(self) -> bool:
        """Whether concepts must be scaled to unit length before they are compared with the centroids."""
        return bool(self.options.get("spherical", False))

    def save(self, path: Path) -> None:
        """Write the file atomically, replacing an older one."""
        about = {key: value for key, value in asdict(self).items() if key not in ARRAYS}
        text = json.dumps({"kind": "codebook", "format": FORMAT, **about}, sort_keys=True)
        arrays: dict[str, NDArray[Any]] = {
            "about": np.frombuffer(text.encode(), np.uint8),
            "centroids": np.asarray(self.centroids, np.float32),
        }
        if self.words is not None:
            arrays["words"] = np.array(self.words, dtype=np.str_)
        if self.labels is not None:
            arrays["labels"] = self.labels
        if self.origin is not None:
            arrays["origin"] = self.origin
        if self.thresholds is not None:
            arrays["thresholds"] = self.thresholds
        if self.means is not None:
            arrays["means"] = self.means
        with replacing(path) as temporary, temporary.open("wb") as handle:
            np.savez(handle, **arrays)  # type: ignore[arg-type]  # of allow_pickle, which follows the arrays

    @classmethod
    def load(cls, path: Path | str) -> Codebook:
        """Read a file that ``save`` wrote. BocError for a missing, foreign, damaged or newer one."""
        try:
            # Opened here, since np.load leaves a file open if it is no archive.
            with Path(path).open("rb") as handle, np.load(handle, allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
            about = json.loads(arrays["about"].tobytes())
            if about["kind"] != "codebook" or not isinstance(about["format"], int) or arrays["centroids"].ndim != 2:
                raise ValueError("of another kind")
        except FileNotFoundError:
            raise BocError(f"{path}: no such file; make a codebook with boc build-codebook") from None
        except (OSError, ValueError, TypeError, LookupError, AttributeError, EOFError, MemoryError,
                NotImplementedError, zipfile.BadZipFile) as error:  # fmt: skip
            check_system(path, error)
            raise BocError(f"{path}: not a codebook of boc, or damaged; make one with boc build-codebook") from error
        if about["format"] > FORMAT:
            raise BocError(f"{path}: codebook format {about['format']}, this boc reads up to {FORMAT}; upgrade boc")
        return _checked(path, about, arrays)

    def check(self, identity: Identity) -> None:
        """BocError unless the centroids lie in the space of the concepts of the encoder ``identity``.

        Variants of one encoder, such as ``tern:FOLDER`` and ``tern:FOLDER?alone``, share their space.
        """
        if (weights(self.identity), self.identity.dim) != (weights(identity), identity.dim):
            raise BocError(
                f"a codebook of {self.identity.spec} for concepts of {identity.spec}, which has other weights; "
                "make one for this encoder with boc build-codebook"
            )


def labelled(codebook: Codebook, files: Sequence[FeatureFile]) -> Codebook:
    """Add labels to a codebook: the words and regions of ``files`` that are nearest to each centroid."""
    labels = codebook_labels(
        codebook.centroids, files, spherical=codebook.spherical, names=codebook.words, means=codebook.means
    )
    return replace(codebook, labels=pack_labels(labels))


def weights(identity: Identity) -> str:
    """The digest of the weights of an encoder, which its variants share; the digest of a variant is VARIANT:DIGEST."""
    return identity.digest.rpartition(":")[2]


def variant(identity: Identity) -> str:
    """The variant of an encoder, "" for the encoder itself."""
    return identity.digest.rpartition(":")[0]


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
    tell: Callable[[str], None] = lambda stage: None,
) -> Codebook:
    """Make a codebook by k-means over a sample of the concepts in ``files`` (BoC, section III-B1).

    With ``centered`` the mean concept of each modality is subtracted first: the modalities lie apart, and would use
    different centroids. ``tell`` is called with the name of each stage. See ``sample_concepts`` for the other options.
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
    means = mean_concepts(files, drop_stopwords=drop_stopwords) if centered else None
    points = sample_concepts(
        files, sample, seed=seed, modalities=modalities, drop_stopwords=drop_stopwords, balanced=balanced, means=means
    )
    tell(f"clustering {len(points)} concepts")
    centroids = kmeans(points, clusters, seed=seed, spherical=spherical)
    distance = spread(points, centroids, spherical=spherical)
    made = Codebook(centroids, identity, _sources(files), options, len(points), distance, means=means)
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
        raise FeatureFileError(f"{files[0].path}: no English words in its captions; leave out --dictionary")
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


def _checked(path: Path | str, about: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> Codebook:
    """Make a codebook from the entries of a file, after checking their types."""
    names = {f.name for f in fields(Codebook)} - set(ARRAYS) | {"kind", "format"}
    words, labels, origin = arrays.get("words"), arrays.get("labels"), arrays.get("origin")
    try:
        codebook = Codebook(
            arrays["centroids"],
            Identity(**about["identity"]),
            tuple(map(str, about["sources"])),
            {**about["options"]},
            int(about["concepts"]),
            float(about["spread"]),
            None if words is None else tuple(words.tolist()),
            labels,
            {**about["versions"]},
            origin,
            arrays.get("thresholds"),
            arrays.get("means"),
        )
    except (LookupError, TypeError, ValueError) as error:
        raise BocError(f"{path}: a codebook with odd entries ({error}); make one with boc build-codebook") from error
    centroids, rows = codebook.centroids, len(codebook.centroids)
    thresholds, means = codebook.thresholds, codebook.means
    sound = (
        set(about) == names
        and centroids.dtype == np.float32
        and rows > 0
        and centroids.shape == (rows, codebook.identity.dim)
        and bool(np.isfinite(centroids).all())
        and 0 <= codebook.spread < np.inf
        and (words is None or (words.dtype.kind == "U" and words.shape == (rows,)))
        and (origin is None or (origin.dtype == np.float32 and origin.shape == (codebook.identity.dim,)))
        and (thresholds is None or (thresholds.dtype == np.float32 and thresholds.shape == (2, 2, rows)))
        and (means is None or (means.dtype == np.float32 and means.shape == (2, codebook.identity.dim)))
        and (labels is None or (labels.dtype == np.uint8 and len(unpack_labels(labels)) == rows))
    )
    if not sound:
        raise BocError(f"{path}: a codebook whose entries do not fit together; make one with boc build-codebook")
    return codebook
