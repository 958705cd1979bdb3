"""Search an index by a picture: pictures like it, and sentences for it.

python examples/search_by_picture.py photos file:boc-data dog.jpg
"""

import sys

from boc.errors import BocError
from boc.search import Searcher


def main(name: str, at: str, picture: str) -> None:
    searcher = Searcher.open(name, at)
    for hit in searcher.search(image=picture, k=3):
        print(f"{hit.score:.3f}  {hit.item.id}")
    try:
        for hit in searcher.search(image=picture, find="text", k=3):
            print(f"{hit.score:.3f}  {hit.item.content}")
    except BocError as error:  # an index of a plain folder has no sentences
        print(error)


if __name__ == "__main__":
    main(*sys.argv[1:])
