"""Provide the codebooks of a benchmark by name. Codebooks are built on first use, and cached if a
folder is given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from boc.clustering.codebook import Codebook
from boc.clustering.kmeans import kmeans
from boc.clustering.make_codebook import SAMPLE, check_files, cluster, sources_of
from boc.inputs.features import FeatureFile
from boc.labels import stop_words, whole_words


def carries_content(pieces: Sequence[str]) -> list[bool]:
    """Return, for each word piece of a sentence, whether it belongs to a word that is not a stop
    word."""
    words, of = whole_words(pieces)
    stops = stop_words()
    return [words[number] not in stops for number in of.tolist()]


class Codebooks:
    """Codebooks of ``size`` centroids over the concepts of ``train`` ("with" context) and of
    ``alone`` ("no" context).

    ``self["with"]`` and ``self["no"]`` are clusters, "with-stop" and "no-stop" are clusters without
    stop words, and "with-words" and "no-words" are the English dictionary. A number at the end, as
    in "with-stop.2", is the seed of the sample and of k-means, which is 0 by default. Cached files
    must have the same size and sources; delete all other files.
    """

    def __init__(
        self,
        train: FeatureFile,
        alone: FeatureFile | None,
        folder: Path | None,
        size: int,
    ) -> None:
        self.folder = folder
        self.size = size
        self.files = {"with": train, "no": alone}
        self._books: dict[str, Codebook] = {}

    @property
    def contexts(self) -> list[str]:
        """Return the contexts for which concepts are available."""
        return [name for name, file in self.files.items() if file is not None]

    def __getitem__(self, name: str) -> Codebook:
        if name not in self._books:
            path = self.folder / f"{name}.npz" if self.folder else None
            if path is not None and path.exists():
                self._books[name] = self._load(path)
            else:
                click.echo(f"codebook {name}", err=True)
                kind, _, seed = name.partition(".")
                self._books[name] = self._make(*kind.partition("-")[::2], int(seed or 0))
                if path is not None:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    self._books[name].save(path)
        return self._books[name]

    def _load(self, path: Path) -> Codebook:
        book = Codebook.load(path)
        source = self.files[path.stem.partition(".")[0].partition("-")[0]]
        if (
            book.options["clusters"] != self.size
            or source is None
            or book.sources != (source.header.source,)
        ):
            raise click.UsageError(
                f"{path}: codebook of another size or from other files; delete it",
            )
        book.check(source.header.identity)
        return book

    def _make(self, context: str, kind: str, seed: int) -> Codebook:
        file = self.files[context]
        if file is None:
            raise click.UsageError(
                f"no concepts {context} context; name the file that contains these concepts",
            )
        if kind == "words":
            return dictionary(file, self.size)
        if kind == "stop" or seed:
            return sampled(file, self.size, seed, stops=kind != "stop")
        return cluster([file], self.size)


def sentences(file: FeatureFile) -> Iterator[tuple[list[str], NDArray[np.float32]]]:
    """Yield the word pieces and concepts (m, d) of each caption."""
    for batch in file.batches("text"):
        words = batch.embeddings.words
        concepts = batch.embeddings.concepts
        if words is None or concepts is None:
            raise click.UsageError(
                f"{file.path}: does not contain the words of its concepts; extract the file again",
            )
        yield from zip(words, (concepts[i] for i in range(len(batch))), strict=True)


def sampled(file: FeatureFile, clusters: int, seed: int, *, stops: bool) -> Codebook:
    """Return a codebook built as by ``cluster``, but with another seed, or without the concepts of
    English stop words."""
    regions, words = (
        file.memory_map(modality, "ragged/concepts") for modality in ("image", "text")
    )
    rows = np.flatnonzero(
        [stops or keep for pieces, _ in sentences(file) for keep in carries_content(pieces)],
    )
    size = len(regions) + len(rows)
    chosen = np.sort(np.random.default_rng(seed).choice(size, min(SAMPLE, size), replace=False))
    of_regions = chosen[chosen < len(regions)]
    of_words = chosen[chosen >= len(regions)] - len(regions)
    points = np.concatenate([regions[of_regions], words[rows[of_words]]]).astype(np.float32)
    options = {
        "mode": "kmeans",
        "clusters": clusters,
        "sample": SAMPLE,
        "seed": seed,
        "drop_stopwords": not stops,
    }
    return Codebook(
        kmeans(points, clusters, seed=seed),
        check_files([file]),
        sources_of([file]),
        options,
        len(points),
    )


def dictionary(file: FeatureFile, words: int = 1000) -> Codebook:
    """Return a codebook of the most frequent English words in the captions, without stop words
    (BoC, section III-B1).

    The centroid of a word is the mean of its concept vectors over all its pieces and occurrences.
    Ties are broken alphabetically. A word is English if it is in pyspellchecker's list of 160,000
    words with inflections.
    """
    from spellchecker import SpellChecker

    identity = check_files([file])
    counts: Counter[str] = Counter()
    for pieces, _ in sentences(file):
        counts.update(whole_words(pieces)[0])
    english = (
        SpellChecker(language="en").known(word for word in counts if len(word) > 1) - stop_words()
    )
    chosen = sorted(english, key=lambda word: (-counts[word], word))[:words]
    if not chosen:
        raise click.UsageError(f"{file.path}: the captions contain no English words")
    number = {word: i for i, word in enumerate(chosen)}
    sums = np.zeros((len(chosen), identity.dim))
    rows = np.zeros(len(chosen), dtype=np.int64)
    for pieces, concepts in sentences(file):
        names, of = whole_words(pieces)
        place = np.array([number.get(names[i], -1) for i in of], dtype=np.int64)
        np.add.at(sums, place[place >= 0], concepts[place >= 0])
        np.add.at(rows, place[place >= 0], 1)
    centroids = (sums / rows[:, None]).astype(np.float32)
    options = {"mode": "dictionary", "clusters": words, "drop_stopwords": True, "spherical": False}
    return Codebook(
        centroids,
        identity,
        sources_of([file]),
        options,
        int(rows.sum()),
        tuple(chosen),
    )
