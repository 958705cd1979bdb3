"""The quality of labels: the share of a term's pictures whose captions have a word of its label, against chance.

    python -m bench.paper.labels LEARN FEATURES

FEATURES holds captioned pictures with concepts and words, LEARN others for the labels (both of boc extract), so that
no label is judged by the captions it came from. Terms are drawn by seed among those that some pictures of FEATURES
have. A row holds kind of label, terms drawn, terms with words; then, over those with words, mean and
standard error of the share among the pictures that have most of a term, the same of the share among all pictures
(chance), and the part of terms that beat their own chance.

Kinds: "scalar" and "dictionary" ask an index of LEARN for the terms of these codes over global vectors, "concepts" for
those of a hard Bag of Concepts; "codebook" takes the words of the same codewords' own concepts in LEARN.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click
import numpy as np
from scipy import sparse

from bench.report.rows import Writer
from boc import plugins
from boc.clustering.make_codebook import cluster
from boc.clustering.term_labels import IndexLabels, Label, codebook_labels, content_words
from boc.codecs import Code, HardAssignment, SurrogateCodec
from boc.indexes.learn import fit_code
from boc.indexes.load import load_index, new_manifest
from boc.inputs.features import FeatureFile
from boc.types import TermMatrix

COLUMNS = ("labels", "terms", "with words", "hits", "hits +-", "chance", "chance +-", "above chance")


def words_of(file: FeatureFile) -> list[set[str]]:
    """The content words of all captions of each picture."""
    number = {item.id: i for i, item in enumerate(file.items("image"))}
    found: list[set[str]] = [set() for _ in number]
    for item in file.items("text"):
        found[number[item.group]].update(content_words(item.content))
    return found


def encode(file: FeatureFile, codec: SurrogateCodec) -> TermMatrix:
    """The terms of all pictures, one column a term."""
    parts = [codec.encode_documents(rows.embeddings) for rows in file.batches("image")]
    return sparse.vstack(parts, format="csc")


def judge(
    terms: TermMatrix,
    labels: Mapping[int, Label] | IndexLabels,
    words: Sequence[set[str]],
    top: int,
    count: int,
    seed: int,
) -> list[float]:
    """Terms drawn, terms with words, and the figures of the heading."""
    rng = np.random.default_rng(seed)
    used = np.flatnonzero(np.diff(terms.indptr) >= top)
    drawn = rng.choice(used, min(count, len(used)), replace=False)
    hits, chances = [], []
    for term in drawn.tolist():
        chosen = set(labels[term].words)
        span = slice(terms.indptr[term], terms.indptr[term + 1])
        rows = terms.indices[span][np.argsort(-terms.data[span], kind="stable")[:top]]
        if chosen:
            hits.append(np.mean([bool(chosen & words[row]) for row in rows]))
            chances.append(np.mean([bool(chosen & each) for each in words]))
    hit, chance = np.array(hits), np.array(chances)
    error = 1 / np.sqrt(max(1, len(hit)))
    figures = [hit.mean(), hit.std() * error, chance.mean(), chance.std() * error, np.mean(hit > chance)]
    return [len(drawn), len(hit), *(round(float(f), 3) for f in figures)]


def rows(
    learn: FeatureFile, file: FeatureFile, clusters: int, top: int, count: int, seed: int
) -> Iterator[list[object]]:
    """One row per kind of label."""
    words = words_of(file)
    codebook = cluster([learn], clusters, seed=seed)
    scalar = fit_code(learn, Code("scalar").codec(learn.header.dim))
    dictionary = fit_code(learn, Code("dictionary", z=2, terms=clusters).codec(learn.header.dim))
    sample = learn.batch("image", 0, 1).embeddings
    concepts = SurrogateCodec([HardAssignment.from_codebook(codebook)]).fit(sample)
    for kind, codec in (("scalar", scalar), ("dictionary", dictionary), ("concepts", concepts)):
        with tempfile.TemporaryDirectory() as folder:
            for _ in load_index(learn, f"file:{folder}", "bench", codec, new_manifest(learn, codec)):
                pass
            index = plugins.backend(f"file:{folder}").open("bench")
            terms = encode(file, codec)
            yield [kind, *judge(terms, IndexLabels(index, codec.n_terms), words, top, count, seed)]
    own = codebook_labels(codebook.centroids, [learn], spherical=codebook.spherical)
    yield ["codebook", *judge(terms, dict(enumerate(own)), words, top, count, seed)]


@click.command()
@click.argument("learn", type=click.Path(path_type=Path))
@click.argument("features", type=click.Path(path_type=Path))
@click.option("--clusters", default=1000, show_default=True)
@click.option("--pictures", "top", default=5, show_default=True, help="Judged of a term; rarer ones are not drawn.")
@click.option("--terms", "count", default=200, show_default=True, help="Terms drawn.")
@click.option("--seed", default=0, show_default=True)
def main(learn: Path, features: Path, clusters: int, top: int, count: int, seed: int) -> None:
    """How well labels learned on LEARN fit the pictures of FEATURES."""
    parameters = {"learn": learn, "features": features, "clusters": clusters, "pictures": top, "terms": count}
    with (
        FeatureFile(learn) as first,
        FeatureFile(features) as second,
        Writer(sys.stdout, __file__, parameters, COLUMNS, seed=seed) as out,
    ):
        for row in rows(first, second, clusters, top, count, seed):
            out.write(*row)


if __name__ == "__main__":
    main()
