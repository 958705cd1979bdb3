"""The embedded engine beside scipy, tantivy, faiss and usearch: recall, latency, building, bytes, memory.

    python bench/embedded.py captions.h5 captions-queries.h5 --validation captions-validation.h5 --work m30k
    python bench/embedded.py --synthetic 1000000 --work million

GALLERY and QUERIES are feature files of embeddings. ``--synthetic N`` draws N unit vectors instead, a block at a time,
each block from a seed of its own: 3,000 clusters in 100 groups in a space of 128 dimensions whose scales fall as
j**-0.4, embedded in ``--dim`` dimensions by a random matrix, plus a little noise in all of them and a mean of 0.3; each
component times a scale of its own, exp of a normal of standard deviation 0.5. Queries are items plus noise. At 1M x
1,024 the cosines of a query to rank 1, 10 and 100 are about .85, .58 and .52, and the participation ratio is 42.

Every index is built once, by a process of its own, on ``--threads`` threads, into a folder of its own in ``--work``;
what is there is not built again. Ours is the whole public path, ``build_index`` and ``Searcher.search_vectors``: query
encoding, posting lists, re-scoring from float16, hits with their content. ``scipy`` (product with the transposed term
matrix, ``argpartition``) and ``tantivy`` (terms as words of a document, weights of the query as boosts; it does not see
the frequencies of documents, whose lengths are equal) answer from the same codes and re-score in the same way, and so
does IVF,SQ8; their bytes count float16 vectors. Their time to build is that of encoding and of what they add.

Settings are chosen on the validation queries (without such a file, on every other query) and told of the rest: all of
a grid answer them once, and those that another of the same index clearly beats, in recall and time, are dropped. The
rest are timed, one query at a time on one thread: in each round every setting answers all queries in a row, settings
and queries in a random order. Queries a second and memory are those of the settings that are compared. Resident memory
is measured in a fresh process that opens one index and answers 100 queries: what is its own (anon), and what is mapped
of files and was touched (file), without what the process had before. Queries a second are those of each one's own
interface for batches, held to one processor or two; scipy and tantivy, which have none, get threads.

Rows go to stdout as CSV, settings before them behind ``#``: recall of the exact top 10 (and on validation), medians and
percentiles in milliseconds as medians over rounds with the least and the most, seconds to fit a codebook and to build,
largest memory of the builder. Behind ``#`` afterwards: ours against each other at equal recall, both at their fastest
setting that reaches it, with the least and the most of the ratio over rounds; the kernel; a cold start of ``boc
search``.
"""

from __future__ import annotations

import csv
import ctypes
import gc
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, ClassVar, Protocol

import click
import numpy as np
from numpy.typing import NDArray

from boc.codecs import SurrogateCodec, global_code
from boc.features import FeatureFile, FeatureWriter, Header
from boc.pipeline import Searcher, build_index, fit_code, new_manifest
from boc.rerank import dot
from boc.types import Embeddings, Item, Modality, Rows

K = 10
RECALLS = (0.90, 0.95)
WARM = 20  # queries of a setting before its clock starts
CLEAR = 0.85  # what one pass must be faster by to be sure of it
ASKED = 100  # queries before memory is looked at
NAME = "bench"
BATCH = 20_000
EF_CONSTRUCTION = 100
DEPTHS = (50, 100, 150, 200, 300, 500, 1000)  # candidates
QUERY_Z = {"dictionary": (8, 16, 24, 32, 48, 64, 96, 128), "scalar": (32, 64, 128, 256), "bits": (32, 64, 128, 256)}
EFS = (10, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128, 256)
PROBES = (4, 8, 16, 24, 32, 48, 64, 96, 128, 256)
CODES = ("scalar:64", "bits:64", "dictionary:2", "dictionary:4")
OTHERS = ("flat", "hnsw32", "ivf-sq8", "usearch-f16")
LIBRARIES = ("boc", "numpy", "scipy", "faiss-cpu", "tantivy", "usearch")
HEAD = [
    "index", "setting", "recall", "validation", "p50_ms", "p50_least", "p50_most", "p95_ms", "p95_least", "p95_most",
    "p99_ms", "p99_least", "p99_most", "qps_1", "qps_1_least", "qps_1_most", "qps_2", "qps_2_least", "qps_2_most",
    "fit_s", "build_s", "build_peak_mb", "disk_mb", "anon_mb", "file_mb",
]  # fmt: skip

Setting = tuple[int, ...]
Matrix = NDArray[np.float32]


class Synthetic:
    """A mixture drawn by block; see above."""

    groups, clusters, rank = 100, 30, 128

    def __init__(self, dim: int, seed: int) -> None:
        rng = np.random.default_rng([seed, 0])
        falling = np.arange(1, self.rank + 1, dtype=np.float32) ** -0.4
        falling /= np.linalg.norm(falling)
        self.seed = seed
        self.basis = rng.standard_normal((self.rank, dim), np.float32) * falling[:, None] / np.float32(dim**0.5)
        self.scales = np.exp(0.5 * rng.standard_normal(dim)).astype(np.float32)
        self.mean = rng.standard_normal(dim, np.float32) * np.float32(0.3 / dim**0.5)
        heads = rng.standard_normal((self.groups, 1, self.rank), np.float32)
        within = rng.standard_normal((self.groups, self.clusters, self.rank), np.float32)
        self.centres = (0.5 * heads + 0.5 * within).reshape(-1, self.rank)

    def block(self, number: int, count: int) -> Matrix:
        """Unit vectors (count, dim)."""
        rng = np.random.default_rng([self.seed, 1, number])
        dim = len(self.scales)
        rows = self.centres[rng.integers(len(self.centres), size=count)]
        rows = rows + np.float32(0.6) * rng.standard_normal((count, self.rank), np.float32)
        return unit((rows @ self.basis + self.mean + noise(rng, (count, dim), 0.3)) * self.scales)

    def perturbed(self, rows: Matrix) -> Matrix:
        return unit(rows + noise(np.random.default_rng([self.seed, 2]), rows.shape, 0.62))


