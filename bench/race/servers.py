"""Indexes on a search server in the race: codes of boc, and the server's own HNSW types on the same
documents.

Examples of names are ``elasticsearch-9 dictionary:8`` and ``elasticsearch-9 int8_hnsw``. Each index
is loaded by the loader of boc with two requests in flight, and merged into one segment. Codes are
fitted and items are encoded before the timing of the load starts. Codes are searched through
``Searcher.search_vectors``, and their time includes the encoding of the query. All indexes return
ten items with their content, over the connection of boc. Codes read the content from doc values,
and HNSW reads it from ``_source``, as programs usually do. HNSW receives vectors and queries in the
fastest format that the server accepts (hnsw.py). Vectors for re-ranking are float16; HNSW stores
vectors in the format of its type. A graph counts as ``rest`` if the server does not store it in
separate files. ``R=1000000`` selects every item that shares a term with the query.

A server is either a kind of tests/servers, which is started on this machine and stopped at the end,
or the address of a running server, from which the indexes ``boc-bench-*`` are removed at the end.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, cast

import click
import numpy as np
from numpy.typing import NDArray

from bench.race.codes import CodeEngine, fit, is_raced, load_codec
from bench.race.data import Data, K, Matrix, log
from bench.race.engine import Engine, Facts, Setting, UnavailableError, folder_of, once, status_of
from bench.race.hnsw import (
    EFS,
    HNSW,
    STORED,
    base64_form,
    hnsw_document,
    hnsw_index,
    hnsw_query,
    list_form,
    quantise,
    scale_of,
    settle,
)
from boc import plugins
from boc.codecs import parse_code
from boc.errors import BackendError
from boc.inputs.features import FeatureFile
from boc.manage.load import new_manifest
from boc.search.searcher import Searcher
from boc.types import Embeddings, Rows
from indexing.server.aliases import drop_index
from indexing.server.backend import ServerBackend
from indexing.server.bulk import Bulk
from indexing.server.requests import ITEM
from indexing.server.transport import Json, RefusedError, Transport

ROOT = Path(__file__).resolve().parents[2]
QUERIES = 100  # number of queries run before memory is measured
ALL = 1_000_000  # number of candidates that selects every item that shares a term with the query
CODES = ("dictionary:8", "bits:48", "scalar:48")
GRIDS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "dictionary": ((6, 8, 10, 12, 16, 20, 24, 32, 48), (ALL,)),
    "scalar": ((32, 64), (100, 300, 500)),
    "bits": ((32, 64), (100, 300, 500)),
}
"""Number of query terms, and number of candidates."""
SCHEMES = {"elasticsearch": "elastic", "opensearch": "opensearch"}


class TimedTransport:
    """Transport that records the milliseconds reported by the server for its last search."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.took = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def search(self, path: str, body: Mapping[str, Any] | bytes, **params: Any) -> Json:
        answer = self._transport.search(path, body, **params)
        self.took = answer.get("took", 0.0)
        return answer


class ServerEngine(Engine):
    """Index on a server."""

    timed: TimedTransport

    @property
    def took(self) -> float:  # type: ignore[override]
        return self.timed.took


class ServerCode(ServerEngine, CodeEngine):
    """Index with a code of boc."""

    def __init__(self, server: Server, data: Data, what: str) -> None:
        code = what.partition(" ")[0]
        self.library = server.label
        self.kind = ""
        self.timed = server.timed
        CodeEngine.__init__(
            self,
            data,
            code,
            Searcher(server.backend.open(server.name_of(what))),
        )
        budgets, depths = GRIDS[parse_code(code).name]
        self.grid = list(product([min(z, self.codec.n_terms) for z in budgets], depths))

    def vectors_read(self, setting: Setting) -> int | None:
        return (
            None if setting[1] == ALL else setting[1]
        )  # the server does not count items that share a term


