"""Search a folder of pictures by a sentence.

    python examples/search_folder.py ~/Pictures clip:clip "two dogs play in the snow"

The first run encodes all pictures; later ones search what is there. A CSV of image,caption does as well as a folder.
"""

import sys
from pathlib import Path

from boc import plugins
from boc.build import build_index, fit_code, new_manifest
from boc.codecs import global_code
from boc.inputs.extraction import Extraction
from boc.inputs.features import FeatureFile
from boc.inputs.sources import open_source
from boc.search import Searcher

AT = "file:boc-data"


def index(folder: Path, spec: str) -> None:
    """Make the index ``folder`` of everything in a folder."""
    extraction = Extraction(open_source(folder), Path("folder.h5"), encoder=plugins.encoder(spec))
    for done in extraction.run():
        print(f"\rencoded {done} of {extraction.total}", end="", file=sys.stderr)
    with FeatureFile("folder.h5") as file:
        codec = fit_code(file, global_code("dictionary"))
        for _ in build_index(file, AT, "folder", codec, new_manifest(file, codec)):
            pass


def main(folder: str, spec: str, sentence: str) -> None:
    if not plugins.backend(AT).exists("folder"):
        index(Path(folder), spec)
    for hit in Searcher.open("folder", AT).search(sentence, k=5):
        print(f"{hit.score:.3f}  {hit.item.content}")


if __name__ == "__main__":
    main(*sys.argv[1:])
