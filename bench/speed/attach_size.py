"""A code attached to many documents of another program, which goes on writing, on servers of several versions.

    python -m bench.speed.attach_size --server elasticsearch-9 --server opensearch-3 > attach.csv

Starts each server on this machine (a kind of tests/servers), writes ``documents`` with a mapping of its own, and runs
``boc attach`` with its default code: killed when a third of the documents have it, and repeated. The program updates
fields, replaces documents and adds new ones all the time. When it has stopped, ``boc attach`` runs once more, since
replaced documents lost their code; then all is compared, and ``boc attach --detach`` is killed and repeated too.

Columns: ``written`` are the writes of the other program meanwhile; ``attach_s`` and ``detach_s`` seconds of all runs of
a command together, ``again`` the documents that the last attach wrote. ``pairs`` and ``mismatches`` are those of boc
verify. ``changed`` are documents whose own fields are not as their program wrote them, after attach and after detach
together. ``hits`` are those of 60 searches, each with one of three filters or none; ``odd`` of them do not fulfil the
filter, are of another document or have another score than the product of the vectors; ``recall`` is the share of the
exact ten best. ``left`` is what detach leaves: documents with the object, and indexes beside that of the program.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, Request, build_opener

import click
import numpy as np
from numpy.typing import NDArray

from bench.report.rows import Writer
from boc import plugins
from boc.evaluate.verify import verify
from boc.inputs.feature_writer import FeatureWriter
from boc.inputs.features import Header
from boc.inputs.metadata import parse_filter
from boc.inputs.sources import Source
from boc.search.searcher import Searcher
from boc.types import Batch, Embeddings, Item

ROOT = Path(__file__).resolve().parents[2]
SCHEMES = {"elasticsearch": "elastic", "opensearch": "opensearch"}
COLUMNS = (
    *("server", "documents", "written", "killed_at", "attach_s", "again", "pairs", "mismatches", "changed", "hits"),
    *("odd", "recall", "detach_s", "left"),
)
NAME, K, QUERIES, PAGE, NEAR = "articles", 10, 15, 5000, 1e-3
OBJECT = "boc"
DIRECTIONS, SPREAD = 2000, 0.7
"""What vectors are spread around, and how far, in lengths of these."""
MAPPING = {
    "dynamic": "strict",
    "properties": {
        "number": {"type": "long"},
        "title": {"type": "text", "fields": {"raw": {"type": "keyword"}}},
        "price": {"type": "double"},
        "sold": {"type": "boolean"},
        "maker": {"properties": {"name": {"type": "keyword"}, "since": {"type": "integer"}}},
        "parts": {"type": "nested", "properties": {"name": {"type": "keyword"}}},
        "views": {"type": "long"},
    },
}
FILTERS: list[tuple[list[str], Callable[[dict[str, Any]], bool]]] = [
    ([], lambda d: True),
    (["price<500"], lambda d: d["price"] < 500),
    (["maker.name=Å", "sold=true"], lambda d: d["maker"]["name"] == "Å" and d["sold"]),
    (["number>=1000", "title.raw!=no. 7"], lambda d: d["number"] >= 1000 and d["title"] != "no. 7"),
]


def document(i: int) -> dict[str, Any]:
    """What the other program writes first."""
    maker = {"name": ["Å", "B", "C"][i % 3], "since": None}
    parts = [{"name": f"wheel {i % 7}"}, {"name": ""}] if i % 2 else []
    found = {"number": i, "title": f"no. {i % 1000}", "price": (i * 37 % 1000) / 7 * 7, "sold": i % 4 == 0}
    return {**found, "maker": maker, "parts": parts, "views": 0}


@dataclass
class Program:
    """The other program: ``documents`` is what it has written; ``writes`` counts what it did since it went on."""

    url: str
    documents: dict[str, dict[str, Any]] = field(default_factory=dict)
    writes: int = 0

    def __post_init__(self) -> None:
        self._opener = build_opener(ProxyHandler({}))

    def ask(self, method: str, path: str, body: object = None, lines: str = "") -> Any:
        kind = "application/x-ndjson" if lines else "application/json"
        request = Request(f"{self.url}/{path}", method=method, headers={"Content-Type": kind})
        request.data = lines.encode() if lines else None if body is None else json.dumps(body).encode()
        with self._opener.open(request, timeout=120) as answer:
            return json.loads(answer.read() or b"null")

    def make(self, count: int) -> None:
        """The index with its first documents."""
        self.ask("PUT", NAME, {"settings": {"number_of_replicas": 0, "number_of_shards": 2}, "mappings": MAPPING})
        for start in range(0, count, PAGE):
            rows = {f"d{i}": document(i) for i in range(start, min(count, start + PAGE))}
            lines = [json.dumps({"index": {"_id": id}}) + "\n" + json.dumps(row) + "\n" for id, row in rows.items()]
            if self.ask("POST", f"{NAME}/_bulk", lines="".join(lines))["errors"]:
                raise click.ClickException("the documents were not written")
            self.documents |= rows

    def write(self) -> None:
        """One write: mostly a partial update, sometimes a whole document, old or new."""
        number, count = self.writes, len(self.documents)
        id = f"d{number * 7919 % count}"
        if number % 10 < 8:
            self.ask("POST", f"{NAME}/_update/{id}?retry_on_conflict=50", {"doc": {"views": number}})
            self.documents[id]["views"] = number
        else:
            id = id if number % 10 == 8 else f"d{count}"
            row = {**document(int(id[1:])), "views": number}
            self.ask("PUT", f"{NAME}/_doc/{id}", row)
            self.documents[id] = row
        self.writes += 1

    @contextmanager
    def writing(self) -> Iterator[None]:
        """It writes in a thread until the context is left."""
        stop = threading.Event()

        def run() -> None:
            while not stop.wait(0.01):
                self.write()

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def there(self) -> dict[str, dict[str, Any]]:
        """All documents as the server has them."""
        self.ask("POST", f"{NAME}/_refresh")
        found: dict[str, dict[str, Any]] = {}
        after: dict[str, Any] = {}
        while True:
            body = {"size": PAGE, "sort": ["number"], **after}
            hits = self.ask("POST", f"{NAME}/_search", body)["hits"]["hits"]
            if not hits:
                return found
            found |= {hit["_id"]: hit["_source"] for hit in hits}
            after = {"search_after": hits[-1]["sort"]}

    def changed(self, there: dict[str, dict[str, Any]]) -> int:
        """How many documents are lost, or differ in a byte of a field of the program."""
        theirs = {id: {key: value for key, value in row.items() if key != OBJECT} for id, row in there.items()}
        wrong = sum(json.dumps(theirs.get(id)) != json.dumps(row) for id, row in self.documents.items())
        return wrong + len(theirs.keys() - self.documents.keys())

    def coded(self) -> int:
        """How many documents have a code."""
        self.ask("POST", f"{NAME}/_refresh")
        body = {"query": {"exists": {"field": f"{OBJECT}.row"}}}
        found: int = self.ask("POST", f"{NAME}/_count", body)["count"]
        return found


def features(path: Path, count: int, dim: int) -> NDArray[np.float32]:
    """Write the feature file of the documents; its vectors as they are stored."""
    rng = np.random.default_rng(0)
    directions = rng.standard_normal((DIRECTIONS, dim)).astype(np.float32) / dim**0.5
    vectors = directions[rng.integers(DIRECTIONS, size=count)]
    vectors = vectors + rng.standard_normal((count, dim)).astype(np.float32) * (SPREAD / dim**0.5)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    items = [Item(f"d{i}", "image", f"/pictures/{i}.jpg", f"d{i}") for i in range(count)]
    header = Header("embeddings", "synthetic:vectors", "0" * 64, dim, "float16", Source(items).digest)
    with FeatureWriter(path, header) as writer:
        writer.append(count, [Batch(items, Embeddings("image", vectors))])
        writer.finish()
    stored: NDArray[np.float32] = vectors.astype(np.float16).astype(np.float32)
    return stored


def run(*arguments: str, until: Callable[[], bool] | None = None) -> float:
    """Run the command line in a process; kill it once ``until`` holds. Seconds."""
    begun = time.perf_counter()
    command = [sys.executable, "-c", "from boc.cli import main; main()", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while until is not None and process.poll() is None:
        if until():
            process.send_signal(signal.SIGKILL)
        time.sleep(0.05)
    said = process.communicate()[1].decode()
    if process.returncode not in (0, 1, -signal.SIGKILL) or "Error:" in said:
        raise click.ClickException(said)
    return time.perf_counter() - begun


def searches(at: str, program: Program, vectors: NDArray[np.float32]) -> tuple[int, int, float]:
    """Hits of searches with filters, those that are odd, and the share of the exact ten best."""
    searcher = Searcher.open(NAME, at)
    hits, odd, recalls = 0, 0, []
    for conditions, fits in FILTERS:
        filters = [parse_filter(each, searcher.index.manifest.fields) for each in conditions]
        allowed = np.array([fits(program.documents[f"d{i}"]) for i in range(len(vectors))])
        for query in vectors[:: len(vectors) // QUERIES][:QUERIES]:
            found = searcher.search_vectors(Embeddings("image", query[None]), k=K, filters=filters)[0]
            scores = vectors @ query
            exact = np.argsort(np.where(allowed, -scores, 9), kind="stable")[:K]
            for hit in found:
                i = int(hit.item.id[1:])
                same = hit.item.fields["title"] == program.documents[hit.item.id]["title"]
                odd += not (same and allowed[i] and abs(hit.score - scores[i]) < NEAR)
            hits += len(found)
            recalls.append(len({hit.item.id for hit in found} & {f"d{i}" for i in exact}) / K)
    return hits, odd, float(np.mean(recalls))


def measured(kind: str, work: Path, count: int, dim: int) -> Iterator[object]:
    """The row of one server."""
    servers = import_module("tests.servers")
    file = work / "articles.h5"
    vectors = features(file, count, dim)
    with servers.Server(kind, work / kind).start() as server:
        program = Program(server.url)
        program.make(count)
        at = f"{SCHEMES[server.kind.engine]}+{server.url}?replicas=0"
        attach = ("attach", NAME, str(file), "--yes", "--at", at)
        detach = ("attach", NAME, "--detach", "--yes", "--at", at)
        with program.writing():
            seconds = run(*attach, until=lambda: program.coded() > count // 3)
            killed_at = program.coded()
            seconds += run(*attach)
        missing = count - program.coded()
        seconds += run(*attach)
        told = verify(plugins.backend(at).open(NAME))
        wrong = len(told.mismatches) + (not told.right)
        changed = program.changed(program.there())
        hits, odd, recall = searches(at, program, vectors)
        with program.writing():
            away = run(*detach, until=lambda: program.coded() < 2 * count // 3)
        if len(program.ask("GET", f"{NAME}*")) > 1:
            away += run(*detach)
        left = program.there()
        changed += program.changed(left)
        beside = len(program.ask("GET", f"{NAME}*")) - 1
        objects = sum(OBJECT in row for row in left.values())
        yield from (kind, count, program.writes, killed_at, f"{seconds:.1f}", missing, told.pairs, wrong, changed)
        yield from (hits, odd, f"{recall:.3f}", f"{away:.1f}", objects + beside)


@click.command()
@click.option("--server", "kinds", multiple=True, default=["elasticsearch-9", "opensearch-3"], show_default=True)
@click.option("--documents", default=50_000, show_default=True)
@click.option("--dim", default=128, show_default=True)
@click.option("--work", type=click.Path(file_okay=False, path_type=Path), help="Folder of the servers.")
def main(kinds: tuple[str, ...], documents: int, dim: int, work: Path | None) -> None:
    """Attach a code to the documents of another program."""
    sys.path.append(str(ROOT))
    settings = {"servers": list(kinds), "documents": documents, "dim": dim, "code": "dictionary", "rm": 30}
    with Writer(sys.stdout, __file__, settings, COLUMNS, extras=("elasticsearch", "opensearch-py")) as out:
        for kind in kinds:
            with tempfile.TemporaryDirectory(dir=work) as folder:
                out.write(*measured(kind, Path(folder), documents, dim))


if __name__ == "__main__":
    main()
