"""Build your own code from steps, fit and save it like a scikit-learn transformer, and
search by a sparse matrix product.

    python examples/own_code.py photos.h5

A code is saved as a configuration and arrays. Surrogate text represents the same matrix
as words, for use with any text search engine.
"""

import sys

from boc.codecs import Center, CReLU, ScalarQuantizer, SurrogateCodec, TopZ
from boc.codecs.surrogate_text import to_counts
from boc.inputs.features import FeatureFile
from boc.types import Embeddings


def main(features: str) -> None:
    with FeatureFile(features) as file:
        ids = file.ids("image")
        items = Embeddings("image", file.vectors("image"))
    chain = [Center(), CReLU(), TopZ(8, 16), ScalarQuantizer(500)]
    codec = SurrogateCodec(chain).fit(items)
    again = SurrogateCodec.restore(codec.config(), codec.arrays())

    documents = again.encode_documents(
        items,
    )  # (n, n_terms); boc.build_index(..., code=codec) uses the same code
    query = again.encode_queries(Embeddings("image", items.vectors[:1]))
    scores = (query @ documents.T).toarray()[0]
    for row in scores.argsort(kind="stable")[::-1][:3]:
        print(f"{scores[row]}  {ids[row]}  {to_counts(documents[[row]])[0]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
