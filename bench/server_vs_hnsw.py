"""Our codes on a server against that server's own HNSW index: loading, bytes, latency, recall.

GALLERY and QUERIES are feature files of sentences (``bench/caption_vectors.py``). The same documents are loaded once a
code and way to store it, and once a type of HNSW, one after the other, each by our own loader with two requests on
their way, and merged to one segment. Codes are fitted and written before the clock starts; ``encode`` says how long
that takes. Then all variants answer the queries one at a time, over our own connection, in turns: whatever else the
machine does meets all of them. Ours answer through ``Searcher.search_vectors`` and the dictionary lookup is part of
their time; all return ten items with their content.

Rows go to stdout as CSV, the version of the server and the settings before them, behind ``#``: seconds to ``encode``
and to ``load``, processor seconds of the server meanwhile (which others on the machine disturb less), megabytes in
all, of vectors, of the codec's arrays (which do not grow with the items) and of the rest, recall of the exact top 10,
milliseconds as the client sees them (median, the smallest and largest median of a round, 95th percentile) and as the
server reports them (mean of ``took``). Rows behind ``#`` at the end compare each index of ours with each HNSW, both at
the setting that is fastest at recall 0.95: how many times faster it loads, what share of the bytes it has, with all it
holds and without vectors, and what share of the median.
"""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median
from typing import Any

import click
import numpy as np
import orjson
from numpy.typing import NDArray
from recall_postings import read

from boc import registry
from boc.codecs import SurrogateCodec, global_code
from boc.features import FeatureFile
from boc.pipeline import BATCH, Searcher, new_manifest
from boc.types import Embeddings, Item, TermMatrix
from indexing._bodies import ITEM, STRATEGIES, encoded
from indexing._bulk import Bulk
from indexing._server import ServerBackend
from indexing._transport import Json, RefusedError, Transport

K = 10
RECALL = 0.95
WARM = 50  # queries that every variant answers before the clock starts
NAME = "boc-bench"
ALL = 1_000_000  # candidates: every item that shares a term with the query
CODES: dict[str, tuple[int, tuple[int, ...], tuple[int, ...]]] = {
    "dictionary": (2, (64, 32, 24), (300, 500, ALL)),
    "scalar": (48, (64, 32), (100, 300)),
    "bits": (48, (64, 32), (100, 300)),
}
"""Terms of a document, terms of a query, candidates."""
ELASTIC = ("hnsw", "int8_hnsw", "int4_hnsw", "bbq_hnsw")
OPENSEARCH = ("fp32", "sq", "byte")
HEAD = [
    "index", "stored", "vectors", "setting", "encode_s", "load_s", "load_cpu_s", "mb", "mb_vectors", "mb_codec",
    "mb_rest", "recall", "p50_ms", "p50_least", "p50_most", "p95_ms", "took_ms",
]  # fmt: skip


