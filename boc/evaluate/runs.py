"""How well the items of feature files find each other: by vectors, by concept sets, or through an index."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from boc.errors import FeatureFileError
from boc.evaluate.metrics import BLOCK, CUTOFFS, Recall, Recalls, check_relevance, owners_of
from boc.evaluate.relevance import read_relevance, rouge_l_matrix, spice_file
from boc.inputs.features import FeatureFile
from boc.names import Metric
from boc.rerank import check_metric
from boc.rerank.alignment import alignments
from boc.search import Searcher
from boc.search_options import SearchOptions
from boc.types import MODALITIES, Hit, Item, Modality, Ragged

DEEPEST = 100  # hits looked at for a median rank
QUERIES = 256  # queries searched at a time
PLURAL: dict[Modality, str] = {"image": "pictures", "text": "captions"}
PICTURES = 256  # pictures whose concept sets are aligned at a time


@dataclass(frozen=True)
class Gallery:
    """Pictures and their captions, with embeddings in each file of ``paths``.

    ``owners`` int64 (n_texts,) are the numbers of the captions' pictures, below ``images``.
    """

    paths: tuple[Path, ...]
    images: int
    captions: list[str]
    owners: NDArray[np.int64]

    @classmethod
    def of(cls, *paths: Path) -> Gallery:
        """Open feature files. FeatureFileError if a file has no embeddings, or other items than the first."""
        first: dict[Modality, list[Item]] = {}
        for path in paths:
            with FeatureFile(path) as file:
                if file.header.kind != "embeddings":
                    raise FeatureFileError(f"{path}: holds regions, not vectors; use boc extract --encoder on it first")
                items = {modality: file.items(modality) for modality in MODALITIES}
            first = first or items
            for modality in MODALITIES:
                _check_same(path, items[modality], paths[0], first[modality], PLURAL[modality])
        if not first["image"]:
            raise FeatureFileError(f"{paths[0]}: holds no pictures; extract a CSV of image,caption")
        pictures, captions = first["image"], first["text"]
        owners = owners_of([item.id for item in pictures], [item.group for item in captions])
        return cls(paths, len(pictures), [item.content for item in captions], owners)

    def protocols(self, fold: int) -> dict[str, int | None]:
        """Labels and fold sizes: all pictures and, if there are more than ``fold``, folds of that size."""
        whole: dict[str, int | None] = {f"all {self.images} pictures": None}
        return whole | ({f"mean over folds of {fold} pictures": fold} if self.images > fold else {})

    def scores(self, metric: str = "dot", *, tick: Callable[[int], None] = lambda done: None) -> NDArray[np.float32]:
        """Scores (n_texts, n_images) by a metric of ``boc.rerank.dot``; those of several files are averaged.

        The mean of the score matrices is how TERAN and VSRN combine models. The matrix is in a temporary file, mapped
        read-only, with 4 bytes per score on disk. ``tick`` is called with the number of captions of each finished
        block. FeatureFileError if an alignment needs concept sets that a file lacks.
        """
        check_metric(metric)
        n = len(self.captions)
        with ExitStack() as stack:
            models = [_scorer(stack.enter_context(FeatureFile(path)), metric) for path in self.paths]
            handle = stack.enter_context(tempfile.TemporaryFile())
            for start in range(0, n, BLOCK):
                stop = min(start + BLOCK, n)
                block = np.mean([rows(start, stop) for rows in models], axis=0, dtype=np.float32)
                handle.write(block.tobytes())
                tick(stop - start)
            handle.flush()
            return np.memmap(handle, np.float32, "r", shape=(n, self.images))

    def relevance(
        self,
        path: Path | None = None,
        spice: str | None = None,
        *,
        tick: Callable[[int], None] = lambda done: None,
    ) -> NDArray[np.float32]:
        """Relevance (n_texts, n_images): ROUGE-L, or the contents of the file ``path``.

        With the command ``spice`` that file is made or completed first. ``tick`` is called with the number of finished
        cells (sentence, picture). BocError if the file has another number of items.
        """
        if path is None:
            return rouge_l_matrix(self.captions, self.owners, tick=tick)
        if spice is not None:
            return spice_file(path, spice, self.captions, self.owners, tick=tick)
        known = read_relevance(path, len(self.captions))
        check_relevance(known, len(self.captions), self.images)
        tick(known.size)
        return known


def evaluate_index(
    path: Path,
    name: str,
    at: str,
    rm: float | None = None,
    rerank: Metric | None = None,
    *,
    tick: Callable[[int], None] = lambda done: None,
) -> Recalls:
    """Recalls through an index that holds the items of ``path``: K hits for each K, of ``rm`` * K candidates.

    ``rerank`` is the metric that re-ranks them (default: the index's). The median rank looks at 100 hits, not
    re-ranked; 101 stands for all that lies deeper. ``tick`` is told the number of queries of each batch that is done.
    """
    Gallery.of(path)
    searcher = Searcher.open(name, at)
    options = SearchOptions(rm=rm, rerank=rerank)
    with FeatureFile(path) as file:

        def recall(asking: Modality, target: Modality) -> Recall:
            columns = []
            for batch in file.batches(asking, QUERIES):
                queries = batch.embeddings
                found = [searcher.search_vectors(queries, options, k=k, find=target) for k in CUTOFFS]
                found.append(searcher.search_vectors(queries, k=DEEPEST, rm=1, find=target, rerank="dot"))
                columns.append([[_rank(h, q) for h, q in zip(hits, batch.items, strict=True)] for hits in found])
                tick(len(batch))
            *cut, deep = np.concatenate(columns, axis=1)
            r1, r5, r10 = (100 * float(np.mean(ranks < k)) for ranks, k in zip(cut, CUTOFFS, strict=True))
            return Recall(r1, r5, r10, float(np.floor(np.median(deep))) + 1)

        return Recalls(recall("text", "image"), recall("image", "text"))


def _rank(hits: Sequence[Hit], query: Item) -> int:
    """Rank (from 0) of the first hit of the query's picture, or DEEPEST."""
    target = query.group or query.id
    return next((rank for rank, hit in enumerate(hits) if (hit.item.group or hit.item.id) == target), DEEPEST)


def _check_same(path: Path, items: Sequence[Item], model: Path, expected: Sequence[Item], kind: str) -> None:
    """FeatureFileError unless ``path`` has the items of ``model``; only the paths of pictures may differ."""
    if len(items) != len(expected):
        raise FeatureFileError(
            f"{path}: holds {len(items)} {kind}, {model} holds {len(expected)}; give files of the same items"
        )
    for one, other in zip(items, expected, strict=True):
        if one.id != other.id:
            raise FeatureFileError(
                f"{path}: holds {one.id!r} where {model} holds {other.id!r}; give files of the same items in one order"
            )
        if one.group != other.group:
            raise FeatureFileError(
                f"{path}: {one.id!r} belongs to {one.group!r}, in {model} to {other.group!r}; give files of one source"
            )
        if one.modality == "text" and one.content != other.content:
            raise FeatureFileError(
                f"{path}: {one.id!r} is another sentence than in {model}; give files of the same captions"
            )


def _scorer(file: FeatureFile, metric: str) -> Callable[[int, int], NDArray[np.float32]]:
    """A function that scores captions ``start`` to ``stop`` against all pictures of the file."""
    if metric == "dot":
        images = file.vectors("image")
        return lambda start, stop: file.batch("text", start, stop, sets=False).embeddings.vectors @ images.T
    for modality in MODALITIES:
        if "concepts" not in file.ragged_arrays(modality):
            raise FeatureFileError(
                f"{file.path}: holds no concept sets of its {modality} items, which {metric} compares; score by dot, "
                "or make it with boc extract --encoder (an encoder that has them, such as tern)"
            )
    count = file.count("image")

    def concepts(modality: Modality, start: int, stop: int) -> Ragged:
        sets = file.batch(modality, start, stop).embeddings.concepts
        assert sets is not None
        return sets

    def aligned(start: int, stop: int) -> NDArray[np.float32]:
        words = concepts("text", start, stop)
        pictures = (concepts("image", i, i + PICTURES) for i in range(0, count, PICTURES))
        return np.concatenate([alignments(words, regions, metric) for regions in pictures], axis=1)

    return aligned
