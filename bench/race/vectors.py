"""Race entries for vector search with faiss, usearch and other libraries."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.race.data import Data, K, Matrix, log
from bench.race.engine import Local, Setting, UnavailableError
from boc.rerank.dot import dot

EF_CONSTRUCTION = 100
EFS = (10, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128, 256)
PROBES = (4, 8, 16, 24, 32, 48, 64, 96, 128, 256)


class Faiss(Local):
    """Base of faiss indexes."""

    library = "faiss"
    index: Any

    def __init__(self, data: Data, folder: Path, code: str) -> None:
        import faiss

        self.data = data
        self.index = faiss.read_index(str(folder / "index.faiss"))

    @staticmethod
    def fill(index: Any, data: Data, folder: Path, train: int = 0) -> None:
        """Train on a sample of rows, add all rows, and write the file."""
        import faiss

        if train:
            step = max(1, data.shape[0] // train)
            index.train(data.vectors[::step].astype(np.float32))
        for _, block in data.blocks():
            index.add(block)
            log(f"{folder.name}: {index.ntotal} items")
        faiss.write_index(index, str(folder / "index.faiss"))

    def ask(self, query: Matrix) -> Any:
        return self.index.search(query, K)[1][0]

    def batch(self, queries: Matrix, threads: int) -> Any:
        return self.index.search(queries, K)


class Flat(Faiss):
    """Exhaustive search over the gallery's vectors."""

    kind = "Flat"
    grid = ((),)
    beside = 4

    def __init__(self, data: Data, folder: Path, code: str) -> None:
        self.index = self._build(replace(data))  # the copy does not map the gallery

    @staticmethod
    def _build(data: Data) -> Any:
        import faiss

        index = faiss.IndexFlatIP(data.shape[1])
        for _, block in data.blocks():
            index.add(block)
        return index

    @classmethod
    def build(cls, data: Data, folder: Path, code: str, threads: int) -> None:
        cls._build(data)

    def choose(self, setting: Setting) -> None:
        pass


