"""Recall@10 against sparsity, through the embedded index, in both directions (BoC, Figs. 3a and 3c).

Each setting makes an index of the pictures of a feature file, and one of its captions, and asks it all of the others.
Rows go to stdout as CSV: code, chain (plain as in the papers; centred and rotated; and, unsparsified only, the chains
that keep the order of the dense vectors: shifted c-ReLU, for ranks of eight rotations), z, sparsity, direction,
postings read a query, R@10 of the dense vectors, and R@10 with the first Rm * 10 hits re-ranked for each Rm.
"""

from __future__ import annotations

import csv
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from boc import registry
from boc.codecs import SurrogateCodec, global_code
from boc.costs import document_frequencies, postings_read
from boc.evaluation import image_to_text_ranks, owners_of, text_to_image_ranks
from boc.features import FeatureFile, FeatureWriter, Header, embeddings
from boc.pipeline import fit_code, new_manifest
from boc.types import Embeddings, Index, Item, Modality, Rows, TermMatrix

RMS = (1, 2, 5, 10)
K = 10
DIRECTIONS: tuple[tuple[Modality, Modality], ...] = (("text", "image"), ("image", "text"))
SPARSITIES = (0.0, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99)


class Gallery:
    """Pictures and captions of a feature file with their dense vectors, and who belongs to whom."""

    def __init__(self, file: FeatureFile) -> None:
        self.items = {m: file.items(m) for m in ("image", "text")}
        self.vectors = {m: file.vectors(m) for m in ("image", "text")}
        self.group = {item.id: item.group or item.id for items in self.items.values() for item in items}
        self.owners = owners_of([i.id for i in self.items["image"]], [c.group for c in self.items["text"]])

    def dense_recall(self, asking: Modality) -> float:
        """R@10 of the dense vectors, in percent."""
        ranks = text_to_image_ranks if asking == "text" else image_to_text_ranks
        return 100 * float(np.mean(ranks(self.vectors["image"], self.vectors["text"], self.owners) < K))

    def recalls(self, index: Index, queries: TermMatrix, asking: Modality) -> list[float]:
        """R@10 in percent for each Rm of RMS."""
        target: Modality = "image" if asking == "text" else "text"
        row = {item.id: i for i, item in enumerate(self.items[target])}
        found = np.zeros(len(RMS))
        for query, vector, hits in zip(
            self.items[asking], self.vectors[asking], index.search(queries, max(RMS) * K, target), strict=True
        ):
            ids = [hit.item.id for hit in hits]
            dense = self.vectors[target][[row[i] for i in ids]] @ vector
            own = np.array([self.group[i] == self.group[query.id] for i in ids], dtype=bool)
            found += [own[: rm * K][np.argsort(-dense[: rm * K], kind="stable")[:K]].any() for rm in RMS]
        return (100 * found / len(self.items[asking])).tolist()


def rows(file: FeatureFile, sparsities: Sequence[float]) -> Iterator[list[object]]:
    """One row a setting and direction."""
    gallery = Gallery(file)
    dense = {asking: gallery.dense_recall(asking) for asking in ("text", "image")}
    with click.progressbar(list(settings(file.header.dim, sparsities)), label="settings", file=sys.stderr) as bar:
        for code, chain, z, codec in bar:
            fit_code(file, codec)
            for asking, target in DIRECTIONS:
                with tempfile.TemporaryDirectory() as folder:
                    index = make(file, target, codec, f"file:{folder}")
                    queries = codec.encode_queries(Embeddings(asking, gallery.vectors[asking]))
                    stored = index.terms([item.id for item in gallery.items[target]])
                    postings = postings_read(document_frequencies(stored), queries)
                    yield [
                        code, chain, z, round(1 - z / codec.n_terms, 4),
                        f"{asking} to {target}", round(postings),
                        round(dense[asking], 2), *(round(r, 2) for r in gallery.recalls(index, queries, asking)),
                    ]  # fmt: skip


def settings(dim: int, sparsities: Sequence[float]) -> Iterator[tuple[str, str, int, SurrogateCodec]]:
    """Each code at each sparsity; documents and queries keep equally many terms, as in the paper."""
    for code in ("scalar", "permutation"):
        for chain, plain in (("plain", True), ("centred, rotated", False)):
            for sparsity in sparsities:
                z = max(1, round((1 - sparsity) * 2 * dim))
                yield code, chain, z, global_code(code, z=z, query_z=z, center=not plain, rotate=not plain)
    if 0 in sparsities:
        yield "scalar", "shifted", 2 * dim, global_code("scalar", rotate=False, shift=True)
        yield "permutation", "shifted, rotated x 8", 16 * dim, global_code("permutation", shift=True, expand=8)


def make(file: FeatureFile, modality: Modality, codec: SurrogateCodec, at: str) -> Index:
    """The embedded index of the file's items of one modality under a fitted codec."""
    with registry.backend(at).create("bench", new_manifest(file, codec), codec.arrays()) as writer:
        for rows in file.batches(modality):
            writer.add(rows.items, codec.encode_documents(embeddings(rows, modality)), rows.dense["vectors"])
        writer.commit()
    return registry.backend(at).open("bench")


def synthetic(path: Path, n: int, dim: int = 32) -> None:
    """A feature file of ``n`` random pictures, each with two captions near it."""
    rng = np.random.default_rng(0)
    images = rng.standard_normal((n, dim))
    texts = np.repeat(images, 2, axis=0) + rng.standard_normal((2 * n, dim))
    with FeatureWriter(path, Header("embeddings", "synthetic:0", "0", dim, "float32", f"synthetic {n}")) as writer:
        pictures = [Item(f"{i:06d}", "image", "", f"{i:06d}") for i in range(n)]
        captions = [Item(f"{i // 2:06d}#{i % 2}", "text", "", f"{i // 2:06d}") for i in range(2 * n)]
        writer.append(3 * n, [Rows(pictures, {"vectors": _unit(images)}), Rows(captions, {"vectors": _unit(texts)})])
        writer.finish()


def _unit(X: NDArray[np.float64]) -> NDArray[np.float32]:
    return (X / np.linalg.norm(X, axis=1, keepdims=True)).astype(np.float32)


@click.command()
@click.argument("features", required=False, type=click.Path(path_type=Path))
@click.option("--synthetic", "count", type=int, help="Random data of so many pictures, in place of FEATURES.")
@click.option("--sparsity", "sparsities", multiple=True, type=float, default=SPARSITIES, show_default=True)
def main(features: Path | None, count: int | None, sparsities: tuple[float, ...]) -> None:
    """Recall@10 against sparsity of the embeddings in FEATURES."""
    if (features is None) == (count is None):
        raise click.UsageError("give either FEATURES or --synthetic N")
    with tempfile.TemporaryDirectory() as folder:
        if count is not None:
            features = Path(folder) / "synthetic.h5"
            synthetic(features, count)
        out = csv.writer(sys.stdout)
        out.writerow(["code", "chain", "z", "sparsity", "direction", "postings", "dense", *(f"Rm={rm}" for rm in RMS)])
        with FeatureFile(str(features)) as file:
            for row in rows(file, sparsities):
                out.writerow(row)
                sys.stdout.flush()


if __name__ == "__main__":
    main()
