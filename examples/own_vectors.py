"""Bring vectors of your own, here random ones: write a feature file, index it, search by a vector.

    python examples/own_vectors.py

Needs no torch. Pictures and sentences of one encoder stand in one file; a caption's group is the id of its picture.
"""

import hashlib

import numpy as np

from boc import plugins
from boc.build import build_index, fit_code, new_manifest
from boc.codecs import global_code
from boc.inputs.feature_writer import FeatureWriter
from boc.inputs.features import FeatureFile, Header
from boc.inputs.sources import Source
from boc.search import Searcher
from boc.types import Embeddings, Item, Rows


def main() -> None:
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((2000, 64), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    items = [Item(f"{i:04}.jpg", "image", f"/pictures/{i:04}.jpg", f"{i:04}.jpg") for i in range(len(vectors))]

    weights = hashlib.sha256(b"what tells one version of your network from the next").hexdigest()
    header = Header("embeddings", "mine:1", weights, vectors.shape[1], "float16", Source(items).digest)
    with FeatureWriter("mine.h5", header) as writer:
        for start in range(writer.done, len(items), 500):  # killed, it goes on at writer.done
            batch = slice(start, start + 500)
            writer.append(500, [Rows(items[batch], {"vectors": vectors[batch]})])
        writer.finish()

    with FeatureFile("mine.h5") as file:
        codec = fit_code(file, global_code("scalar", z=32, query_z=64))
        for _ in build_index(file, "file:boc-data", "mine", codec, new_manifest(file, codec)):
            pass

    searcher = Searcher(plugins.backend("file:boc-data").open("mine"))
    for hit in searcher.search_vectors(Embeddings("image", vectors[7:8]), k=3)[0]:
        print(f"{hit.score:.3f}  {hit.item.id}")


if __name__ == "__main__":
    main()