def unit(rows: Matrix) -> Matrix:
    found: Matrix = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return found


def noise(rng: np.random.Generator, shape: tuple[int, ...], length: float) -> Matrix:
    return rng.standard_normal(shape, np.float32) * np.float32(length / shape[1] ** 0.5)


def synthetic(work: Path, count: int, dim: int, queries: int, seed: int) -> tuple[Path, Path, Path]:
    """Feature files of ``count`` items, and of ``queries`` twice: to report and to choose settings by."""
    paths = work / "gallery.h5", work / "queries.h5", work / "validation.h5"
    source = f"{count}-{dim}-{queries}-{seed}"
    digest = source.encode().hex().rjust(64, "0")
    header = Header("embeddings", "synthetic:vectors", digest, dim, "float16", digest)
    model = Synthetic(dim, seed)
    if not paths[0].exists():
        with FeatureWriter(paths[0], header) as writer:
            for start in range(writer.done, count, BATCH):
                rows = model.block(start // BATCH, min(BATCH, count - start))
                writer.append(len(rows), [Rows(pictures(start, len(rows)), {"vectors": rows})])
                told(f"drew {start + len(rows)} of {count} vectors")
            writer.finish()
    with FeatureFile(paths[0]) as file:
        if file.header != header:
            raise click.UsageError(f"{work} holds other synthetic data; name another --work")
        rng = np.random.default_rng([seed, 3])
        chosen = np.sort(rng.choice(count, 2 * queries, replace=False))
        rows = model.perturbed(file.mapped("image", "dense/vectors")[chosen].astype(np.float32))
    rng.shuffle(rows)
    for path, part in zip(paths[1:], (rows[:queries], rows[queries:]), strict=True):
        if not path.exists():
            with FeatureWriter(path, header) as writer:
                writer.append(queries, [Rows(pictures(0, queries), {"vectors": part})])
                writer.finish()
    return paths


def pictures(start: int, count: int) -> list[Item]:
    return [Item(f"{i:08d}.jpg", "image", f"/photos/{i:08d}.jpg", f"{i:08d}.jpg") for i in range(start, start + count)]


@dataclass(frozen=True)
class Data:
    """A gallery, the queries that are reported, and those that choose settings; all feature files."""

    work: Path
    gallery: Path
    queries: Path
    validation: Path | None
    terms: int | None
    seed: int

    @cached_property
    def modality(self) -> Modality:
        with FeatureFile(self.gallery) as file:
            return "image" if file.count("image") else "text"

    @cached_property
    def stored(self) -> NDArray[Any]:
        """Vectors (n, d) as they lie in the gallery, memory-mapped."""
        with FeatureFile(self.gallery) as file:
            found = file.mapped(self.modality, "dense/vectors")
        return np.asarray(found).view(found.dtype.newbyteorder("="))  # HDF5's names its byte order

    @cached_property
    def halves(self) -> NDArray[np.float16]:
        """The same as float16, memory-mapped: what others than ours re-score from."""
        if self.stored.dtype == np.float16 and self.stored.flags.aligned:
            return self.stored
        path = self.work / "vectors.npy"
        if not path.exists():
            part = path.with_suffix(".part")
            out = np.lib.format.open_memmap(part, "w+", np.float16, self.stored.shape)
            for start in range(0, len(out), BATCH):
                out[start : start + BATCH] = self.stored[start : start + BATCH]
            out.flush()
            part.rename(path)
        return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))

    @property
    def shape(self) -> tuple[int, int]:
        return self.stored.shape

    def blocks(self) -> Iterator[Matrix]:
        for start in range(0, len(self.stored), BATCH):
            yield self.stored[start : start + BATCH].astype(np.float32)

    @cached_property
    def asked(self) -> tuple[Matrix, Matrix]:
        """Queries that are reported, and those that choose."""
        first = self._read(self.queries)
        return (first, self._read(self.validation)) if self.validation else (first[::2], first[1::2])

    def _read(self, path: Path) -> Matrix:
        with FeatureFile(path) as file:
            return np.concatenate([file.vectors("image"), file.vectors("text")])

    @cached_property
    def top(self) -> tuple[list[set[int]], list[set[int]]]:
        """Rows of the exact top 10 of both, by faiss."""
        path = self.work / "truth.npy"
        if not path.exists():
            np.save(path, self._exact(np.concatenate(self.asked)))
        rows = [set(row) for row in np.load(path, allow_pickle=False).tolist()]
        n = len(self.asked[0])
        return rows[:n], rows[n:]

    def _exact(self, queries: Matrix) -> NDArray[np.int64]:
        import faiss

        scores, rows = np.full((len(queries), K), -np.inf, np.float32), np.zeros((len(queries), K), np.int64)
        start = 0
        for block in self.blocks():
            found, places = faiss.knn(queries, block, K, faiss.METRIC_INNER_PRODUCT)
            both, where = np.hstack([scores, found]), np.hstack([rows, places + start])
            best = np.argsort(-both, axis=1, kind="stable")[:, :K]
            scores, rows = np.take_along_axis(both, best, axis=1), np.take_along_axis(where, best, axis=1)
            start += len(block)
            told(f"exact answers over {start} vectors")
        return rows

    @cached_property
    def rows(self) -> dict[str, int]:
        with FeatureFile(self.gallery) as file:
            return {key: row for row, key in enumerate(file.ids(self.modality))}

    def check(self) -> None:
        """The work folder is of these files and no others."""
        note, mine = self.work / "data.json", {"terms": self.terms, "seed": self.seed}
        for path in (self.gallery, self.queries, self.validation):
            if path is not None:
                mine[str(path.resolve())] = path.stat().st_size
        if note.exists() and json.loads(note.read_text()) != mine:
            raise click.UsageError(f"{self.work} holds indexes of other data; name another --work")
        note.write_text(json.dumps(mine))

    def codec(self, code: str) -> SurrogateCodec:
        """The fitted codec of a code such as bits:64, fitted before by ``fit``."""
        name, z = code.split(":")
        folder = self.work / f"codec-{name}"
        with np.load(folder / "arrays.npz", allow_pickle=False) as arrays:
            codec = SurrogateCodec.restore(json.loads((folder / "config.json").read_text()), dict(arrays))
        return codec.budgeted(int(z), min(QUERY_Z[name][1], codec.n_terms))


