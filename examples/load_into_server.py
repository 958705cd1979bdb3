"""Load a feature file into a search server, and check that its scores are the dot products of the codes.

    python examples/load_into_server.py photos.h5 elastic+http://localhost:9200
    BOC_PASSWORD=... python examples/load_into_server.py photos.h5 opensearch+https://user@search.example.org

The address may be a folder too, file:boc-data: what works there works on a server. After a kill, the same command
continues.
"""

import sys

from boc import build_index, plugins
from boc.evaluate.verify import verify


def show(label: str, done: int, total: int) -> None:
    print(f"\r{label} {done} of {total}", end="", file=sys.stderr)


def main(features: str, at: str) -> None:
    backend = plugins.backend(at)
    for label, value in backend.about().items():
        print(f"{label}: {value}")
    build_index("boc-example", features, at=at, code="dictionary(terms=64)", progress=show)
    found = verify(backend.open("boc-example"))
    print(f"{found.pairs} scores compared, {'all' if found.right else 'not all'} as they should be")
    backend.remove("boc-example")


if __name__ == "__main__":
    main(*sys.argv[1:])
