"""Exact and approximate search of sparse vectors of others, such as SPLADE's, at their integer scores.

    python -m bench.race.sparse documents.jsonl queries.jsonl --work FOLDER

Both files are JSON Lines of ``{"id": ..., "vector": {term: weight}}``. The engines take the same frequencies: ours in a
folder, which is exact; a product of sparse matrices by scipy; and Seismic (pyseismic-lsr), if it is installed, at
several settings. ``recall`` is the share of scores among the ten best that are those of the exact ten. Engines take
turns, a query at a time; times are medians over rounds, with the least and the most.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import perf_counter

import click
import numpy as np
from scipy import sparse

from bench.datasets.terms import write_terms
from bench.report.rows import Writer
from boc import Searcher, build_index
from boc.codecs.surrogate_text import to_counts
from boc.inputs.text_lines import json_lines
from boc.topk import topk
from boc.types import SearchRequest, TermMatrix

K = 10
COLUMNS = ("engine", "setting", "recall", "p50_ms", "p50_least", "p50_most")
SETTINGS = ((5, 0.7), (10, 0.8), (20, 0.9), (99, 1.0))  # of Seismic: terms of a query that are read, heap factor
Search = Callable[[int], Sequence[float]]


def engines(searcher: Searcher, queries: TermMatrix, folder: Path) -> Iterator[tuple[str, str, Search]]:
    """Yield the name and setting of each engine, and the function that gives the best scores of a query."""
    index = searcher.index
    yield "boc", "exact", lambda i: [hit.score for hit in index.search(SearchRequest(queries[[i]], K))[0]]
    columns = index.terms([item.id for item in index.items()]).T.tocsr()

    def product(i: int) -> Sequence[float]:
        scores = (queries[[i]] @ columns).toarray()[0]
        return [float(scores[place]) for place in topk(scores, K)]

    yield "scipy", "exact", product
    if find_spec("seismic") is None:
        click.echo("pyseismic-lsr is not installed, so Seismic takes no part", err=True)
        return
    seismic = import_module("seismic")

    (path, *_) = write_terms(index, folder / "terms.jsonl")
    built, kind = seismic.SeismicIndex.build(str(path)), seismic.get_seismic_string()
    names = {column: name for name, column in searcher.codec.given.columns.items()} if searcher.codec.given else {}
    rows = [{names[int(term[1:])]: weight for term, weight in row.items()} for row in to_counts(queries)]
    asked = [(np.array(list(row), dtype=kind), np.array(list(row.values()), np.float32)) for row in rows]
    for cut, factor in SETTINGS:

        def search(i: int, cut: int = cut, factor: float = factor) -> Sequence[float]:
            hits = built.search(
                query_id="q", query_components=asked[i][0], query_values=asked[i][1], k=K, query_cut=cut,
                heap_factor=factor,
            )  # fmt: skip
            return [score for _, score, _ in hits]

        yield "seismic", f"cut {cut}, heap factor {factor}", search


def recall(scores: Sequence[float], exact: Sequence[float]) -> float:
    """Return the share of the exact scores that are among ``scores``; equal scores are as good as each other."""
    return sum(score >= exact[-1] for score in scores) / len(exact) if exact else 1.0


@click.command()
@click.argument("documents", type=click.Path(exists=True, path_type=Path))
@click.argument("queries", type=click.Path(exists=True, path_type=Path))
@click.option("--work", required=True, type=click.Path(file_okay=False, path_type=Path), help="Folder of the indexes.")
@click.option("--rounds", default=5, show_default=True, help="Rounds in which the engines take turns.")
def main(documents: Path, queries: Path, work: Path, rounds: int) -> None:
    """Race engines over the sparse vectors of DOCUMENTS."""
    work.mkdir(parents=True, exist_ok=True)
    build_index("sparse", documents, at=f"file:{work}")
    searcher = Searcher.open("sparse", f"file:{work}")
    texts = [json.dumps(record["vector"]) for _, record in json_lines(queries, [])]
    terms = searcher.codec.encode_queries(searcher.encoder.encode_texts(texts))
    assert isinstance(terms, sparse.csr_array)
    racers = list(engines(searcher, terms, work))
    exact = [racers[0][2](i) for i in range(len(texts))]
    medians: list[list[float]] = [[] for _ in racers]
    for _ in range(rounds):
        for (_, _, search), mine in zip(racers, medians, strict=True):
            times = []
            for i in range(len(texts)):
                begun = perf_counter()
                search(i)
                times.append(1000 * (perf_counter() - begun))
            mine.append(median(times))
    with Writer(sys.stdout, __file__, {"documents": documents, "queries": queries, "rounds": rounds}, COLUMNS) as out:
        for (engine, setting, search), mine in zip(racers, medians, strict=True):
            share = float(np.mean([recall(search(i), exact[i]) for i in range(len(texts))]))
            figures = [f"{value:.3f}" for value in (median(mine), min(mine), max(mine))]
            out.write(engine, setting, f"{share:.4f}", *figures)


if __name__ == "__main__":
    main()