class Engine(Protocol):
    """An opened index. ``ask`` is timed, ``rows`` turns its answer into row numbers afterwards."""

    grid: list[Setting]

    def choose(self, setting: Setting) -> None: ...
    def ask(self, query: Matrix) -> Any: ...
    def batch(self, queries: Matrix, threads: int) -> Any: ...
    def rows(self, answer: Any) -> Sequence[int]: ...


class Ours:
    """A code in the embedded engine."""

    def __init__(self, data: Data, folder: Path, code: str) -> None:
        name, z = code.split(":")
        self.data, self.z = data, int(z)
        self.searcher = Searcher.open(NAME, f"file:{folder}")
        self.grid = grid_of(name, self.searcher.codec, data)

    @staticmethod
    def build(data: Data, folder: Path, code: str, threads: int) -> float:
        codec = data.codec(code)
        with FeatureFile(data.gallery) as file:
            manifest = replace(new_manifest(file, codec), vector_dtype="float16")
            begun = time.perf_counter()
            for done in build_index(file, f"file:{folder}", NAME, codec, manifest):
                told(f"{folder.name}: {done} items")
        return time.perf_counter() - begun

    def choose(self, setting: Setting) -> None:
        self.searcher.codec.budgeted(self.z, setting[0])
        self.rm = setting[1] / K

    def ask(self, query: Matrix) -> Any:
        return self.searcher.search_vectors(
            Embeddings(self.data.modality, query), k=K, rm=self.rm, find=self.data.modality
        )

    def batch(self, queries: Matrix, threads: int) -> Any:
        return self.ask(queries)

    def rows(self, answer: Any) -> Sequence[int]:
        return [self.data.rows[hit.item.id] for hit in answer[0]]


def grid_of(name: str, codec: SurrogateCodec, data: Data) -> list[Setting]:
    """Terms of a query and candidates, as far as there are so many."""
    budgets = [z for z in QUERY_Z[name] if z <= codec.n_terms] or [codec.n_terms]
    return list(product(budgets, [depth for depth in DEPTHS if depth < data.shape[0]]))


class Threaded:
    """A batch by one query a call from several threads, for what has no batches or does not re-score in them."""

    ask: Callable[[Matrix], Any]

    def batch(self, queries: Matrix, threads: int) -> Any:
        parts = [queries[i : i + 1] for i in range(len(queries))]
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(self.ask, parts))

    def rows(self, answer: Any) -> Sequence[int]:
        found: list[int] = answer.tolist()
        return found


def rescored(query: Matrix, rows: NDArray[np.int64], halves: NDArray[np.float16]) -> NDArray[np.int64]:
    """The K of ``rows`` nearest to the query."""
    rows = np.sort(rows)
    scores = dot(query[0], halves, rows)
    best: NDArray[np.int64] = rows[np.argsort(-scores, kind="stable")[:K]]
    return best


def encoded(data: Data, code: str, keep: Callable[[int, Any], None]) -> None:
    """The term matrix of the gallery, a block at a time."""
    codec, start = data.codec(code), 0
    for block in data.blocks():
        keep(start, codec.encode_documents(Embeddings(data.modality, block)))
        start += len(block)
        told(f"{code}: encoded {start}")


