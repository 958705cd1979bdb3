"""Race entries for the codes of boc.

The race uses the codes as users do, through ``load_index`` and ``Searcher.search_vectors``. A
search encodes a query vector, reads posting lists, re-ranks by float16 or 8-bit vectors
(``dictionary:2 int8``), and returns hits with content. For batches, ``Searcher.rank_vectors``
returns arrays of ids and scores, as vector libraries do.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from bench.race.data import Data, K, Matrix, log
from bench.race.engine import Engine, Local, Setting, folder_of
from boc import plugins
from boc.codecs import Code, SurrogateCodec, parse_code
from boc.errors import BocError
from boc.inputs.features import FeatureFile
from boc.manage.learn import fit_code
from boc.manage.load import load_index, new_manifest
from boc.plan import vectors_read
from boc.search.options import SearchOptions
from boc.search.searcher import Searcher
from boc.types import Embeddings

NAME = "bench"
INT8 = " int8"
DEPTHS = (50, 100, 150, 200, 300, 500, 1000, 2000)  # numbers of candidates
QUERY_Z = {
    "dictionary": (8, 16, 24, 32, 48, 64, 96, 128, 192),
    "scalar": (32, 64, 128, 256),
    "bits": (32, 64, 96, 128, 256, 512),
}


def code_of(text: str) -> str:
    """Return the code in ``text``. The text can also select 8-bit vectors, as in ``dictionary:2
    int8``."""
    return text.removesuffix(INT8)


def is_raced(text: str) -> bool:
    """Return whether ``text`` is a code such as ``bits:32``. The race chooses all settings except
    for the number of terms per item."""
    try:
        code = parse_code(text)
    except BocError:
        return False
    return code.name in QUERY_Z and code.z is not None and code == Code(code.name, z=code.z)


class CodeEngine(Engine):
    """Index with a code. A setting is a pair of the number of query terms and the number of
    candidates to re-rank."""

    ours = True
    knobs = ("z", "R")

    def __init__(self, data: Data, code: str, searcher: Searcher) -> None:
        parsed = parse_code(code)
        self.data = data
        self.searcher = searcher
        self.codec = searcher.codec
        self.z = parsed.z or 1
        budgets = [z for z in QUERY_Z[parsed.name] if z <= self.codec.n_terms]
        depths = [depth for depth in DEPTHS if depth < data.shape[0]]
        self.grid = list(product(budgets or [self.codec.n_terms], depths or [K]))

    def choose(self, setting: Setting) -> None:
        query_z, self.depth = setting
        self.codec.set_budgets(self.z, query_z)
        self.options = SearchOptions(k=K, rm=self.depth / K, find=self.data.modality)

    def ask(self, query: Matrix) -> Any:
        return self.searcher.search_vectors(Embeddings(self.data.asking, query), self.options)[0]

    def rows(self, answer: Any) -> Sequence[int]:
        return [self.data.rows[hit.item.id] for hit in answer]


class Ours(CodeEngine, Local):
    """Index with a code in the embedded engine."""

    library = "boc"

    def __init__(self, data: Data, folder: Path, code: str) -> None:
        CodeEngine.__init__(self, data, code_of(code), Searcher.open(NAME, f"file:{folder}"))

    @classmethod
    def build(cls, data: Data, folder: Path, code: str, threads: int) -> None:
        codec = load_codec(data, code_of(code))
        vectors = "int8" if code.endswith(INT8) else "float16"
        with FeatureFile(data.gallery) as file:
            manifest = new_manifest(file, codec, vectors=vectors)
            for done in load_index(file, f"file:{folder}", NAME, codec, manifest):
                log(f"{folder.name}: {done} items")

    @classmethod
    def sizes(cls, data: Data, folder: Path, code: str) -> dict[str, int]:
        index = plugins.backend(f"file:{folder}").open(NAME)
        parts = index.sizes()
        codec = sum(array.nbytes for array in index.arrays().values())
        rest = parts["other"] + parts["concepts"] - codec
        return {
            "index": parts["postings"],
            "vectors": parts["vectors"],
            "codec": codec,
            "rest": rest,
        }

    def vectors_read(self, setting: Setting) -> int:
        compact = self.searcher.index.costs.compact
        return vectors_read(setting[1], K) if compact else setting[1]

    def batch(self, queries: Matrix, threads: int) -> Any:
        def rank(some: Matrix) -> Any:
            return self.searcher.rank_vectors(Embeddings(self.data.asking, some), self.options)

        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(rank, np.array_split(queries, threads)))


def fit(data: Data, kind: str) -> None:
    """Fit and save a code such as ``bits``."""
    folder = folder_of(data, f"codec {kind}")
    terms = data.terms if kind == "dictionary" else None
    codec = Code(kind, z=1, query_z=1, terms=terms).codec(data.shape[1])
    for step in codec.steps:
        if "seed" in step.get_params():
            step.set_params(seed=data.seed)
    with FeatureFile(data.gallery) as file:
        fit_code(file, codec)
    arrays: dict[str, Any] = codec.arrays()
    np.savez(folder / "arrays.npz", **arrays)
    (folder / "config.json").write_text(json.dumps(codec.config()))


def load_codec(data: Data, code: str) -> SurrogateCodec:
    """Load the codec of a code such as ``bits:32``, saved by ``fit``."""
    parsed = parse_code(code)
    folder = folder_of(data, f"codec {parsed.name}")
    with np.load(folder / "arrays.npz", allow_pickle=False) as arrays:
        codec = SurrogateCodec.restore(
            json.loads((folder / "config.json").read_text()),
            dict(arrays),
        )
    return codec.set_budgets(parsed.z or 1, min(QUERY_Z[parsed.name][1], codec.n_terms))
