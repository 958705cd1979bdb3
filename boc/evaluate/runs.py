"""Evaluate searches between the pictures and captions in feature files, by vectors, by concept
sets, or with an index."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

import numpy as np

from boc.errors import FeatureFileError
from boc.evaluate.metrics import (
    BLOCK,
    Ndcg,
    Recall,
    Recalls,
    check_relevance,
    mean_ndcg,
    ndcg_of_hits,
    owners_of,
)
from boc.evaluate.relevance import read_relevance, rouge_l_matrix
from boc.evaluate.trec import write_qrels, write_run
from boc.inputs.features import FeatureFile
from boc.names import Metric
from boc.plan import MEASURED
from boc.progress import Tick
from boc.rerank import check_metric
from boc.rerank.alignment import alignments
from boc.search.options import SearchOptions
from boc.search.searcher import Searcher
from boc.topk import topk
from boc.types import MODALITIES, Batch, Item, Modality, Ragged, SearchRequest
from boc.vectors import Floats, Ints

DEEPEST = 100  # number of hits considered for the median rank
QUERIES = 256  # queries searched at a time
DIRECTIONS: tuple[tuple[Modality, Modality], ...] = (("text", "image"), ("image", "text"))
PICTURES = 256  # pictures whose concept sets are aligned at a time


@dataclass(frozen=True)
class Evaluation:
    """Result of an evaluation: ``recalls``, and ``ndcg`` if requested."""

    recalls: Recalls
    ndcg: Ndcg | None = None


@dataclass(frozen=True)
class Gallery:
    """Pictures and their captions, with embeddings in each of the files ``paths``.

    ``owners`` int64 (n_texts,) contains the number of the picture that each caption describes, from
    0 to ``images`` - 1.
    """

    paths: tuple[Path, ...]
    images: int
    captions: list[str]
    owners: Ints

    @classmethod
    def of(cls, *paths: Path) -> Gallery:
        """Read the items of feature files. Raises FeatureFileError if a file contains no
        embeddings, or if its items differ from the items of the first file."""
        first: dict[Modality, list[Item]] = {}
        expected = list[tuple[str, str, str]]()
        for path in paths:
            with FeatureFile(path) as file:
                file.check_embeddings()
                items = {modality: file.items(modality) for modality in MODALITIES}
            # Only the paths of pictures may differ.
            facts = [
                (item.id, item.group, item.content if item.modality == "text" else "")
                for modality in MODALITIES
                for item in items[modality]
            ]
            first = first or items
            expected = expected or facts
            if facts != expected:
                pairs = zip_longest(facts, expected)
                one, other = next(pair for pair in pairs if pair[0] != pair[1])
                raise FeatureFileError(
                    f"{path}: contains {one} where {paths[0]} contains {other}; give files with "
                    "the same items in the same order",
                )
        if not first["image"]:
            raise FeatureFileError(
                f"{paths[0]}: contains no pictures; extract a CSV with the columns image,caption",
            )
        pictures = first["image"]
        captions = first["text"]
        owners = owners_of([item.id for item in pictures], [item.group for item in captions])
        return cls(paths, len(pictures), [item.content for item in captions], owners)

    def protocols(self, fold: int) -> dict[str, int | None]:
        """Return the fold size for each label: all pictures and, if the gallery is larger, folds of
        ``fold`` pictures."""
        protocols: dict[str, int | None] = {f"all {self.images} pictures": None}
        if self.images > fold:
            protocols[f"mean over folds of {fold} pictures"] = fold
        return protocols

    def scores(
        self,
        metric: str = "dot",
        *,
        block: int = BLOCK,
        tick: Tick = lambda done: None,
    ) -> Floats:
        """Compute scores (n_texts, n_images) by ``metric``. If there are several files, their
        scores are averaged.

        TERAN and VSRN also combine models by averaging score matrices. The matrix is a temporary
        file, mapped read-only, with 4 bytes per score. Scores are computed for ``block`` captions
        at a time, and ``tick`` is called with the number of captions in each finished block. Raises
        FeatureFileError if the metric compares concept sets and a file does not contain any.
        """
        check_metric(metric)
        n = len(self.captions)
        with ExitStack() as stack:
            models = [
                _scorer(stack.enter_context(FeatureFile(path)), metric, min(block, PICTURES))
                for path in self.paths
            ]
            handle = stack.enter_context(tempfile.TemporaryFile())
            for start in range(0, n, block):
                stop = min(start + block, n)
                rows = np.mean([score(start, stop) for score in models], axis=0, dtype=np.float32)
                handle.write(rows.tobytes())
                tick(stop - start)
            handle.flush()
            return np.memmap(handle, np.float32, "r", shape=(n, self.images))

    def write_runs(
        self,
        folder: Path,
        name: str | None,
        at: str,
        *,
        rm: float | None,
        score: Metric | None,
    ) -> None:
        """Write ``text-to-image.run`` and ``text-to-image.qrels``, and the same files for the other
        direction, to ``folder``.

        A run contains the first ``DEEPEST`` hits of each query. They are ranked by ``score`` as in
        ``scores``, or by searches in the index ``name`` at ``at`` as in ``evaluate_index``.
        """
        folder.mkdir(parents=True, exist_ok=True)
        captions = np.arange(len(self.owners))
        pairs = {"text": (captions, self.owners), "image": (self.owners, captions)}
        scores = {}
        if name is None:
            of_captions = self.scores(score or "dot")
            scores = {"text": of_captions, "image": of_captions.T}
        with FeatureFile(self.paths[0]) as file:
            ids = {modality: file.ids(modality) for modality in MODALITIES}
            for asking, target in DIRECTIONS:
                right: list[list[str]] = [[] for _ in ids[asking]]
                for query, item in zip(*pairs[asking], strict=True):
                    right[query].append(ids[target][item])
                place = folder / f"{asking}-to-{target}.run"
                if name is None:
                    rankings = _rank_rows(scores[asking], ids[asking], ids[target])
                else:
                    searched = _search(Searcher.open(name, at), file, asking, target, rm, score)
                    rankings = ((item.id, keys, values) for item, keys, values in searched)
                write_qrels(place.with_suffix(".qrels"), zip(ids[asking], right, strict=True))
                write_run(place, rankings)

    def relevance(
        self,
        path: Path | None = None,
        *,
        tick: Tick = lambda done: None,
    ) -> Floats:
        """Compute the relevance (n_texts, n_images) by ROUGE-L, or read it from the file ``path``.

        ``tick`` is called with the number of finished values. Raises BocError if the file contains
        a different number of items.
        """
        if path is None:
            return rouge_l_matrix(self.captions, self.owners, tick=tick)
        known = read_relevance(path, len(self.captions))
        check_relevance(known, len(self.captions), self.images)
        tick(known.size)
        return known


def _rank_rows(
    scores: Floats,
    queries: Sequence[str],
    ids: Sequence[str],
) -> Iterator[tuple[str, list[str], list[float]]]:
    for query, row in zip(queries, scores, strict=True):
        best = topk(row, DEEPEST)
        yield query, [ids[place] for place in best], row[best].tolist()


def _search(
    searcher: Searcher,
    file: FeatureFile,
    asking: Modality,
    target: Modality,
    rm: float | None,
    rerank: Metric | None,
) -> Iterator[tuple[Item, list[str], list[float]]]:
    """Yield the items of one modality with the ids and scores of their first ``DEEPEST`` hits,
    searched as described in ``evaluate_index``."""
    for batch in file.batches(asking, QUERIES):
        queries = batch.embeddings
        if rm == 1:
            terms = searcher.codec.encode_queries(queries)
            ids, scores = searcher.index.rank(SearchRequest(terms, DEEPEST, target))
        else:
            options = SearchOptions(DEEPEST, rm, target, rerank)
            if rm is not None:
                k = min(DEEPEST, math.ceil(rm * MEASURED))
                options = replace(options, k=k, rm=rm * MEASURED / k)
            ids, scores = searcher.rank_vectors(queries, options)
        for item, keys, values in zip(batch.items, ids, scores, strict=True):
            hits = list(filter(None, keys))
            yield item, hits, values[: len(hits)].tolist()


def evaluate_index(
    path: Path,
    name: str,
    at: str,
    rm: float | None = None,
    rerank: Metric | None = None,
    *,
    relevance: Floats | None = None,
    tick: Tick = lambda done: None,
) -> Evaluation:
    """Measure the recall of searches in an index that contains the items of ``path``.

    If ``rm`` is None, searches run as in normal use and may compare all vectors. Otherwise, the
    code is measured: the candidates for 10 hits are ``rm`` * 10 items that share a term with the
    query. If ``rm`` is 1, candidates are not re-ranked. With ``relevance``, a matrix from
    ``Gallery.relevance``, the result includes NDCG@25. ``rerank`` is the metric for re-ranking
    (default: the metric of the index). The median rank considers 100 hits; all lower ranks count as
    101. ``tick`` is called with 1 after each query.
    """
    searcher = Searcher.open(name, at)
    gallery = Gallery.of(path)
    counts = searcher.index.manifest.items
    if counts["image"] < gallery.images or counts["text"] < len(gallery.captions):
        raise FeatureFileError(
            f"{path}: contains {gallery.images} pictures and {len(gallery.captions)} captions, "
            f"but the index {name!r} contains {counts['image']} and {counts['text']}; evaluate "
            "the file that the index was built from",
        )
    recalls = []
    gains = []
    with FeatureFile(path) as file:
        for asking, target in DIRECTIONS:
            items = file.items(target)
            columns = {item.id: column for column, item in enumerate(items)}
            groups = {item.id: item.group or item.id for item in items}
            ranks = []
            ndcgs = []
            for row, (query, ids, _) in enumerate(
                _search(searcher, file, asking, target, rm, rerank),
            ):
                own = query.group or query.id
                right = (rank for rank, key in enumerate(ids) if groups.get(key) == own)
                ranks.append(next(right, DEEPEST))
                if relevance is not None:
                    grades = relevance if asking == "text" else relevance.T
                    hits = np.array([[columns.get(key, -1) for key in ids]], np.int64)
                    ndcgs.append(float(ndcg_of_hits(hits, grades[[row]])[0]))
                tick(1)
            recalls.append(Recall.of(np.array(ranks)))
            gains.append(np.array(ndcgs))
    return Evaluation(Recalls(*recalls), None if relevance is None else mean_ndcg(*gains))


def _scorer(
    file: FeatureFile,
    metric: str,
    size: int,
) -> Callable[[int, int], Floats]:
    """Return a function that computes the scores of captions ``start`` to ``stop`` and all
    pictures, in blocks of ``size`` pictures."""
    if metric == "dot":
        images = file.vectors("image")
        return lambda start, stop: (
            file.batch("text", start, stop, sets=False).embeddings.vectors @ images.T
        )
    for modality in MODALITIES:
        if "concepts" not in file.ragged_arrays(modality):
            raise FeatureFileError(
                f"{file.path}: contains no concept sets for its {modality} items, which {metric} "
                "compares",
                "use the score dot, or extract the file with <boc extract --encoder> and an "
                "encoder that returns concept sets, such as tern",
            )

    def concepts(batch: Batch) -> Ragged:
        assert batch.embeddings.concepts is not None
        return batch.embeddings.concepts

    def score(start: int, stop: int) -> Floats:
        words = concepts(file.batch("text", start, stop))
        pictures = map(concepts, file.batches("image", size))
        return np.concatenate([alignments(words, regions, metric) for regions in pictures], axis=1)

    return score
