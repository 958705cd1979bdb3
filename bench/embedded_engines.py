"""The engines that are compared: ours, scipy, tantivy, faiss and usearch; each builds, opens and answers.

An index has a name, of the engine and of the code if it is over one: ``boc bits:64``, ``hnsw32``. Ours is the whole
public path, ``build_index`` and ``Searcher.search_vectors``: query encoding, posting lists, re-scoring from float16,
hits with their content. ``scipy`` (product with the transposed term matrix, ``argpartition``) and ``tantivy`` (terms as
words of a document, weights of the query as boosts; it does not see the frequencies of documents, whose lengths are
equal) answer from the same codes and re-score in the same way, and so does IVF,SQ8; their bytes count float16 vectors.
Their time to build is that of encoding and of what they add.

``built`` makes each index once, in a process of its own, in a folder of its own; what is there is not built again.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from embedded_data import Data, K, Matrix, told
from numpy.typing import NDArray

from boc.codecs import SurrogateCodec, global_code
from boc.features import FeatureFile
from boc.pipeline import Searcher, build_index, fit_code, new_manifest
from boc.rerank import dot
from boc.types import Embeddings, TermMatrix

NAME = "bench"
EF_CONSTRUCTION = 100
DEPTHS = (50, 100, 150, 200, 300, 500, 1000)  # candidates
QUERY_Z = {"dictionary": (8, 16, 24, 32, 48, 64, 96, 128), "scalar": (32, 64, 128, 256), "bits": (32, 64, 128, 256)}
EFS = (10, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128, 256)
PROBES = (4, 8, 16, 24, 32, 48, 64, 96, 128, 256)
CODES = ("scalar:64", "bits:64", "dictionary:2", "dictionary:4")
PROCESSORS = os.sched_getaffinity(0)

Setting = tuple[int, ...]


class Engine(ABC):
    """An opened index. ``ask`` is timed; ``rows`` turns its answer into row numbers afterwards."""

    grid: Sequence[Setting]

    @classmethod
    @abstractmethod
    def build(cls, data: Data, folder: Path, code: str, threads: int) -> float:
        """Fill an empty ``folder``; seconds."""

    @abstractmethod
    def __init__(self, data: Data, folder: Path, code: str) -> None:
        """Open what ``build`` left in ``folder``."""

    @abstractmethod
    def choose(self, setting: Setting) -> None:
        """Answer at ``setting``, one of ``grid``, from now on."""

    @abstractmethod
    def ask(self, query: Matrix) -> Any:
        """The answer to one query (1, d)."""

    def batch(self, queries: Matrix, threads: int) -> Any:
        """The answers to queries (n, d); here one a call from several threads, for what has no batches."""
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(lambda i: self.ask(queries[i : i + 1]), range(len(queries))))

    def rows(self, answer: Any) -> Sequence[int]:
        found: list[int] = answer.tolist()
        return found


class Coded(Engine):
    """An index over a code; a setting is the terms of a query and the candidates that are re-scored."""

    def __init__(self, data: Data, code: str, codec: SurrogateCodec) -> None:
        kind, z = code.split(":")
        self.data, self.codec, self.z = data, codec, int(z)
        budgets = [z for z in QUERY_Z[kind] if z <= codec.n_terms] or [codec.n_terms]
        self.grid = list(product(budgets, [depth for depth in DEPTHS if depth < data.shape[0]]))

    def choose(self, setting: Setting) -> None:
        query_z, self.depth = setting
        self.codec.budgeted(self.z, query_z)

    def terms(self, query: Matrix) -> TermMatrix:
        return self.codec.encode_queries(Embeddings(self.data.modality, query))


class Ours(Coded):
    """The embedded engine."""

    def __init__(self, data: Data, folder: Path, code: str) -> None:
        self.searcher = Searcher.open(NAME, f"file:{folder}")
        super().__init__(data, code, self.searcher.codec)

    @classmethod
    def build(cls, data: Data, folder: Path, code: str, threads: int) -> float:
        codec = fitted(data, code)
        with FeatureFile(data.gallery) as file:
            manifest = replace(new_manifest(file, codec), vector_dtype="float16")
            begun = time.perf_counter()
            for done in build_index(file, f"file:{folder}", NAME, codec, manifest):
                told(f"{folder.name}: {done} items")
        return time.perf_counter() - begun

    def ask(self, query: Matrix) -> Any:
        modality = self.data.modality
        return self.searcher.search_vectors(Embeddings(modality, query), k=K, rm=self.depth / K, find=modality)

    def batch(self, queries: Matrix, threads: int) -> Any:
        return self.ask(queries)

    def rows(self, answer: Any) -> Sequence[int]:
        return [self.data.rows[hit.item.id] for hit in answer[0]]


class Scipy(Coded):
    """Products of sparse matrices."""

    def __init__(self, data: Data, folder: Path, code: str) -> None:
        from scipy import sparse

        super().__init__(data, code, fitted(data, code))
        self.postings = sparse.load_npz(folder / "postings.npz")

    @classmethod
    def build(cls, data: Data, folder: Path, code: str, threads: int) -> float:
        from scipy import sparse

        begun = time.perf_counter()
        postings = sparse.vstack(list(encoded(data, code)), format="csr").T.tocsr()
        sparse.save_npz(folder / "postings.npz", postings, compressed=False)
        return time.perf_counter() - begun

    def ask(self, query: Matrix) -> Any:
        scores = self.terms(query) @ self.postings
        rows = scores.indices
        if len(rows) > self.depth:
            rows = rows[np.argpartition(-scores.data, self.depth)[: self.depth]]
        return rescored(query, rows.astype(np.int64), self.data)


class Tantivy(Coded):
    """Terms as words, BM25 with weights over idf as boosts: what is left of it is the sum of the weights."""

    def __init__(self, data: Data, folder: Path, code: str) -> None:
        import tantivy

        super().__init__(data, code, fitted(data, code))
        self.schema, self.searcher = self._schema(), tantivy.Index.open(str(folder)).searcher()
        seen = np.array([self.searcher.doc_freq("terms", str(term)) for term in range(self.codec.n_terms)])
        self.idf = np.log(1 + (data.shape[0] - seen + 0.5) / (seen + 0.5))

    @staticmethod
    def _schema() -> Any:
        import tantivy

        builder = tantivy.SchemaBuilder()
        builder.add_text_field("terms", tokenizer_name="whitespace", index_option="basic")
        builder.add_integer_field("row", fast=True)
        return builder.build()

    @classmethod
    def build(cls, data: Data, folder: Path, code: str, threads: int) -> float:
        import tantivy

        begun, row = time.perf_counter(), 0
        writer = tantivy.Index(cls._schema(), path=str(folder)).writer(500_000_000, threads)
        for terms in encoded(data, code):
            for low, high in zip(terms.indptr[:-1], terms.indptr[1:], strict=True):
                words = " ".join(map(str, terms.indices[low:high].tolist()))
                writer.add_document(tantivy.Document(row=row, terms=words))
                row += 1
        writer.commit()
        writer.wait_merging_threads()
        return time.perf_counter() - begun

    def ask(self, query: Matrix) -> Any:
        import tantivy

        terms = self.terms(query)
        boosts = terms.data / self.idf[terms.indices]
        should, Query = tantivy.Occur.Should, tantivy.Query
        words = [Query.term_query(self.schema, "terms", str(term), index_option="basic") for term in terms.indices]
        asked = Query.boolean_query(
            [(should, Query.boost_query(word, boost)) for word, boost in zip(words, boosts.tolist(), strict=True)]
        )
        hits = self.searcher.search(asked, limit=self.depth, count=False).hits
        rows = self.searcher.fast_field_values("row", [address for _, address in hits])
        return rescored(query, np.array(rows, np.int64), self.data)


class Faiss(Engine):
    """What the indexes of faiss share."""

    def __init__(self, data: Data, folder: Path, code: str) -> None:
        import faiss

        self.data, self.index = data, faiss.read_index(str(folder / "index.faiss"))

    @staticmethod
    def filled(index: Any, data: Data, folder: Path, train: int = 0) -> float:
        """Seconds to train on some rows, add all, and write the file."""
        import faiss

        begun = time.perf_counter()
        if train:
            step = max(1, data.shape[0] // train)
            index.train(data.stored[::step].astype(np.float32))
        for _, block in data.blocks():
            index.add(block)
            told(f"{folder.name}: {index.ntotal} items")
        faiss.write_index(index, str(folder / "index.faiss"))
        return time.perf_counter() - begun

    def ask(self, query: Matrix) -> Any:
        return self.index.search(query, K)[1][0]

    def batch(self, queries: Matrix, threads: int) -> Any:
        return self.index.search(queries, K)


class Flat(Faiss):
    """Nothing but the vectors, which are read from the gallery."""

    grid = ((),)

    def __init__(self, data: Data, folder: Path, code: str) -> None:
        self.index = self._filled(replace(data))  # which forgets its map of the gallery

    @staticmethod
    def _filled(data: Data) -> Any:
        import faiss

        index = faiss.IndexFlatIP(data.shape[1])
        for _, block in data.blocks():
            index.add(block)
        return index

    @classmethod
    def build(cls, data: Data, folder: Path, code: str, threads: int) -> float:
        begun = time.perf_counter()
        cls._filled(data)
        return time.perf_counter() - begun

    def choose(self, setting: Setting) -> None:
        pass


class Hnsw(Faiss):
    """A graph of 32 neighbours a node."""

    grid = tuple((ef,) for ef in EFS)

    @classmethod
    def build(cls, data: Data, folder: Path, code: str, threads: int) -> float:
        import faiss

        index = faiss.IndexHNSWFlat(data.shape[1], 32, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = EF_CONSTRUCTION
        return cls.filled(index, data, folder)

    def choose(self, setting: Setting) -> None:
        (self.index.hnsw.efSearch,) = setting


class Ivf(Faiss):
    """4 sqrt(n) cells of bytes, the first 50 re-scored."""

    depth = 50

    def __init__(self, data: Data, folder: Path, code: str) -> None:
        super().__init__(data, folder, code)
        self.grid = [(probes,) for probes in PROBES if probes <= self.index.nlist]

    @classmethod
    def build(cls, data: Data, folder: Path, code: str, threads: int) -> float:
        import faiss

        count, dim = data.shape
        cells = max(1, round(4 * count**0.5))
        index = faiss.index_factory(dim, f"IVF{cells},SQ8", faiss.METRIC_INNER_PRODUCT)
        return cls.filled(index, data, folder, min(count, 64 * cells))

    def choose(self, setting: Setting) -> None:
        (self.index.nprobe,) = setting

    def ask(self, query: Matrix) -> Any:
        return self._best(query, self.index.search(query, self.depth)[1][0])

    def batch(self, queries: Matrix, threads: int) -> Any:
        found = self.index.search(queries, self.depth)[1]
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(lambda i: self._best(queries[i : i + 1], found[i]), range(len(queries))))

    def _best(self, query: Matrix, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return rescored(query, rows[rows >= 0], self.data)  # faiss fills up with -1


class Usearch(Engine):
    """A graph of 32 neighbours a node over float16."""

    grid = Hnsw.grid

    def __init__(self, data: Data, folder: Path, code: str) -> None:
        self.index = self._empty(data)
        self.index.load(str(folder / "index.usearch"))

    @staticmethod
    def _empty(data: Data) -> Any:
        from usearch.index import Index

        return Index(ndim=data.shape[1], metric="ip", dtype="f16", connectivity=32, expansion_add=EF_CONSTRUCTION)

    @classmethod
    def build(cls, data: Data, folder: Path, code: str, threads: int) -> float:
        index, begun = cls._empty(data), time.perf_counter()
        for start, block in data.blocks():
            index.add(np.arange(start, start + len(block)), block, threads=threads)
            told(f"{folder.name}: {start + len(block)} items")
        index.save(str(folder / "index.usearch"))
        return time.perf_counter() - begun

    def choose(self, setting: Setting) -> None:
        (self.index.expansion_search,) = setting

    def ask(self, query: Matrix) -> Any:
        return self.index.search(query[0], K, threads=1).keys

    def batch(self, queries: Matrix, threads: int) -> Any:
        return self.index.search(queries, K, threads=threads).keys


def rescored(query: Matrix, rows: NDArray[np.int64], data: Data) -> NDArray[np.int64]:
    """The K of ``rows`` nearest to the query, by float16."""
    rows = np.sort(rows)
    scores = dot(query[0], data.halves, rows)
    best: NDArray[np.int64] = rows[np.argsort(-scores, kind="stable")[:K]]
    return best


ENGINES: dict[str, type[Engine]] = {
    "boc": Ours, "scipy": Scipy, "tantivy": Tantivy,
    "flat": Flat, "hnsw32": Hnsw, "ivf-sq8": Ivf, "usearch-f16": Usearch,
}  # fmt: skip
STORED = {"scipy": 2, "tantivy": 2, "ivf-sq8": 2, "flat": 4}  # bytes a component of the vectors beside the index


def all_names() -> list[str]:
    """The indexes that are compared unless others are asked for."""
    coded = [f"{engine} {code}" for engine in ("boc", "scipy", "tantivy") for code in CODES]
    return [name for name in coded if name != "tantivy scalar:64"] + list(ENGINES)[3:]


def folder_of(data: Data, name: str) -> Path:
    return data.work / name.replace(" ", "-").replace(":", "-")


def opened(data: Data, name: str) -> Engine:
    engine, _, code = name.partition(" ")
    return ENGINES[engine](data, folder_of(data, name), code)


def built(data: Data, name: str, threads: int) -> dict[str, float]:
    """Fit and build what is not there yet: seconds to ``fit`` and to ``build``, the largest memory of the builder
    (``peak``) and what is on ``disk`` with shared vectors, in bytes."""
    engine, _, code = name.partition(" ")
    folder, kind = folder_of(data, name), code.partition(":")[0]
    seconds = once(data.work / f"codec-{kind}", "fit", threads, fit, data, kind)["fit"] if kind else 0.0
    found = once(folder, "build", threads, ENGINES[engine].build, data, folder, code, threads)
    files = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    count, dim = data.shape
    return {**found, "fit": seconds, "disk": files + STORED.get(engine, 0) * count * dim}


def fit(data: Data, kind: str) -> float:
    """Fit a code such as ``bits`` and keep it; seconds."""
    folder = data.work / f"codec-{kind}"
    codec = global_code(kind, z=1, query_z=1, seed=data.seed, terms=data.terms if kind == "dictionary" else None)
    begun = time.perf_counter()
    with FeatureFile(data.gallery) as file:
        fit_code(file, codec)
    seconds = time.perf_counter() - begun
    np.savez(folder / "arrays.npz", **codec.arrays())
    (folder / "config.json").write_text(json.dumps(codec.config()))
    return seconds


def fitted(data: Data, code: str) -> SurrogateCodec:
    """The codec of a code such as ``bits:64``, as ``fit`` left it."""
    kind, z = code.split(":")
    folder = data.work / f"codec-{kind}"
    with np.load(folder / "arrays.npz", allow_pickle=False) as arrays:
        codec = SurrogateCodec.restore(json.loads((folder / "config.json").read_text()), dict(arrays))
    return codec.budgeted(int(z), min(QUERY_Z[kind][1], codec.n_terms))


def encoded(data: Data, code: str) -> Iterator[TermMatrix]:
    """The term matrix of the gallery, a block at a time."""
    codec = fitted(data, code)
    for start, block in data.blocks():
        yield codec.encode_documents(Embeddings(data.modality, block))
        told(f"{code}: encoded {start + len(block)}")


def once(folder: Path, key: str, threads: int, task: Callable[..., float], *arguments: Any) -> dict[str, float]:
    """The seconds under ``key`` and the largest memory of ``task`` when it filled ``folder``, now or in an earlier
    run."""
    note = folder / "built.json"
    if not note.exists():
        told(f"{folder.name}: building")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        seconds, peak = child(watched, threads, task, *arguments)
        note.write_text(json.dumps({key: seconds, "peak": peak, "threads": threads}))
    kept: dict[str, float] = json.loads(note.read_text())
    return kept


def watched(threads: int, task: Callable[..., float], *arguments: Any) -> tuple[float, int]:
    """In a process of its own: seconds of ``task``, and the largest memory of the process in bytes."""
    use_threads(threads)
    return task(*arguments), status("VmHWM")


def child(task: Callable[..., Any], *arguments: Any) -> Any:
    """The result of ``task`` in a fresh process; BrokenProcessPool if that was killed."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(task, *arguments).result()


def use_threads(count: int) -> None:
    """Hold every thread of this process to ``count`` processors, and libraries to as many threads."""
    import faiss
    from threadpoolctl import threadpool_limits

    allowed = sorted(PROCESSORS)[:count]
    for thread in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # it has ended
            os.sched_setaffinity(int(thread.name), allowed)
    faiss.omp_set_num_threads(count)
    threadpool_limits(count)


def status(key: str) -> int:
    """Bytes that /proc/self/status has under a key."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(key))