class Scipy(Threaded):
    """Products of sparse matrices."""

    def __init__(self, data: Data, folder: Path, code: str) -> None:
        from scipy import sparse

        name, z = code.split(":")
        self.codec, self.modality = data.codec(code), data.modality
        self.z, self.grid, self.halves = int(z), grid_of(name, self.codec, data), data.halves
        self.postings = sparse.load_npz(folder / "postings.npz")

    @staticmethod
    def build(data: Data, folder: Path, code: str, threads: int) -> float:
        from scipy import sparse

        begun = time.perf_counter()
        parts: list[Any] = []
        encoded(data, code, lambda start, terms: parts.append(terms))
        postings = sparse.vstack(parts, format="csr").T.tocsr()
        sparse.save_npz(folder / "postings.npz", postings, compressed=False)
        return time.perf_counter() - begun

    def choose(self, setting: Setting) -> None:
        self.codec.budgeted(self.z, setting[0])
        self.depth = setting[1]

    def ask(self, query: Matrix) -> Any:
        scores = self.codec.encode_queries(Embeddings(self.modality, query)) @ self.postings
        rows = scores.indices
        if len(rows) > self.depth:
            rows = rows[np.argpartition(-scores.data, self.depth)[: self.depth]]
        return rescored(query, rows.astype(np.int64), self.halves)


class Tantivy(Threaded):
    """Terms as words, BM25 with weights over idf as boosts: what is left of it is the sum of the weights."""

    def __init__(self, data: Data, folder: Path, code: str) -> None:
        import tantivy

        name, z = code.split(":")
        self.codec, self.modality = data.codec(code), data.modality
        self.z, self.grid, self.halves = int(z), grid_of(name, self.codec, data), data.halves
        self.schema, self.searcher = self._schema(), tantivy.Index.open(str(folder)).searcher()
        n = data.shape[0]
        seen = [self.searcher.doc_freq("terms", str(term)) for term in range(self.codec.n_terms)]
        self.idf = np.log(1 + (n - np.array(seen) + 0.5) / (np.array(seen) + 0.5))

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

        begun = time.perf_counter()
        writer = tantivy.Index(cls._schema(), path=str(folder)).writer(500_000_000, threads)

        def add(start: int, terms: Any) -> None:
            for row, (low, high) in enumerate(zip(terms.indptr[:-1], terms.indptr[1:], strict=True), start):
                words = " ".join(map(str, terms.indices[low:high].tolist()))
                writer.add_document(tantivy.Document(row=row, terms=words))

        encoded(data, code, add)
        writer.commit()
        writer.wait_merging_threads()
        return time.perf_counter() - begun

    choose = Scipy.choose

    def ask(self, query: Matrix) -> Any:
        import tantivy

        terms = self.codec.encode_queries(Embeddings(self.modality, query))
        boosts = terms.data / self.idf[terms.indices]
        should, Query = tantivy.Occur.Should, tantivy.Query
        words = [Query.term_query(self.schema, "terms", str(term), index_option="basic") for term in terms.indices]
        asked = Query.boolean_query(
            [(should, Query.boost_query(word, boost)) for word, boost in zip(words, boosts.tolist(), strict=True)]
        )
        hits = self.searcher.search(asked, limit=self.depth, count=False).hits
        rows = self.searcher.fast_field_values("row", [address for _, address in hits])
        return rescored(query, np.array(rows, np.int64), self.halves)


