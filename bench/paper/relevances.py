"""Relevances of pictures to sentences beside each other: ROUGE-L, caption graphs, and SPICE where its matrix is there.

    python -m bench.paper.relevances CAPTIONS --ids dev.ids.txt
    python -m bench.paper.relevances CAPTIONS --ids dev.ids.txt --spice FILE

CAPTIONS is a table or a feature file, FILE a matrix as ``boc evaluate --relevance FILE --spice COMMAND`` makes or the
authors of TERN published. A row holds the measure, the relevance that ranks, the one that judges, the value, its
standard error, and the number of sentences:

``own R@1``, ``own R@10``: share of the pictures that one of their captions finds by the other captions, in percent;
``order``: mean over sentences of Spearman's correlation of both relevances over all other pictures;
``NDCG@25``: mean over sentences of what the other pictures, ranked by one, gain by the other.

Neither of the last two counts the picture of a sentence, whose captions have the sentence among them.
"""

from __future__ import annotations

import sys
from itertools import permutations
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from bench.report.rows import Writer
from boc.errors import SourceError
from boc.evaluate.metrics import check_relevance, ndcg, owners_of, ranks
from boc.evaluate.relevance import known_relevance, read_relevance
from boc.inputs.sources import open_source
from boc.names import RELEVANCES, Relevance

COLUMNS = ("measure", "by", "judged by", "value", "+-", "sentences")
Matrix = NDArray[np.float32]


def own(by: Relevance, texts: list[str], owners: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rank (from 0) of each picture by its first caption, against the other captions of all pictures."""
    count = int(owners.max()) + 1
    firsts = np.unique(owners, return_index=True)[1]
    apart = owners.copy()
    apart[firsts] = np.arange(count, 2 * count)  # a picture of its own, so that it is no reference
    return ranks(known_relevance(by, texts, apart)[firsts, :count], np.arange(count), np.arange(count))


def order(one: Matrix, other: Matrix) -> NDArray[np.float64]:
    """Spearman's correlation of each row of one with that of the other; 0 where a row is all alike."""
    first, second = (rankdata(matrix, axis=1) for matrix in (one, other))
    first, second = (rank - rank.mean(axis=1, keepdims=True) for rank in (first, second))
    lengths = np.sqrt((first**2).sum(axis=1) * (second**2).sum(axis=1))
    products = (first * second).sum(axis=1)
    found: NDArray[np.float64] = np.divide(products, lengths, out=np.zeros(len(one)), where=lengths > 0)
    return found


def others(matrix: Matrix, owners: NDArray[np.int64]) -> Matrix:
    """Each row without the sentence's own picture; NaN, where SPICE parsed nothing, is 0."""
    kept = np.arange(matrix.shape[1]) != owners[:, None]
    rest: Matrix = np.nan_to_num(matrix[kept].reshape(len(matrix), -1), nan=0.0)
    return rest


def figures(values: NDArray[np.floating[Any]]) -> tuple[str, str, int]:
    return f"{values.mean():.3f}", f"{values.std() / np.sqrt(len(values)):.3f}", len(values)


@click.command()
@click.argument("captions", type=click.Path(exists=True, path_type=Path))
@click.option("--ids", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Only these pictures.")
@click.option("--spice", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Matrix of SPICE.")
def main(captions: Path, ids: Path | None, spice: Path | None) -> None:
    """Compare relevances over CAPTIONS."""
    try:
        items = open_source(captions, ids).items
    except SourceError as error:
        raise click.ClickException(str(error)) from error
    pictures = [item.id for item in items if item.modality == "image"]
    sentences = [item for item in items if item.modality == "text"]
    texts, owners = [item.content for item in sentences], owners_of(pictures, [item.group for item in sentences])
    parameters = {"captions": captions, "ids": ids, "spice": spice}
    with Writer(sys.stdout, __file__, parameters, COLUMNS) as out:
        for by in RELEVANCES:
            found = own(by, texts, owners)
            for k in (1, 10):
                out.write(f"own R@{k}", by, None, *figures(100.0 * (found < k)))
        matrices: dict[str, Matrix] = {by: known_relevance(by, texts, owners) for by in RELEVANCES}
        if spice is not None:
            matrices["spice"] = read_relevance(spice, len(texts))
            check_relevance(matrices["spice"], len(texts), len(pictures))
        rest = {by: others(matrix, owners) for by, matrix in matrices.items()}
        for one, other in permutations(rest, 2):
            if list(rest).index(one) < list(rest).index(other):
                out.write("order", one, other, *figures(order(rest[one], rest[other])))
            out.write("NDCG@25", one, other, *figures(ndcg(rest[one], rest[other])))


if __name__ == "__main__":
    main()
