"""Filters on metadata, and hybrid search with BM25 over the words of captions.

    python examples/hybrid_and_filters.py photos.h5 "a dog in the snow"

The metadata is made up here: every second picture is of 2024, the others of 2025. Yours is a CSV with one line per
item.
"""

import sys
from pathlib import Path

from boc import Filter, Searcher, build_index
from boc.inputs.features import FeatureFile


def main(features: str, sentence: str) -> None:
    with FeatureFile(features) as file:
        lines = [f"{key},{2024 + i % 2}" for i, key in enumerate(file.ids("image"))]
    Path("metadata.csv").write_text("\n".join(["id,year:integer", *lines]), encoding="utf-8")
    build_index("dated", features, metadata="metadata.csv", replace=True)

    searcher = Searcher.open("dated")
    late = Filter("year", ">=", 2025)
    for title, options in (
        ("all", {}),
        ("of 2025", {"filters": [late]}),
        ("ranks of vectors and words fused", {"find": "text", "hybrid": "rrf"}),
        ("scores of terms and words added", {"find": "text", "hybrid": "sum", "words_weight": 1000.0}),
    ):
        print(title)
        for hit in searcher.search(sentence, k=3, **options):
            print(f"  {hit.score:10.3f}  {hit.item.id}  {hit.item.fields.get('year')}")


if __name__ == "__main__":
    main(*sys.argv[1:])