class Faiss:
    """What the faiss engines share."""

    index: Any

    @staticmethod
    def filled(index: Any, data: Data, folder: Path, train: int = 0) -> float:
        """Seconds to train on some rows, add all, and write the file."""
        import faiss

        begun = time.perf_counter()
        if train:
            step = max(1, data.shape[0] // train)
            index.train(data.stored[::step].astype(np.float32))
        for block in data.blocks():
            index.add(block)
            told(f"{folder.name}: {index.ntotal} items")
        faiss.write_index(index, str(folder / "index.faiss"))
        return time.perf_counter() - begun

    def ask(self, query: Matrix) -> Any:
        return self.index.search(query, K)[1][0]

    def batch(self, queries: Matrix, threads: int) -> Any:
        return self.index.search(queries, K)

    rows = Threaded.rows


class Flat(Faiss):
    """Nothing but the vectors."""

    grid: ClassVar[list[Setting]] = [()]

    def __init__(self, data: Data, folder: Path, code: str) -> None:
        import faiss

        self.index = faiss.IndexFlatIP(data.shape[1])
        for block in replace(data).blocks():  # which forgets its map of the gallery
            self.index.add(block)

    @staticmethod
    def build(data: Data, folder: Path, code: str, threads: int) -> float:
        import faiss

        index = faiss.IndexFlatIP(data.shape[1])
        begun = time.perf_counter()
        for block in data.blocks():
            index.add(block)
        return time.perf_counter() - begun

    def choose(self, setting: Setting) -> None:
        pass


class Hnsw(Faiss):
    """A graph of 32 neighbours a node."""

    grid: ClassVar[list[Setting]] = [(ef,) for ef in EFS]

    def __init__(self, data: Data, folder: Path, code: str) -> None:
        import faiss

        self.index = faiss.read_index(str(folder / "index.faiss"))

    @classmethod
    def build(cls, data: Data, folder: Path, code: str, threads: int) -> float:
        import faiss

        index = faiss.IndexHNSWFlat(data.shape[1], 32, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = EF_CONSTRUCTION
        return cls.filled(index, data, folder)

    def choose(self, setting: Setting) -> None:
        self.index.hnsw.efSearch = setting[0]


class Ivf(Faiss):
    """4 sqrt(n) cells of bytes, the first 50 re-scored."""

    depth = 50

    def __init__(self, data: Data, folder: Path, code: str) -> None:
        import faiss

        self.index, self.halves = faiss.read_index(str(folder / "index.faiss")), data.halves
        self.grid: list[Setting] = [(probes,) for probes in PROBES if probes <= self.index.nlist]

    @classmethod
    def build(cls, data: Data, folder: Path, code: str, threads: int) -> float:
        import faiss

        count, dim = data.shape
        cells = max(1, round(4 * count**0.5))
        index = faiss.index_factory(dim, f"IVF{cells},SQ8", faiss.METRIC_INNER_PRODUCT)
        return cls.filled(index, data, folder, min(count, 64 * cells))

    def choose(self, setting: Setting) -> None:
        self.index.nprobe = setting[0]

    def ask(self, query: Matrix) -> Any:
        rows = self.index.search(query, self.depth)[1][0]
        return rescored(query, rows[rows >= 0], self.halves)

    def batch(self, queries: Matrix, threads: int) -> Any:
        found = self.index.search(queries, self.depth)[1]
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(lambda i: rescored(queries[i : i + 1], found[i], self.halves), range(len(queries))))


class Usearch:
    """The same graph over float16."""

    grid: ClassVar[list[Setting]] = [(ef,) for ef in EFS]

    def __init__(self, data: Data, folder: Path, code: str) -> None:
        self.index = self._made(data)
        self.index.load(str(folder / "index.usearch"))

    @staticmethod
    def _made(data: Data) -> Any:
        from usearch.index import Index

        return Index(ndim=data.shape[1], metric="ip", dtype="f16", connectivity=32, expansion_add=EF_CONSTRUCTION)

    @classmethod
    def build(cls, data: Data, folder: Path, code: str, threads: int) -> float:
        index = cls._made(data)
        begun, start = time.perf_counter(), 0
        for block in data.blocks():
            index.add(np.arange(start, start + len(block)), block, threads=threads)
            start += len(block)
            told(f"{folder.name}: {start} items")
        index.save(str(folder / "index.usearch"))
        return time.perf_counter() - begun

    def choose(self, setting: Setting) -> None:
        self.index.expansion_search = setting[0]

    def ask(self, query: Matrix) -> Any:
        return self.index.search(query[0], K, threads=1).keys

    def batch(self, queries: Matrix, threads: int) -> Any:
        return self.index.search(queries, K, threads=threads).keys

    rows = Threaded.rows


ENGINES: dict[str, Any] = {
    "boc": Ours, "scipy": Scipy, "tantivy": Tantivy,
    "flat": Flat, "hnsw32": Hnsw, "ivf-sq8": Ivf, "usearch-f16": Usearch,
}  # fmt: skip
RESCORES = ("scipy", "tantivy", "ivf-sq8")


def all_names() -> list[str]:
    coded = [f"{engine} {code}" for engine in ("boc", "scipy", "tantivy") for code in CODES]
    return [name for name in coded if name != "tantivy scalar:64"] + list(OTHERS)


def opened(data: Data, name: str) -> Engine:
    engine, _, code = name.partition(" ")
    found: Engine = ENGINES[engine](data, folder_of(data, name), code)
    return found


def folder_of(data: Data, name: str) -> Path:
    return data.work / name.replace(" ", "-").replace(":", "-")


def child(task: Callable[..., Any], *arguments: Any) -> Any:
    """The result of ``task`` in a fresh process; ChildProcessError if it died."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=answer, args=(there, task, *arguments))
    process.start()
    there.close()
    try:
        return here.recv()
    except EOFError:
        process.join()
        raise ChildProcessError(f"{task.__name__} ended with status {process.exitcode}") from None
    finally:
        process.join()


def answer(there: Any, task: Callable[..., Any], *arguments: Any) -> None:
    there.send(task(*arguments))


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


PROCESSORS = os.sched_getaffinity(0)


def build(data: Data, name: str, threads: int) -> dict[str, float]:
    """In a process of its own: build one index; seconds, and the largest memory in bytes."""
    use_threads(threads)
    engine, _, code = name.partition(" ")
    seconds = ENGINES[engine].build(data, folder_of(data, name), code, threads)
    return {"build": seconds, "peak": status("VmHWM"), "threads": threads}


def fit(data: Data, name: str, threads: int) -> dict[str, float]:
    """In a process of its own: fit a code and keep it."""
    use_threads(threads)
    folder = data.work / f"codec-{name}"
    codec = global_code(name, z=1, query_z=1, seed=data.seed, terms=data.terms if name == "dictionary" else None)
    begun = time.perf_counter()
    with FeatureFile(data.gallery) as file:
        fit_code(file, codec)
    seconds = time.perf_counter() - begun
    np.savez(folder / "arrays.npz", **codec.arrays())
    (folder / "config.json").write_text(json.dumps(codec.config()))
    return {"fit": seconds, "peak": status("VmHWM"), "threads": threads}


def once(folder: Path, task: Callable[..., dict[str, float]], *arguments: Any) -> dict[str, float]:
    """What ``task`` told when it filled ``folder``, now or in an earlier run."""
    note = folder / "built.json"
    if not note.exists():
        told(f"{folder.name}: building")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        found = child(task, *arguments)
        note.write_text(json.dumps(found))
    kept: dict[str, float] = json.loads(note.read_text())
    return kept


def built(data: Data, name: str, threads: int) -> dict[str, float]:
    """Fit and build what is not there yet: seconds, the largest memory, and bytes on disk with shared vectors."""
    engine, _, code = name.partition(" ")
    fitted = {"fit": 0.0}
    if code:
        kind = code.partition(":")[0]
        fitted = once(data.work / f"codec-{kind}", fit, data, kind, threads)
    found = once(folder_of(data, name), build, data, name, threads)
    disk = sum(path.stat().st_size for path in folder_of(data, name).rglob("*") if path.is_file())
    count, dim = data.shape
    disk += 2 * count * dim * (engine in RESCORES) + 4 * count * dim * (engine == "flat")
    return {**found, "fit": fitted["fit"], "disk": disk}


def status(key: str) -> int:
    """Bytes that /proc/self/status has under a key."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(key))


def resident(data: Data, name: str, setting: Setting) -> tuple[int, int]:
    """In a process of its own: what opening an index and asking it adds to the memory of a process."""
    use_threads(1)
    for module in ("faiss", "scipy.sparse", "indexing.embedded", "tantivy", "usearch.index"):
        with suppress(ImportError):
            import_module(module)
    queries = np.ascontiguousarray(data.asked[1][:ASKED])
    before = status("RssAnon"), status("RssFile")
    engine = opened(data, name)
    engine.choose(setting)
    for i in range(len(queries)):
        engine.ask(queries[i : i + 1])
    gc.collect()
    return max(0, status("RssAnon") - before[0]), max(0, status("RssFile") - before[1])


@dataclass
class Variant:
    """An index at a setting, and what was measured of it."""

    name: str
    engine: Engine
    setting: Setting
    validation: float
    rough: float  # seconds for the validation queries
    recall: float = 0.0
    times: NDArray[np.float64] = field(default_factory=lambda: np.empty((0, 0)))  # milliseconds (rounds, queries)
    qps: NDArray[np.float64] = field(default_factory=lambda: np.empty((2, 0)))  # on one processor and two (2, rounds)
    memory: tuple[int, int] | None = None

    @property
    def label(self) -> str:
        if len(self.setting) == 2:
            return f"{self.setting[0]} R={self.setting[1]}"
        return " ".join(map(str, self.setting)) or "-"

    @property
    def medians(self) -> NDArray[np.float64]:
        found: NDArray[np.float64] = np.median(self.times, axis=1)
        return found

    @property
    def p50(self) -> float:
        return median(self.medians.tolist())

    def row(self, facts: dict[str, float]) -> list[str]:
        percentiles = [cell for q in (50, 95, 99) for cell in spread(np.percentile(self.times, q, axis=1), 3)]
        rates = [cell for rates in self.qps for cell in spread(rates, 0)]
        memory = [f"{size / 1e6:.1f}" for size in self.memory] if self.memory else ["", ""]
        seconds = [f"{facts[key]:.1f}" for key in ("fit", "build")]
        sizes = [f"{facts[key] / 1e6:.1f}" for key in ("peak", "disk")]
        recalls = [f"{self.recall:.4f}", f"{self.validation:.4f}"]
        return [self.name, self.label, *recalls, *percentiles, *rates, *seconds, *sizes, *memory]


def spread(values: NDArray[np.float64], digits: int) -> list[str]:
    """Median, least and most."""
    return [f"{f(values):.{digits}f}" for f in (np.median, np.min, np.max)] if len(values) else ["", "", ""]


def recall_of(engine: Engine, queries: Matrix, top: Sequence[set[int]]) -> float:
    found = [engine.rows(engine.ask(queries[i : i + 1])) for i in range(len(queries))]
    return float(np.mean([len(best.intersection(rows)) / K for best, rows in zip(top, found, strict=True)]))


def variants_of(data: Data, name: str) -> list[Variant]:
    """An index at the settings of its grid that no other beats on the validation queries."""
    engine, found = opened(data, name), []
    for setting in engine.grid:
        engine.choose(setting)
        recall_of(engine, data.asked[1][:WARM], data.top[1][:WARM])
        begun = time.perf_counter()
        recall = recall_of(engine, data.asked[1], data.top[1])
        found.append(Variant(name, engine, setting, recall, time.perf_counter() - begun))
    kept = [v for v in found if not any(u.validation >= v.validation and u.rough < CLEAR * v.rough for u in found)]
    told(f"{name}: {len(kept)} of {len(found)} settings, recall to {max(v.validation for v in kept):.3f}")
    return kept


def measure(variants: Sequence[Variant], data: Data, rounds: int, seed: int) -> None:
    """Recall and times of all variants: in each round each answers all queries, in another order."""
    rng = np.random.default_rng(seed)
    queries, top = data.asked[0], data.top[0]
    for variant in variants:
        variant.times = np.empty((rounds, len(queries)))
    told(f"timing {len(variants)} settings")
    gc.collect()
    gc.freeze()
    for turn in range(rounds):
        for j in rng.permutation(len(variants)).tolist():
            variant, engine = variants[j], variants[j].engine
            engine.choose(variant.setting)
            order = rng.permutation(len(queries)).tolist()
            for i in order[:WARM]:
                engine.ask(queries[i : i + 1])
            for i in order:
                query = queries[i : i + 1]
                begun = time.perf_counter()
                engine.ask(query)
                variant.times[turn, i] = 1000 * (time.perf_counter() - begun)
        told(f"round {turn + 1} of {rounds}")
    for variant in variants:
        variant.engine.choose(variant.setting)
        variant.recall = recall_of(variant.engine, queries, top)


def measure_rates(variants: Sequence[Variant], data: Data, rounds: int) -> None:
    """Queries a second of batches, on one processor and on two."""
    queries = np.ascontiguousarray(data.asked[0])
    for variant in variants:
        variant.qps = np.empty((2, rounds))
    for threads, turn in product((1, 2), range(rounds)):
        use_threads(threads)
        for variant in variants:
            variant.engine.choose(variant.setting)
            begun = time.perf_counter()
            variant.engine.batch(queries, threads)
            variant.qps[threads - 1, turn] = len(queries) / (time.perf_counter() - begun)


def fastest(variants: Sequence[Variant], recall: float) -> Variant | None:
    """The fastest of one index that reaches a recall on the validation queries."""
    return min((v for v in variants if v.validation >= recall), key=lambda v: v.p50, default=None)


def picked(groups: dict[str, list[Variant]]) -> dict[float, dict[str, Variant]]:
    """By recall and name of the index: its fastest variant."""
    found = {recall: {name: fastest(group, recall) for name, group in groups.items()} for recall in RECALLS}
    return {recall: {name: v for name, v in best.items() if v} for recall, best in found.items()}


def compared(best: dict[str, Variant], facts: dict[str, dict[str, float]], recall: float) -> Iterator[str]:
    """Each index of ours with those over the same code and with those over vectors."""
    for a in best.values():
        engine, _, code = a.name.partition(" ")
        for b in best.values():
            other, _, theirs = b.name.partition(" ")
            if engine == "boc" and other != "boc" and theirs in ("", code):
                ratio = a.medians / b.medians
                ours, other_facts = facts[a.name], facts[b.name]
                yield (
                    f"at {recall:.2f}: {a.name} ({a.label}, {a.recall:.3f}) / {b.name} ({b.label}, {b.recall:.3f}): "
                    f"p50 {median(ratio.tolist()):.3f} ({ratio.min():.3f} to {ratio.max():.3f}), "
                    f"build {ours['build'] / other_facts['build']:.3f} "
                    f"(with fitting {(ours['build'] + ours['fit']) / other_facts['build']:.3f}), "
                    f"disk {ours['disk'] / other_facts['disk']:.3f}, {shares(a, b)}"
                )


def shares(a: Variant, b: Variant) -> str:
    if a.memory is None or b.memory is None:
        return "memory not measured"
    anon, both = a.memory[0] / max(1, b.memory[0]), sum(a.memory) / max(1, sum(b.memory))
    return f"memory {anon:.3f} of its own, {both:.3f} with mapped pages"


SCATTER = """
#include <stdint.h>
void scatter(const uint16_t *rows, const uint8_t *weights, long n, uint16_t *sums) {
    for (long i = 0; i < n; i++) sums[rows[i]] += weights[i];
}
"""


def scatter_ns(seed: int) -> float | None:
    """Nanoseconds of one ``sums[row] += weight`` in C over 65,536 sums; None without a compiler."""
    rng = np.random.default_rng(seed)
    n = 1 << 20
    rows = np.sort(rng.integers(0, 1 << 16, (n >> 12, 1 << 12)), axis=1).astype(np.uint16)  # lists of 4,096
    weights, sums = rng.integers(1, 16, n).astype(np.uint8), np.zeros(1 << 16, np.uint16)
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "scatter.c", Path(folder) / "scatter.so"
        source.write_text(SCATTER)
        try:
            subprocess.run(["cc", "-O3", "-shared", "-fPIC", "-o", library, source], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            return None
        scatter = ctypes.CDLL(str(library)).scatter
    arguments = [ctypes.c_void_p(array.ctypes.data) for array in (rows, weights, sums)]
    times = []
    for _ in range(21):
        begun = time.perf_counter()
        scatter(*arguments[:2], ctypes.c_long(n), arguments[2])
        times.append(time.perf_counter() - begun)
    return 1e9 * median(times) / n


def kernel(data: Data, chosen: Sequence[Variant], rounds: int, seed: int) -> Iterator[str]:
    """Nanoseconds a posting of our kernel alone, at the settings chosen, where it can be had."""
    try:
        from indexing._postings import Postings
    except ImportError:
        yield "kernel: indexing._postings is not there"
        return
    bound = scatter_ns(seed)
    against = "" if bound is None else f"; one scatter in C {bound:.2f} ns here"
    for variant in chosen:
        engine = variant.engine
        if not isinstance(engine, Ours):
            continue
        parts: list[Any] = []
        encoded(data, variant.name.partition(" ")[2], lambda start, terms, parts=parts: parts.append(terms))
        from scipy import sparse

        postings = Postings.from_matrix(sparse.csr_array(sparse.vstack(parts, format="csr")))
        engine.choose(variant.setting)
        queries = [
            engine.searcher.codec.encode_queries(Embeddings(data.modality, query[None])) for query in data.asked[0]
        ]
        lengths = postings.document_frequencies()
        read = np.array([lengths[query.indices].sum() for query in queries])
        took = np.empty((rounds, len(queries)))
        for turn, i in product(range(rounds), range(len(queries))):
            begun = time.perf_counter_ns()
            postings.top(queries[i], variant.setting[1])
            took[turn, i] = time.perf_counter_ns() - begun
        each = took.sum(axis=1) / read.sum()
        yield (
            f"kernel: {variant.name} ({variant.label}): {read.mean():.0f} postings a query, "
            f"{np.median(took) / 1e6:.3f} ms, {np.median(each):.3f} ns a posting "
            f"({each.min():.3f} to {each.max():.3f}){against}"
        )


def cold_start(data: Data, variant: Variant, starts: int) -> str:
    """Seconds of ``boc search`` as a process of its own, by a vector that is there."""
    with FeatureFile(data.queries) as file:
        item = file.ids(data.modality)[0]
    command = [sys.executable, "-c", "from boc.cli import main; main()", "search", NAME, "--features", data.queries]
    options = ["--id", item, "--at", f"file:{folder_of(data, variant.name)}", "--find", data.modality]
    arguments = [str(part) for part in [*command, *options, "--rm", variant.setting[1] / K]]
    times = []
    for _ in range(1 + starts):
        begun = time.perf_counter()
        subprocess.run(arguments, check=True, capture_output=True)
        times.append(time.perf_counter() - begun)
    warm = times[1:]
    return f"cold start: boc search in {variant.name}: {median(warm):.3f} s ({min(warm):.3f} to {max(warm):.3f})"


def told(line: str) -> None:
    click.echo(line, err=True)


def about(threads: int) -> list[str]:
    """What was measured, and where."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return [
        ", ".join([*libraries(), f"Python {sys.version.split()[0]}"]),
        f"{model}, {len(PROCESSORS)} processors, {memory:.0f} GiB, Linux {os.uname().release}; "
        f"built on {threads} threads, searched on one",
    ]


def libraries() -> Iterator[str]:
    for name in LIBRARIES:
        with suppress(PackageNotFoundError):
            yield f"{name} {version(name)}"


@click.command()
@click.argument("gallery", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("queries", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--validation", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Choose settings.")
@click.option("--synthetic", "count", type=int, help="Random data of so many items, in place of GALLERY and QUERIES.")
@click.option("--dim", default=1024, show_default=True, help="Of synthetic vectors.")
@click.option("--asked", default=300, show_default=True, help="Synthetic queries.")
@click.option(
    "--work", required=True, type=click.Path(file_okay=False, path_type=Path), help="Folder of all that is built."
)
@click.option("--index", "names", multiple=True, help="Such as 'boc bits:64', 'scipy bits:64', hnsw32 [default: all].")
@click.option("--terms", type=int, help="Of the dictionary [default: by the size of the gallery].")
@click.option("--threads", default=2, show_default=True, help="To build with, for every index.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--starts", default=7, show_default=True, help="Cold starts of boc search, after one more.")
@click.option("--prepare", is_flag=True, help="Draw, answer exactly and build; measure nothing.")
def main(
    gallery: Path | None,
    queries: Path | None,
    validation: Path | None,
    count: int | None,
    dim: int,
    asked: int,
    work: Path,
    names: tuple[str, ...],
    terms: int | None,
    threads: int,
    rounds: int,
    seed: int,
    starts: int,
    prepare: bool,
) -> None:
    """Compare the embedded engine with others on GALLERY and QUERIES."""
    work.mkdir(parents=True, exist_ok=True)
    use_threads(threads)
    if count is not None:
        gallery, queries, validation = synthetic(work, count, dim, asked, seed)
    if gallery is None or queries is None:
        raise click.UsageError("give GALLERY and QUERIES, or --synthetic N")
    data = Data(work, gallery, queries, validation, terms, seed)
    data.check()
    chosen = list(names) or all_names()
    unknown = [name for name in chosen if name.partition(" ")[0] not in ENGINES]
    if unknown:
        raise click.UsageError(f"no index {unknown[0]!r}; known: {', '.join(all_names())}")
    n, (rows, width) = len(data.asked[0]), data.shape
    print(f"# {gallery.name}: {rows} x {width}, {n} queries ({len(data.asked[1])} to choose by), seed {seed}")
    for line in (f"{rounds} rounds, efConstruction {EF_CONSTRUCTION}", *about(threads)):
        print(f"# {line}")
    sys.stdout.flush()
    _ = data.top, data.halves  # before children need them
    facts = {name: built(data, name, threads) for name in chosen}
    if not prepare:
        report(data, facts, rounds, seed, starts)


def report(data: Data, facts: dict[str, dict[str, float]], rounds: int, seed: int, starts: int) -> None:
    """Measure and print."""
    use_threads(1)
    groups = {name: variants_of(data, name) for name in facts}
    every = [variant for group in groups.values() for variant in group]
    measure(every, data, rounds, seed)
    best = picked(groups)
    shown = [v for v in every if any(v is chosen for group in best.values() for chosen in group.values())]
    measure_rates(shown, data, rounds)
    use_threads(1)
    for variant in shown:
        variant.memory = child(resident, data, variant.name, variant.setting)
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(HEAD)
    out.writerows(variant.row(facts[variant.name]) for variant in every)
    for recall, group in best.items():
        for line in compared(group, facts, recall):
            print(f"# {line}")
    ours = [variant for name, variant in best[RECALLS[-1]].items() if name.startswith("boc ")]
    for line in kernel(data, ours, rounds, seed):
        print(f"# {line}")
    for variant in ours if starts else []:
        print(f"# {cold_start(data, variant, starts)}")


if __name__ == "__main__":
    main()
