"""Compare the recall of codes at different numbers of terms, before re-ranking.

    python examples/compare_codes.py photos.h5

Recall is the fraction of the exact ten nearest items. Postings is the number of
postings that a query reads. The example does not create an index.
"""

import sys

import numpy as np

from boc.codecs import Code
from boc.inputs.features import FeatureFile
from boc.types import Embeddings


def main(features: str) -> None:
    with FeatureFile(features) as file:
        items = Embeddings("image", file.vectors("image"))
    dim = items.vectors.shape[1]
    queries = Embeddings("image", items.vectors[:100])
    exact = np.argsort(-(queries.vectors @ items.vectors.T), axis=1)[:, :10]
    codes = [
        Code(name, z=z, query_z=z)
        for name in ("scalar", "permutation")
        for z in (max(1, dim // 32), dim // 8, dim // 2)
    ]
    print("postings  recall@10  code")
    for code in [*codes, Code("dictionary")]:
        codec = code.codec(dim).fit(items)
        documents = codec.encode_documents(items)
        terms = codec.encode_queries(queries)
        best = np.argsort(-(terms @ documents.T).toarray(), axis=1, kind="stable")[:, :10]
        pairs = zip(best, exact, strict=True)
        recall = np.mean([len(set(a) & set(b)) / 10 for a, b in pairs])
        postings = (terms > 0).astype(np.int64) @ np.diff(documents.tocsc().indptr)
        print(f"{postings.mean():8.0f}  {recall:9.3f}  {code}")


if __name__ == "__main__":
    main(*sys.argv[1:])
