"""Search a folder of pictures by a sentence, or by a picture.

    python examples/search_folder.py ~/Pictures clip "two dogs play in the snow"
    python examples/search_folder.py ~/Pictures clip dog.jpg

The first run encodes all pictures, and later runs encode only new and changed pictures.
Instead of a folder, you can pass a CSV file with the columns image,caption.
"""

import sys
from pathlib import Path

import boc


def main(folder: str, encoder: str, query: str) -> None:
    if "folder" not in boc.index_names():
        boc.build_index("folder", folder, encoder=encoder, code="dictionary")
    index = boc.open("folder")
    index.sync(folder)
    by_picture = Path(query).is_file()
    hits = index.search(image=query, k=5) if by_picture else index.search(query, k=5)
    for hit in hits:
        print(f"{hit.score:.3f}  {hit.path}")


if __name__ == "__main__":
    main(*sys.argv[1:])
