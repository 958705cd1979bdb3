"""Filter a search by your own metadata, and combine it with BM25 over captions.

    python examples/filter_and_words.py photos.h5 "a dog in the snow"

The metadata in this example is artificial: the pictures are assigned to 2024 and 2025
in turn. Write your own metadata as a CSV file with one line per item.
"""

import sys
from pathlib import Path
from typing import Any

import boc
from boc.inputs.features import FeatureFile


def main(features: str, sentence: str) -> None:
    with FeatureFile(features) as file:
        lines = [f"{key},{2024 + i % 2}" for i, key in enumerate(file.ids("image"))]
    text = "\n".join(["id,year:integer", *lines])
    Path("metadata.csv").write_text(text, encoding="utf-8")
    boc.build_index("dated", features, metadata="metadata.csv", replace=True)

    index = boc.open("dated")
    searches: dict[str, dict[str, Any]] = {
        "all": {},
        "from 2025": {"filters": "year>=2025"},
        "ranks of vectors and words fused": {"find": "text", "hybrid": "rrf"},
    }
    for title, options in searches.items():
        print(title)
        for hit in index.search(sentence, k=3, **options):
            print(f"  {hit.score:10.3f}  {hit.id}  {hit.fields.get('year')}")


if __name__ == "__main__":
    main(*sys.argv[1:])
