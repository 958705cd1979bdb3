"""Conditions on metadata, and the words of captions counted beside the vectors.

    python examples/hybrid_and_filters.py photos.h5 "a dog in the snow"

The metadata is made up here: every second picture is of 2024, the others of 2025. Yours is a CSV with one line an item.
"""

import sys
from pathlib import Path

from boc.build import build_index, fit_code, new_manifest
from boc.codecs import global_code
from boc.inputs.features import FeatureFile
from boc.inputs.metadata import Metadata, parse_filter
from boc.search import Searcher

AT = "file:boc-data"


def main(features: str, sentence: str) -> None:
    with FeatureFile(features) as file:
        lines = [f"{key},{2024 + i % 2}" for i, key in enumerate(file.ids("image"))]
        Path("metadata.csv").write_text("\n".join(["id,year:integer", *lines]), encoding="utf-8")
        metadata = Metadata.read(Path("metadata.csv"))
        codec = fit_code(file, global_code("scalar"))
        manifest = new_manifest(file, codec, metadata=metadata)
        for _ in build_index(file, AT, "dated", codec, manifest, metadata):
            pass

    searcher = Searcher.open("dated", AT)
    late = parse_filter("year>=2025", searcher.index.manifest.fields)
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
