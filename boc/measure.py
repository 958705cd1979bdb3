"""How well the items of a feature file find each other: by their dense vectors, or through an index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from boc.errors import FeatureFileError
from boc.evaluation import CUTOFFS, Gain, Ndcg, Recall, Recalls, evaluate, evaluate_ndcg, owners_of
from boc.features import FeatureFile, embeddings
from boc.pipeline import Searcher
from boc.relevance import read_relevance, rouge_l_matrix, spice_file
from boc.types import Hit, Item, Modality

DEEPEST = 100  # hits looked at for a median rank
QUERIES = 256  # asked at a time


def evaluate_dense(path: Path, fold: int) -> dict[str, Recalls]:
    """Recalls by dot product of the dense vectors: over all items and, if there are more pictures, by folds."""
    with FeatureFile(path) as file:
        images, texts, owners = _gallery(file)
    return {label: evaluate(images, texts, owners, part) for label, part in _protocols(len(images), fold).items()}


def evaluate_dense_ndcg(
    path: Path,
    fold: int,
    *,
    gain: Gain = "exponential",
    relevance: Path | None = None,
    spice: str | None = None,
    tick: Callable[[int], None] = lambda done: None,
) -> dict[str, Ndcg]:
    """NDCG@25 of the dense vectors, under the labels of ``evaluate_dense``.

    Relevance is ROUGE-L, or what the file ``relevance`` holds; with the command ``spice`` that file is made or finished
    first. ``tick`` is told the number of cells (sentence, picture) that are done.
    """
    with FeatureFile(path) as file:
        images, texts, owners = _gallery(file)
        captions = [item.content for item in file.items("text")]
    if relevance is None:
        known = rouge_l_matrix(captions, owners, tick=tick)
    elif spice is not None:
        known = spice_file(relevance, spice, captions, owners, tick=tick)
    else:
        known = read_relevance(relevance, len(texts))
        tick(known.size)
    return {
        label: evaluate_ndcg(images, texts, owners, known, part, gain=gain)
        for label, part in _protocols(len(images), fold).items()
    }


def evaluate_index(
    path: Path,
    name: str,
    at: str,
    rm: float | None = None,
    rerank: str | None = None,
    *,
    tick: Callable[[int], None] = lambda done: None,
) -> Recalls:
    """Recalls through an index that holds the items of ``path``: K hits for each K, of ``rm`` * K candidates.

    ``rerank`` is the metric that scores them anew (default: the index's). The median rank looks at 100 hits, not
    re-ranked; 101 stands for all that lies deeper. ``tick`` is told the number of queries of each batch that is done.
    """
    searcher = Searcher.open(name, at)
    with FeatureFile(path) as file:
        _gallery(file)

        def recall(asking: Modality, target: Modality) -> Recall:
            columns = []
            for rows in file.batches(asking, QUERIES):
                asked = embeddings(rows, asking)
                found = [searcher.search_vectors(asked, k=k, rm=rm, find=target, rerank=rerank) for k in CUTOFFS]
                found.append(searcher.search_vectors(asked, k=DEEPEST, rm=1, find=target, rerank="dot"))
                columns.append([[_rank(h, q) for h, q in zip(hits, rows.items, strict=True)] for hits in found])
                tick(len(rows.items))
            *cut, deep = np.concatenate(columns, axis=1)
            r1, r5, r10 = (100 * float(np.mean(ranks < k)) for ranks, k in zip(cut, CUTOFFS, strict=True))
            return Recall(r1, r5, r10, float(np.floor(np.median(deep))) + 1)

        return Recalls(recall("text", "image"), recall("image", "text"))


def _rank(hits: Sequence[Hit], query: Item) -> int:
    """Number (from 0) of the first hit of the query's picture, or DEEPEST."""
    wanted = query.group or query.id
    return next((rank for rank, hit in enumerate(hits) if (hit.item.group or hit.item.id) == wanted), DEEPEST)


def _protocols(n: int, fold: int) -> dict[str, int | None]:
    """Labels and folds to measure by: all ``n`` pictures and, if there are more than ``fold``, folds of so many."""
    whole: dict[str, int | None] = {f"all {n} pictures": None}
    return whole | ({f"mean over folds of {fold} pictures": fold} if n > fold else {})


def _gallery(file: FeatureFile) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int64]]:
    if file.header.kind != "embeddings":
        raise FeatureFileError(f"{file.path}: holds regions, not vectors; use boc extract --encoder on it first")
    pictures, captions = file.items("image"), file.items("text")
    owners = owners_of([p.id for p in pictures], [c.group for c in captions])
    return file.vectors("image"), file.vectors("text"), owners