class ServerGraph(ServerEngine):
    """HNSW index of the server."""

    knobs: tuple[str, ...] = ("ef",)
    grid: Sequence[Setting] = tuple((ef,) for ef in EFS)

    def __init__(self, server: Server, data: Data, what: str) -> None:
        self.library = server.label
        self.kind = what
        self.timed = server.timed
        self.data = data
        self.path = f"/{server.name_of(what)}/_search"
        self.scale = scale_of(data) if what == "byte" else None
        self.choose(self.grid[0])
        self.form = base64_form
        if self.scale is not None or not self._answers(data.query_sets[1][:1]):
            self.form = list_form

    def _answers(self, query: Matrix) -> bool:
        try:
            self.ask(query)
        except RefusedError:
            return False
        return True

    def choose(self, setting: Setting) -> None:
        (self.ef,) = setting

    def body(self, query: Matrix) -> Json:
        vector: NDArray[Any] = query[0] if self.scale is None else quantise(query[0], self.scale)
        return {
            **hnsw_query(self.timed.engine, self.form(vector), self.ef),
            "size": K,
            "_source": ITEM,
        }

    def ask(self, query: Matrix) -> Any:
        return self.timed.search(self.path, self.body(query))["hits"]["hits"]

    def rows(self, answer: Any) -> Sequence[int]:
        return [self.data.rows[hit["_source"]["id"]] for hit in answer]