class Timed:
    """A transport that remembers what the server said its last search took."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.took = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def request(self, method: str, path: str, body: Mapping[str, Any] | bytes | None = None, **params: Any) -> Json:
        answer = self._transport.request(method, path, body, **params)
        self.took = answer.get("took", 0.0)
        return answer


@dataclass(frozen=True)
class Loaded:
    """An index on the server: what it is, seconds, and bytes."""

    kind: str
    stored: str
    vectors: str
    encode: float
    load: float
    cpu: float
    size: int
    vector_bytes: int
    codec_bytes: int

    def cells(self) -> list[str]:
        rest = self.size - self.vector_bytes - self.codec_bytes
        sizes = [f"{size / 1e6:.1f}" for size in (self.size, self.vector_bytes, self.codec_bytes, rest)]
        return [f"{self.encode:.1f}", f"{self.load:.1f}", f"{self.cpu:.1f}", *sizes]


@dataclass(frozen=True)
class Variant:
    """A way to search one: ``ask`` gives the ids of query i."""

    index: Loaded
    setting: str
    ask: Callable[[int], list[str]]


@dataclass(frozen=True)
class Measured:
    variant: Variant
    recall: float
    p50: float
    least: float
    most: float
    p95: float
    took: float

    def row(self) -> list[str]:
        index = self.variant.index
        times = [f"{value:.2f}" for value in (self.p50, self.least, self.most, self.p95, self.took)]
        what = [index.kind, index.stored, index.vectors, self.variant.setting]
        return [*what, *index.cells(), f"{self.recall:.4f}", *times]


class Collection:
    """Items with their vectors, queries, and the exact answers."""

    def __init__(self, gallery: Path, queries: Path, limit: int | None) -> None:
        self.path = gallery
        (embeddings,), items = read(gallery, "text")
        (asked,), _ = read(queries, "text")
        self.items: list[Item] = items[:limit]
        self.vectors: NDArray[np.float32] = embeddings.vectors[:limit]
        self.queries: NDArray[np.float32] = asked.vectors
        scores = self.queries @ self.vectors.T
        best = np.argpartition(-scores, K, axis=1)[:, :K]
        self.top = [{self.items[j].id for j in row} for row in best]

    @property
    def embeddings(self) -> Embeddings:
        return Embeddings("text", self.vectors)


def load_code(
    backend: ServerBackend,
    data: Collection,
    codec: SurrogateCodec,
    terms: TermMatrix,
    name: str,
    dtype: str,
    took: float,
) -> Loaded:
    """Load the collection under one of our codes."""
    with FeatureFile(data.path) as file:
        manifest = replace(new_manifest(file, codec), vector_dtype=dtype)
    arrays = codec.arrays()
    begun, cpu = time.perf_counter(), cpu_seconds(backend.transport)
    with backend.create(name, manifest, arrays) as writer:
        for start in range(0, len(data.items), BATCH):
            part = slice(start, start + BATCH)
            writer.add(data.items[part], terms[part], data.vectors[part])
        writer.commit()
    seconds, cpu = time.perf_counter() - begun, cpu_seconds(backend.transport) - cpu
    index = backend.open(name)
    sizes = index.sizes()
    state = index.generation.state
    codec_bytes = sum(array.nbytes for array in arrays.values())
    return Loaded(
        "", state.field, state.vectors, took, seconds, cpu, sum(sizes.values()), sizes["vectors"], codec_bytes
    )


def hnsw_field(engine: str, kind: str, dim: int) -> Json:
    """The mapping of a vector that the server indexes by HNSW."""
    if engine == "elasticsearch":
        graph = {"type": "dense_vector", "index": True, "similarity": "dot_product", "index_options": {"type": kind}}
        return {**graph, "dims": dim}
    encoder = {"parameters": {"encoder": {"name": "sq"}}} if kind == "sq" else {}
    method = {"name": "hnsw", "engine": "lucene", "space_type": "innerproduct", **encoder}
    kinds = {"data_type": "byte"} if kind == "byte" else {}
    return {"type": "knn_vector", "dimension": dim, "method": method, **kinds}


def hnsw_query(engine: str, vector: NDArray[Any], ef: int) -> Json:
    """The K nearest, ``ef`` candidates looked at."""
    if engine == "elasticsearch":
        return {"knn": {"field": "vector", "query_vector": vector, "k": K, "num_candidates": ef}}
    return {"query": {"knn": {"vector": {"vector": vector, "k": K, "method_parameters": {"ef_search": ef}}}}}


def load_hnsw(transport: Transport, data: Collection, kind: str, name: str) -> Loaded:
    """Load the same documents with an indexed vector in place of terms, in the fastest form that the server reads."""
    properties = {
        "id": {"type": "keyword", "index": False},
        "modality": {"type": "keyword"},
        "words": {"type": "text"},
        "vector": hnsw_field(transport.engine, kind, data.vectors.shape[1]),
    }
    settings = {"number_of_shards": 1, "number_of_replicas": 0, "refresh_interval": "-1", "sort.field": "id"}
    if transport.engine == "opensearch":
        settings["knn"] = True
    mapping = {"dynamic": False, "_source": {"excludes": ["vector"]}, "properties": properties}
    body = {"settings": settings, "mappings": mapping}
    remove(transport, name)
    transport.request("PUT", f"/{name}", body)
    vectors = quantised(data.vectors) if kind == "byte" else data.vectors
    form = base64_form if reads_base64(transport, name, vectors[0]) else list_form
    begun, cpu = time.perf_counter(), cpu_seconds(transport)
    with Bulk(transport, name) as bulk:
        for item, vector in zip(data.items, vectors, strict=True):
            document = {"id": item.id, "modality": item.modality, "content": item.content, "group": item.group}
            shown = {**document, "words": item.content, "vector": form(vector)}
            bulk.index(item.id, orjson.dumps(shown, option=orjson.OPT_SERIALIZE_NUMPY))
    for step in ("_refresh", "_forcemerge?max_num_segments=1", "_refresh", "_flush"):
        transport.request("POST", f"/{name}/{step}", timeout=3600)
    seconds, cpu = time.perf_counter() - begun, cpu_seconds(transport) - cpu
    stored = transport.request("GET", f"/{name}/_stats/store")["_all"]["primaries"]["store"]["size_in_bytes"]
    return Loaded("hnsw", kind, "indexed", 0.0, seconds, cpu, stored, vectors.nbytes, 0)


def cpu_seconds(transport: Transport) -> float:
    """Processor time that the nodes have used since they started."""
    nodes = transport.request("GET", "/_nodes/stats/process")["nodes"].values()
    return sum(float(node["process"]["cpu"]["total_in_millis"]) for node in nodes) / 1000


def quantised(vectors: NDArray[np.float32]) -> NDArray[np.int8]:
    """Whole numbers to 127, one scale for all unit vectors: that of their largest component."""
    return np.clip(np.rint(vectors * (127 / np.abs(vectors).max())), -127, 127).astype(np.int8)


def list_form(vector: NDArray[Any]) -> Any:
    return vector.tolist() if vector.dtype == np.int8 else vector


def base64_form(vector: NDArray[Any]) -> str:
    return encoded(vector.astype(">f4").tobytes())


def reads_base64(transport: Transport, name: str, vector: NDArray[Any]) -> bool:
    """Whether the server takes a vector as text, which loads several times faster than numbers do."""
    try:
        transport.request("PUT", f"/{name}/_doc/0", {"vector": base64_form(vector)})
    except RefusedError:
        return False
    transport.request("DELETE", f"/{name}/_doc/0")
    return True


def remove(transport: Transport, name: str) -> None:
    try:
        transport.request("DELETE", f"/{name}")
    except RefusedError as error:
        if error.status != 404:
            raise


def ways_of_ours(backend: ServerBackend, data: Collection, name: str, index: Loaded) -> Iterator[Variant]:
    """Fewer terms of a query and fewer candidates need no other index."""
    z, budgets, depths = CODES[index.kind]
    for query_z in budgets:
        searcher = Searcher(backend.open(name))
        for step in searcher.codec.steps:
            if "query_z" in step.get_params():
                step.set_params(query_z=query_z)
        for depth in depths:

            def ask(i: int, searcher: Searcher = searcher, rm: float = depth / K) -> list[str]:
                found = searcher.search_vectors(Embeddings("text", data.queries[i : i + 1]), k=K, rm=rm, find="text")
                return [hit.item.id for hit in found[0]]

            yield Variant(index, f"{z}/{query_z} R={'all' if depth == ALL else depth}", ask)


def ways_of_hnsw(
    transport: Transport, data: Collection, name: str, index: Loaded, efs: Sequence[int]
) -> Iterator[Variant]:
    queries: NDArray[Any] = data.queries
    if index.stored == "byte":
        queries = np.stack([quantised(query) for query in queries]).astype(np.int32)
    for ef in efs:

        def ask(i: int, ef: int = ef) -> list[str]:
            body = {**hnsw_query(transport.engine, queries[i], ef), "size": K, "_source": ITEM}
            hits = transport.request("POST", f"/{name}/_search", body)["hits"]["hits"]
            return [hit["_source"]["id"] for hit in hits]

        yield Variant(index, f"ef={ef}", ask)


def measure(variants: Sequence[Variant], data: Collection, timed: Timed, rounds: int, seed: int) -> list[Measured]:
    """All variants take turns at every query, in another order each time."""
    rng = np.random.default_rng(seed)
    n = len(data.queries)
    times = np.empty((len(variants), rounds, n))
    took = np.empty_like(times)
    found = np.zeros((len(variants), n))
    for i in range(min(WARM, n)):
        for variant in variants:
            variant.ask(i)
    with click.progressbar(length=rounds * n, label="queries", file=sys.stderr) as bar:
        for turn in range(rounds):
            for i in rng.permutation(n).tolist():
                for j in rng.permutation(len(variants)).tolist():
                    begun = time.perf_counter()
                    ids = variants[j].ask(i)
                    times[j, turn, i] = 1000 * (time.perf_counter() - begun)
                    took[j, turn, i] = timed.took
                    found[j, i] = len(data.top[i].intersection(ids)) / K
                bar.update(1)
    medians = np.median(times, axis=2)
    return [
        Measured(
            variant, float(mean(found[j])), median(medians[j].tolist()), medians[j].min(), medians[j].max(),
            float(np.percentile(times[j], 95)), float(took[j].mean()),
        )
        for j, variant in enumerate(variants)
    ]  # fmt: skip


def compared(measured: Sequence[Measured]) -> Iterator[str]:
    """Each index of ours with each HNSW, both where they are fastest at the wanted recall."""
    best: dict[Loaded, Measured] = {}
    for one in sorted(measured, key=lambda one: one.p50):
        if one.recall >= RECALL:
            best.setdefault(one.variant.index, one)
    for ours, a in best.items():
        for theirs, b in best.items():
            if ours.kind != "hnsw" and theirs.kind == "hnsw":
                bare = (ours.size - ours.vector_bytes) / theirs.size
                yield (
                    f"{ours.kind} {ours.stored} {ours.vectors} ({a.variant.setting}) against {theirs.stored} "
                    f"({b.variant.setting}): loads {theirs.load / ours.load:.1f} times faster "
                    f"({theirs.cpu:.2f} against {ours.cpu:.2f} s of its processor), bytes "
                    f"{ours.size / theirs.size:.2f} ({bare:.2f} without vectors), p50 {a.p50 / b.p50:.2f}"
                )


@click.command()
@click.argument("gallery", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("queries", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--at", required=True, help="Address of the server: elastic+http://... or opensearch+http://...")
@click.option("--code", "codes", multiple=True, type=click.Choice(list(CODES)), help="All, unless named.")
@click.option("--field", "fields", multiple=True, help="Ways to store codes; all that the server has, unless named.")
@click.option("--vectors", "layouts", multiple=True, default=("binary",), show_default=True, help="Their layout.")
@click.option("--dtype", type=click.Choice(["float16", "float32"]), default="float16", show_default=True)
@click.option("--hnsw", "graphs", multiple=True, help="Types of HNSW; all that the server has, unless named.")
@click.option("--ef", "efs", multiple=True, type=int, default=(20, 30, 50, 100), show_default=True)
@click.option("--limit", type=int, help="Load the first so many only.")
@click.option("--rounds", default=3, show_default=True)
@click.option("--seed", default=0, show_default=True)
def main(
    gallery: Path,
    queries: Path,
    at: str,
    codes: tuple[str, ...],
    fields: tuple[str, ...],
    layouts: tuple[str, ...],
    dtype: str,
    graphs: tuple[str, ...],
    efs: tuple[int, ...],
    limit: int | None,
    rounds: int,
    seed: int,
) -> None:
    """Compare codes with HNSW on the server AT."""
    data = Collection(gallery, queries, limit)
    mark = "&" if "?" in at else "?"

    def connected(options: str = "") -> ServerBackend:
        found = registry.backend(f"{at}{mark}replicas=0&request_timeout=600{options}")
        if not isinstance(found, ServerBackend):
            raise click.UsageError(f"{at} is no server")
        return found

    plain = connected()
    about, timed = plain.about(), Timed(plain.transport)
    print(f"# {about['engine']} {about['version']}, {len(data.items)} items, {len(data.queries)} queries, seed {seed}")
    there = fields or [name for name in STRATEGIES if about[name].startswith("exact")]
    variants: list[Variant] = []
    with ExitStack() as stack:
        for code in codes or tuple(CODES):
            (z, budgets, _), dim = CODES[code], data.vectors.shape[1]
            begun = time.perf_counter()
            codec = global_code(code, z=min(z, 2 * dim), query_z=min(max(budgets), 2 * dim), seed=seed)
            codec.fit(data.embeddings)
            terms = codec.encode_documents(data.embeddings)
            seconds = time.perf_counter() - begun
            for field in there:
                for layout in layouts:
                    backend = connected(f"&field={field}&vectors={layout}")
                    backend.transport = timed
                    name = f"{NAME}-{code}-{field}-{layout}".replace("_", "-")
                    loaded = replace(load_code(backend, data, codec, terms, name, dtype, seconds), kind=code)
                    stack.callback(backend.remove, name)
                    click.echo(f"{name}: {loaded.load:.1f} s, {loaded.size / 1e6:.1f} MB", err=True)
                    variants += ways_of_ours(backend, data, name, loaded)
        for kind in graphs or (ELASTIC if timed.engine == "elasticsearch" else OPENSEARCH):
            name = f"{NAME}-hnsw-{kind}".replace("_", "-")
            stack.callback(remove, timed, name)
            try:
                loaded = load_hnsw(timed, data, kind, name)
            except RefusedError as error:
                click.echo(f"{name}: the server has no such index ({error.reason})", err=True)
                continue
            click.echo(f"{name}: {loaded.load:.1f} s, {loaded.size / 1e6:.1f} MB", err=True)
            variants += ways_of_hnsw(timed, data, name, loaded, efs)
        out = csv.writer(sys.stdout, lineterminator="\n")
        out.writerow(HEAD)
        measured = measure(variants, data, timed, rounds, seed)
        out.writerows(one.row() for one in measured)
        for line in compared(measured):
            print(f"# {line}")


if __name__ == "__main__":
    main()
