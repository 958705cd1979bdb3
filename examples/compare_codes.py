"""How much recall a code keeps when it keeps fewer terms: recall of the exact ten nearest, before re-scoring.

    python examples/compare_codes.py                 # random vectors in clusters
    python examples/compare_codes.py photos.h5       # the pictures of a feature file

Postings are what a query reads: the sum of the lengths of its posting lists. No index is made.
"""

import sys

import numpy as np
from numpy.typing import NDArray

from boc.codecs import SurrogateCodec, global_code
from boc.inputs.features import FeatureFile
from boc.types import Embeddings


def clustered(n: int, dim: int, rng: np.random.Generator) -> NDArray[np.float32]:
    centres = rng.standard_normal((n // 50, dim))
    rows = centres[rng.integers(len(centres), size=n)] + rng.standard_normal((n, dim))
    return np.float32(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def report(title: str, codec: SurrogateCodec, items: Embeddings, asked: NDArray[np.float32]) -> None:
    documents, queries = codec.encode_documents(items), codec.encode_queries(Embeddings("image", asked))
    exact = np.argsort(-(asked @ items.vectors.T), axis=1)[:, :10]
    found = np.argsort(-(queries @ documents.T).toarray(), axis=1, kind="stable")[:, :10]
    recall = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found, exact, strict=True)])
    postings = (queries > 0).astype(np.int64) @ np.diff(documents.tocsc().indptr)
    print(f"{title}  {postings.mean():8.0f}  {recall:9.3f}")


def main(features: str = "") -> None:
    if features:
        with FeatureFile(features) as file:
            vectors = file.vectors("image")
    else:
        vectors = clustered(5000, 128, np.random.default_rng(0))
    items, asked = Embeddings("image", vectors), vectors[::50]
    print("code         sparsity  postings  recall@10")
    for code in ("scalar", "permutation"):
        for sparsity in (0.99, 0.95, 0.9, 0.75):
            z = max(1, round((1 - sparsity) * 2 * vectors.shape[1]))  # of the components and their opposites
            report(f"{code:11s}  {sparsity:8.2f}", global_code(code, z=z, query_z=z).fit(items), items, asked)
    report("dictionary          -", global_code("dictionary").fit(items), items, asked)


if __name__ == "__main__":
    main(*sys.argv[1:])