@dataclass
class Server:
    """Server at the address ``at``. The names of the indexes begin with ``label``."""

    label: str
    at: str
    made: list[str] = field(default_factory=list)  # names of the created indexes

    def __post_init__(self) -> None:
        mark = "&" if "?" in self.at else "?"
        backend = plugins.backend(f"{self.at}{mark}replicas=0&request_timeout=600")
        if not isinstance(backend, ServerBackend):
            raise click.UsageError(
                f"{self.at} is not the address of a server; write elastic+http://HOST:PORT or "
                "opensearch+...",
            )
        about = backend.about()
        self.version: str = f"{about['engine']} {about['version']}"
        self.timed: Any = TimedTransport(backend.transport)
        self.backend: ServerBackend = backend
        self.backend.transport = cast("Transport", self.timed)

    def all_names(self) -> list[str]:
        """Return the names of the indexes that a race includes by default."""
        return [f"{self.label} {what}" for what in (*CODES, *HNSW[self.timed.engine])]

    def check_name(self, name: str) -> None:
        """Raise UsageError if ``name`` is not the name of an index."""
        what = name.partition(" ")[2]
        if not is_raced(what) and what not in HNSW[self.timed.engine]:
            raise click.UsageError(f"no index {name!r}; known: {', '.join(self.all_names())}")

    def name_of(self, what: str) -> str:
        """Return the name of an index on the server."""
        return f"boc-bench-{re.sub('[^a-z0-9]+', '-', what)}"

    def open_engine(self, data: Data, name: str) -> Engine:
        what = name.partition(" ")[2]
        return ServerCode(self, data, what) if ":" in what else ServerGraph(self, data, what)

    def build(self, data: Data, name: str, threads: int) -> Facts:
        """Load an index and return its cost. Raises UnavailableError if the server does not support
        its type."""
        what = name.partition(" ")[2]
        if ":" not in what:
            self._make_graph(data, what)
        self.made.append(what)
        facts = (
            self._load_code(data, what, threads) if ":" in what else self._load_graph(data, what)
        )
        log(f"{name}: {facts.build:.1f} s, {facts.disk / 1e6:.1f} MB")
        return facts

    def warm_up(self, data: Data, names: Sequence[str], threads: int) -> None:
        """Load and remove the first code and the first graph in ``names`` as a warm-up. A server
        compiles code during its first loads, and this time should not be charged to an index."""
        for name in {":" in name: name for name in reversed(names)}.values():
            with suppress(UnavailableError):
                self.build(data, name, threads)
        self.clear()

    def _load_code(self, data: Data, what: str, threads: int) -> Facts:
        code = what.partition(" ")[0]
        name = self.name_of(what)
        kind = parse_code(code).name
        fitting = once(folder_of(data, f"codec {kind}"), threads, fit, data, kind)
        codec = load_codec(data, code)
        mine = time.process_time()
        begun = time.perf_counter()
        parts = [
            codec.encode_documents(Embeddings(data.modality, block)) for _, block in data.blocks()
        ]
        encode = time.perf_counter() - begun
        with FeatureFile(data.gallery) as file:
            manifest = new_manifest(file, codec, vectors="float16")
            items = file.items(data.modality)
        begun = time.perf_counter()
        server = self.cpu_seconds()
        with self.backend.create(name, manifest, codec.arrays()) as writer:
            for (start, block), terms in zip(data.blocks(), parts, strict=True):
                writer.add(Rows(items[start : start + len(block)], terms, block))
            writer.commit()
        seconds = time.perf_counter() - begun
        cpu = self.cpu_seconds() - server + time.process_time() - mine
        sizes = self.backend.open(name).sizes()
        arrays = sum(array.nbytes for array in codec.arrays().values())
        rest = sizes["other"] + sizes["concepts"]
        learned = min(arrays, rest)
        disk = {
            "index": sizes["postings"],
            "vectors": sizes["vectors"],
            "codec": learned,
            "rest": rest - learned,
        }
        return Facts(fitting["seconds"], encode, seconds, fitting["cpu"] + cpu, None, disk)

    def _load_graph(self, data: Data, what: str) -> Facts:
        """Load the same documents with an indexed vector instead of terms, in the fastest format
        that the server accepts."""
        name = self.name_of(what)
        with FeatureFile(data.gallery) as file:
            items = file.items(data.modality)
        scale = scale_of(data) if what == "byte" else None
        form = base64_form if scale is None and self._reads_base64(name, data) else list_form
        begun = time.perf_counter()
        mine = time.process_time()
        server = self.cpu_seconds()
        with Bulk(self.timed, name) as bulk:
            for start, block in data.blocks():
                vectors = block if scale is None else quantise(block, scale)
                for item, vector in zip(items[start : start + len(block)], vectors, strict=True):
                    bulk.index(item.id, hnsw_document(item, form(vector)))
        settle(self.timed, name)
        seconds = time.perf_counter() - begun
        cpu = self.cpu_seconds() - server + time.process_time() - mine
        stored, graph = self._bytes_of(name)
        vectors_bytes = (
            data.shape[0] * data.shape[1] * STORED.get(what, np.dtype(np.float32)).itemsize
        )
        index = max(0, graph - vectors_bytes)
        disk = {
            "index": index,
            "vectors": vectors_bytes,
            "codec": 0,
            "rest": stored - vectors_bytes - index,
        }
        return Facts(0.0, 0.0, seconds, cpu, None, disk)

    def _make_graph(self, data: Data, what: str) -> None:
        """Create an empty index."""
        name = self.name_of(what)
        drop_index(self.timed, name)
        try:
            self.timed.request(
                "PUT",
                f"/{name}",
                hnsw_index(self.timed.engine, what, data.shape[1]),
            )
        except RefusedError as error:
            raise UnavailableError(
                f"the server does not support this type ({error.reason})",
            ) from error

    def _bytes_of(self, name: str) -> tuple[int, int]:
        """Return the bytes of an index and of Lucene's vector files, whose names end in ``.ve?``
        and ``.vem?``."""
        stats = self.timed.request(
            "GET",
            f"/{name}/_stats/store,segments",
            include_segment_file_sizes="true",
        )
        primaries = stats["_all"]["primaries"]
        files = primaries["segments"].get("file_sizes", {})
        graph = sum(
            int(entry["size_in_bytes"]) for kind, entry in files.items() if kind.startswith("ve")
        )
        return int(primaries["store"]["size_in_bytes"]), graph

    def _reads_base64(self, name: str, data: Data) -> bool:
        """Return whether the server accepts vectors as text, which load several times faster than
        numbers."""
        vector = data.vectors[0].astype(np.float32)
        try:
            self.timed.request("PUT", f"/{name}/_doc/0", {"vector": base64_form(vector)})
        except RefusedError:
            return False
        self.timed.request("DELETE", f"/{name}/_doc/0")
        return True

    def cpu_seconds(self) -> float:
        """Return the processor seconds used by the nodes since they started."""
        nodes = self.timed.request("GET", "/_nodes/stats/process")["nodes"].values()
        return sum(float(node["process"]["cpu"]["total_in_millis"]) for node in nodes) / 1000

    def memory(self, data: Data, name: str, setting: Setting) -> tuple[int | None, int | None]:
        """Return None for the private bytes, because all indexes share the heap, and the additional
        bytes that the server maps when it opens only this index and runs some queries. Return None
        for both if the server is on another machine."""
        what = name.partition(" ")[2]
        if not self.at.partition("://")[2].startswith(("127.0.0.1", "localhost")):
            return None, None
        try:
            return None, self._mapped_bytes(data, name, what, setting)
        except BackendError as error:
            log(f"{name}: what it maps is not known, {error}")
            return None, None

    def _mapped_bytes(self, data: Data, name: str, what: str, setting: Setting) -> int:
        (node,) = self.timed.request("GET", "/_nodes/process")["nodes"].values()
        process = int(node["process"]["id"])
        for other in self.made:
            self._ask_index(other, "_close")
        before = status_of(process, "RssFile")
        self._ask_index(what, "_open")
        self.timed.request("GET", "/_cluster/health", wait_for_status="yellow", timeout=600)
        engine = self.open_engine(data, name)
        engine.choose(setting)
        for query in data.query_sets[1][:QUERIES]:
            engine.ask(query[None])
        return max(0, status_of(process, "RssFile") - before)

    def _ask_index(self, what: str, step: str) -> None:
        name = self.name_of(what)
        physical = list(self.timed.request("GET", f"/{name}/_alias"))
        for one in physical:
            self.timed.request("POST", f"/{one}/{step}")

    def clear(self) -> None:
        """Remove all created indexes."""
        for what in self.made:
            for name in self._physical(self.name_of(what)):
                drop_index(self.timed, name)
        self.made.clear()

    def _physical(self, name: str) -> list[str]:
        try:
            return list(self.timed.request("GET", f"/{name}/_alias"))
        except RefusedError:
            return []


@contextmanager
def connect(spec: str, work: Path, heap: str) -> Iterator[Server]:
    """Yield the server at an address, or start a kind of server in tests/servers and stop it at the
    end."""
    if "://" in spec:
        server = Server(spec.partition("+")[0], spec)
        try:
            yield server
        finally:
            server.clear()
        return
    with (
        tempfile.TemporaryDirectory(dir=work) as folder,
        start_server(spec, Path(folder), heap) as node,
    ):
        yield Server(spec, f"{SCHEMES[node.kind.engine]}+{node.url}")


@contextmanager
def start_server(kind: str, folder: Path, heap: str) -> Iterator[Any]:
    """Start a ``tests.servers.Server`` of a kind, with its data in ``folder``, yield it, and stop
    it at the end."""
    sys.path.append(str(ROOT))
    from tests import servers

    if kind not in servers.KINDS:
        raise click.UsageError(
            f"no server {kind!r}; known: {', '.join(servers.KINDS)}, or an address",
        )
    try:
        node = servers.Server(kind, folder, heap=heap, optimise=True)
        log(f"starting {kind}")
        with node.start():
            yield node
    except (servers.UnavailableError, servers.MismatchError, servers.StartError) as error:
        raise click.ClickException(str(error)) from error
