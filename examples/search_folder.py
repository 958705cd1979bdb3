"""Search a folder of pictures by a sentence.

    python examples/search_folder.py ~/Pictures clip:clip "two dogs play in the snow"

The first run encodes all pictures; later ones search the existing index. A CSV with the columns image,caption works
like a folder.
"""

import sys

from boc import Searcher, build_index, plugins


def show(label: str, done: int, total: int) -> None:
    print(f"\r{label} {done} of {total}", end="", file=sys.stderr)


def main(folder: str, spec: str, sentence: str) -> None:
    if not plugins.backend("file:boc-data").exists("folder"):
        build_index("folder", folder, encoder=spec, code="dictionary", progress=show)
    for hit in Searcher.open("folder").search(sentence, k=5):
        print(f"{hit.score:.3f}  {hit.item.content}")


if __name__ == "__main__":
    main(*sys.argv[1:])