class Hnsw(Faiss):
    """HNSW graph with 32 neighbours per node."""

    kind = "HNSW32"
    knobs = ("ef",)
    grid = tuple((ef,) for ef in EFS)
    inside = 4

    @classmethod
    def build(cls, data: Data, folder: Path, code: str, threads: int) -> None:
        import faiss

        index: Any = faiss.IndexHNSWFlat(data.shape[1], 32, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = EF_CONSTRUCTION
        cls.fill(index, data, folder)

    def choose(self, setting: Setting) -> None:
        (self.index.hnsw.efSearch,) = setting


class Ivf(Faiss):
    """Inverted file with 4 sqrt(n) cells of 8-bit vectors; the first R items are re-ranked by
    float16."""

    kind = "IVF,SQ8"
    knobs = ("nprobe", "R")
    beside = 2
    depths: Sequence[int] = (50,)
    lists: Any

    def __init__(self, data: Data, folder: Path, code: str) -> None:
        import faiss

        super().__init__(data, folder, code)
        self.lists = faiss.extract_index_ivf(self.index)  # also works with a rotation
        self.grid = list(
            product([probes for probes in PROBES if probes <= self.lists.nlist], self.depths),
        )

    @classmethod
    def factory(cls, cells: int, dim: int) -> str:
        """Return the description of the index for the faiss factory."""
        return f"IVF{cells},SQ8"

    @classmethod
    def build(cls, data: Data, folder: Path, code: str, threads: int) -> None:
        import faiss

        count, dim = data.shape
        cells = max(1, round(4 * count**0.5))
        name = cls.factory(cells, dim)
        try:
            index = faiss.index_factory(dim, name, faiss.METRIC_INNER_PRODUCT)
        except RuntimeError as error:
            raise UnavailableError(
                f"faiss {faiss.__version__} has no {name}; install a newer version",
            ) from error
        cls.fill(index, data, folder, min(count, 64 * cells))

    def choose(self, setting: Setting) -> None:
        self.lists.nprobe, self.depth = setting

    def ask(self, query: Matrix) -> Any:
        return self.best(query, self.index.search(query, self.depth)[1][0])

    def batch(self, queries: Matrix, threads: int) -> Any:
        rows = self.index.search(queries, self.depth)[1]
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(self.best, queries[:, None], rows))

    def vectors_read(self, setting: Setting) -> int:
        return setting[1]

    def best(self, query: Matrix, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the K rows among ``rows`` that are nearest to the query by their float16
        vectors."""
        # faiss pads its results with -1.
        rows = np.sort(rows[rows >= 0])
        scores = dot(query[0], self.data.halves, rows)
        order = np.argsort(-scores, kind="stable")
        best: NDArray[np.int64] = rows[order[:K]]
        return best


class IvfPq(Ivf):
    """Inverted file with product quantization, 4 bits per 4 components, whose tables fit into
    registers ("fast scan")."""

    kind = "IVF,PQ fast scan"
    depths = (20, 30, 50, 100, 200)

    @classmethod
    def factory(cls, cells: int, dim: int) -> str:
        # Parts have four components, or the number closest to four that divides the width.
        parts = max(1, dim // 4)
        while dim % parts:
            parts -= 1
        return f"IVF{cells},PQ{parts}x4fs"


class Usearch(Local):
    """Graph with 32 neighbours per node over float16 vectors."""

    library = "usearch"
    kind = "HNSW32 float16"
    knobs = ("ef",)
    grid = Hnsw.grid
    inside = 2

    def __init__(self, data: Data, folder: Path, code: str) -> None:
        self.index = self._empty(data)
        self.index.load(str(folder / "index.usearch"))

    @staticmethod
    def _empty(data: Data) -> Any:
        from usearch.index import Index

        return Index(
            ndim=data.shape[1],
            metric="ip",
            dtype="f16",
            connectivity=32,
            expansion_add=EF_CONSTRUCTION,
        )

    @classmethod
    def build(cls, data: Data, folder: Path, code: str, threads: int) -> None:
        index = cls._empty(data)
        for start, block in data.blocks():
            index.add(np.arange(start, start + len(block)), block, threads=threads)
            log(f"{folder.name}: {start + len(block)} items")
        index.save(str(folder / "index.usearch"))

    def choose(self, setting: Setting) -> None:
        (self.index.expansion_search,) = setting

    def ask(self, query: Matrix) -> Any:
        return self.index.search(query[0], K, threads=1).keys

    def batch(self, queries: Matrix, threads: int) -> Any:
        return self.index.search(queries, K, threads=threads).keys


class Scann(Local):
    """Tree of 2 sqrt(n) leaves with anisotropic quantization. Each vector is also stored in a
    second leaf that compensates for the error of the first leaf (SOAR)."""

    library = "scann"
    kind = "tree, SOAR, AH"
    knobs = ("leaves", "R")
    inside = 4

    def __init__(self, data: Data, folder: Path, code: str) -> None:
        scann = _module("scann")
        self.index = scann.scann_ops_pybind.load_searcher(str(folder))
        leaves = _leaves(data)
        self.grid = list(
            product([probes for probes in PROBES if probes <= leaves] or [leaves], IvfPq.depths),
        )

    @classmethod
    def build(cls, data: Data, folder: Path, code: str, threads: int) -> None:
        builder = _module("scann").scann_ops_pybind.builder(
            data.vectors.astype(np.float32),
            K,
            "dot_product",
        )
        leaves = _leaves(data)
        tree = builder.tree(
            leaves,
            min(leaves, 16),
            training_sample_size=data.shape[0],
            soar_lambda=1.5,
        )
        searcher = tree.score_ah(2, anisotropic_quantization_threshold=0.2).reorder(100).build()
        searcher.serialize(str(folder))

    def choose(self, setting: Setting) -> None:
        self.leaves, self.depth = setting

    def ask(self, query: Matrix) -> Any:
        return self.index.search(query[0], K, self.depth, self.leaves)[0]

    def batch(self, queries: Matrix, threads: int) -> Any:
        search = self.index.search_batched if threads == 1 else self.index.search_batched_parallel
        return search(queries, K, self.depth, self.leaves)[0]

    def vectors_read(self, setting: Setting) -> int:
        return setting[1]


class Symphony(Local):
    """SymphonyQG, a graph whose nodes store one-bit codes of their 32 neighbours."""

    library = "rabitqlib"
    kind = "SymphonyQG32"
    knobs = ("ef",)
    grid = (*Hnsw.grid, (512,))
    inside = 4

    def __init__(self, data: Data, folder: Path, code: str) -> None:
        self.index = _module("rabitqlib").SymqgIndex.load(str(folder / "index.symqg"))

    @classmethod
    def build(cls, data: Data, folder: Path, code: str, threads: int) -> None:
        index = _module("rabitqlib").SymqgIndex(data.shape[1], 32, "ip")
        try:
            index.build(data.vectors.astype(np.float32), 200, threads)
        except ValueError as error:
            raise UnavailableError(f"{error}: {data.shape[1]}") from error
        index.save(str(folder / "index.symqg"))

    def choose(self, setting: Setting) -> None:
        (self.ef,) = setting

    def ask(self, query: Matrix) -> Any:
        return self.index.search(query, K, self.ef)[0][0]

    def batch(self, queries: Matrix, threads: int) -> Any:
        return self.index.search_batch(queries, K, self.ef, threads)[0]


def _leaves(data: Data) -> int:
    return max(1, round(2 * math.sqrt(data.shape[0])))


def _module(name: str) -> Any:
    """Import an optional library."""
    try:
        return import_module(name)
    except ImportError as error:
        raise UnavailableError(f"pip install {name}") from error
