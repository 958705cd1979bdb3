"""Load a feature file into a search server, and check that its scores are the dot products of the codes.

    python examples/load_into_server.py photos.h5 elastic+http://localhost:9200
    BOC_PASSWORD=... python examples/load_into_server.py photos.h5 opensearch+https://user@search.example.org

The address may be a folder too, file:boc-data: what works there works on a server. Killed, the same command goes on.
"""

import sys

from boc import plugins
from boc.build import build_index, fit_code, new_manifest
from boc.codecs import global_code
from boc.evaluate.verify import verify
from boc.inputs.features import FeatureFile


def main(features: str, at: str) -> None:
    backend = plugins.backend(at)
    for label, value in backend.about().items():
        print(f"{label}: {value}")
    with FeatureFile(features) as file:
        codec = fit_code(file, global_code("dictionary", terms=64))
        for done in build_index(file, at, "boc-example", codec, new_manifest(file, codec)):
            print(f"\rloaded {done}", end="", file=sys.stderr)
    found = verify(backend.open("boc-example"))
    print(f"{found.pairs} scores compared, {'all' if found.right else 'not all'} as they should be")
    backend.remove("boc-example")


if __name__ == "__main__":
    main(*sys.argv[1:])
