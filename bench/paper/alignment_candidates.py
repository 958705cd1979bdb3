"""Which code finds the candidates of an alignment: recall of the exact MrSw top 10.

    python -m bench.paper.alignment_candidates FILE...

FILEs hold pictures and sentences with concepts, of one encoder. Codes are learned from all pictures and from the
sentences of every other picture; sentences of the pictures between ask. A row has a code, its terms per picture, the
postings read per query and thousand pictures, and for each R the share of the ten pictures of largest MrSw that are
among the R best of the code: among R candidates, re-ranking by MrSw finds them. ``ms`` is the median time of a query,
from its concepts to the ten best of --reranked candidates by MrSw, on one thread, and ``times faster`` how often that
goes into the median time of MrSw over all pictures, asked in turns.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from bench.report.rows import Writer
from boc.codecs import SurrogateCodec
from boc.codecs.parse import parse_code
from boc.inputs.features import FeatureFile
from boc.rerank.alignment import alignments
from boc.topk import topk
from boc.types import MODALITIES, Embeddings, Modality, Ragged, TermMatrix
from indexing.embedded.postings import Postings

CODES = ("dictionary:2/64", "scalar:64/128", "late(density=5)", "late(density=10)", "late(terms=256)", "late")
DEPTHS = (10, 20, 50, 100, 200, 500)
K = 10
TIMED = 100  # queries
COLUMNS = (
    "code", "pictures", "queries", "terms per picture", "postings", *(f"recall@{depth}" for depth in DEPTHS),
    "reranked", "ms", "times faster",
)  # fmt: skip


def split(paths: Sequence[Path], asked: int) -> tuple[Embeddings, Embeddings, Embeddings]:
    """All pictures, sentences to learn from, and at most ``asked`` queries, evenly spread."""
    parts: dict[Modality, list[Embeddings]] = {"image": [], "text": []}
    places: dict[str, int] = {}
    owners: list[int] = []
    for path in paths:
        with FeatureFile(path) as file:
            pictures, texts = (file.batch(modality, 0, file.count(modality)) for modality in MODALITIES)
        if pictures.embeddings.concepts is None:
            raise click.ClickException(f"{path} holds no concepts; make it with boc extract --encoder, a teran say")
        for item in pictures.items:
            places.setdefault(item.group, len(places))
        owners += [places.get(item.group, 0) for item in texts.items]
        for batch, modality in ((pictures, MODALITIES[0]), (texts, MODALITIES[1])):
            parts[modality].append(batch.embeddings)
    odd = np.array(owners) % 2 == 1
    asking = np.flatnonzero(odd)[:: max(1, int(odd.sum()) // asked)][:asked]
    learned = np.flatnonzero(~odd)
    shown, said = (joined(parts[modality]) for modality in MODALITIES)
    return shown, said.take(learned.tolist()), said.take(asking.tolist())


def joined(parts: Sequence[Embeddings]) -> Embeddings:
    """Vectors and concept sets of all parts."""
    sets = [part.concepts for part in parts if part.concepts is not None]
    return Embeddings(parts[0].modality, np.concatenate([part.vectors for part in parts]), Ragged.concatenate(sets))


def postings(queries: TermMatrix, items: TermMatrix) -> float:
    """The mean number of postings that a query reads, per thousand items."""
    lengths = np.diff(items.tocsc().indptr)
    return float(lengths[queries.indices].sum() / queries.shape[0] / items.shape[0] * 1000)


def recalls(scores: NDArray[np.float64], exact: NDArray[np.int64]) -> Iterator[float]:
    """For each depth the share of ``exact`` (n, K) among the best positive ``scores`` (n, m)."""
    order = topk(scores, min(max(DEPTHS), scores.shape[1]))
    positive = np.take_along_axis(scores, order, axis=1) > 0
    for depth in DEPTHS:
        found = np.where(positive, order, -1)[:, :depth]
        yield float((exact[:, :, None] == found[:, None, :]).any(axis=2).mean())


def timed(
    codec: SurrogateCodec, items: TermMatrix, pictures: Ragged, asked: Embeddings, reranked: int
) -> tuple[float, float]:
    """Median milliseconds of a query through the code and re-ranking, and by MrSw over all pictures."""
    index = Postings.from_matrix(items)
    found: list[tuple[float, float]] = []
    for i in range(min(TIMED, len(asked))):
        query = asked.take([i])
        assert query.concepts is not None
        begun = time.perf_counter()
        ((rows, _),) = index.top(codec.encode_queries(query), reranked)
        topk(alignments(query.concepts, pictures.take(rows.tolist()), "mrsw"), K)
        between = time.perf_counter()
        topk(alignments(query.concepts, pictures, "mrsw"), K)
        found.append((1000 * (between - begun), 1000 * (time.perf_counter() - between)))
    return tuple(np.median(found, axis=0).tolist())


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--queries", type=click.IntRange(1), default=500, show_default=True, help="Number of queries.")
@click.option("--reranked", type=click.IntRange(K), default=50, show_default=True, help="Candidates by MrSw, timed.")
@click.option("--code", "codes", multiple=True, default=CODES, show_default=True, help="Code to try; may be repeated.")
def main(files: tuple[Path, ...], queries: int, reranked: int, codes: tuple[str, ...]) -> None:
    """Recall of the exact MrSw top 10 among the candidates of codes."""
    pictures, learned, asked = split(files, queries)
    assert pictures.concepts is not None
    assert asked.concepts is not None
    exact = topk(alignments(asked.concepts, pictures.concepts, "mrsw"), K)
    with Writer(sys.stdout, __file__, {"files": files, "queries": len(asked)}, COLUMNS) as out:
        for text in codes:
            codec = parse_code(text).codec(pictures.vectors.shape[1]).fit(pictures, learned)
            items, terms = codec.encode_documents(pictures), codec.encode_queries(asked)
            scores = (terms.astype(np.float64) @ items.T.astype(np.float64)).toarray()
            ms, whole = timed(codec, items, pictures.concepts, asked, reranked)
            told = (f"{recall:.3f}" for recall in recalls(scores, exact))
            costs = f"{items.nnz / len(pictures):.1f}", f"{postings(terms, items):.0f}"
            out.write(text, len(pictures), len(asked), *costs, *told, reranked, f"{ms:.2f}", f"{whole / ms:.1f}")


if __name__ == "__main__":
    main()
