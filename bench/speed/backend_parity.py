"""Compares the hits of several backends: the items of an embeddings file are indexed at each, and are the queries.

    python -m bench.speed.backend_parity flickr8k/dev.h5 file:DIR elastic+http://localhost:9200
    opensearch+http://localhost:9201

All items are queries: sentences find pictures, pictures find sentences. Hits are compared with those of the first
place, as lists of ids; where the lists differ, two hits may change places if their scores are equal. Prints one line
per place: queries, how many of them have other hits, and the largest difference of a score.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import click
import numpy as np

from boc import plugins
from boc.cli.options import CodeType
from boc.codecs import Code
from boc.indexes.learn import fit_code
from boc.indexes.load import load_index, new_manifest
from boc.inputs.features import FeatureFile
from boc.inputs.query_files import read_queries
from boc.search.searcher import Searcher
from boc.types import Hit

NAME = "same-hits"
EQUAL = 1e-6  # servers and processors round the last bit of a sum their own way


def same(ours: list[Hit], theirs: list[Hit]) -> bool:
    """Whether two lists hold the same hits, except for the order, and the last place, of equal scores."""
    if len(ours) != len(theirs):
        return False
    scores = {hit.item.id: hit.score for hit in ours}
    least = ours[-1].score if ours else 0.0
    return all(
        abs(a.score - b.score) <= EQUAL and abs(scores.get(b.item.id, least) - b.score) <= EQUAL
        for a, b in zip(ours, theirs, strict=True)
    )


@click.command()
@click.argument("features", type=click.Path(path_type=Path))
@click.argument("places", nargs=-1, required=True)
@click.option("--code", type=CodeType(), default="scalar", show_default=True)
@click.option("-k", default=10, show_default=True)
@click.option("--rm", default=10.0, show_default=True)
def main(features: Path, places: tuple[str, ...], code: Code, k: int, rm: float) -> None:
    """Index FEATURES at each of PLACES, and compare."""
    with FeatureFile(features) as file:
        codec = fit_code(file, code.codec(file.header.dim))
        manifest = new_manifest(file, codec, rm)
        for at in places:
            for _ in load_index(file, at, NAME, codec, manifest):
                pass
    rows = csv.writer(sys.stdout)
    rows.writerow(["place", "queries", "different", "largest_difference"])
    first: list[list[Hit]] = []
    for at in places:
        searcher = Searcher.open(NAME, at)
        found: list[list[Hit]] = []
        for _, queries in read_queries(features, searcher.index.manifest.identity, None):
            found += searcher.search_vectors(queries, k=k, find="text" if queries.modality == "image" else "image")
        first = first or found
        different = sum(not same(a, b) for a, b in zip(first, found, strict=True))
        pairs = ((a, b) for one, other in zip(first, found, strict=True) for a, b in zip(one, other, strict=False))
        gaps = [abs(a.score - b.score) for a, b in pairs]
        rows.writerow([at.partition("://")[0], len(found), different, f"{np.max(gaps, initial=0):.1e}"])
        plugins.backend(at).remove(NAME)


if __name__ == "__main__":
    main()
