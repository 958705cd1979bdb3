"""A code in the documents of another program: its own fields stay, whoever writes and whatever is
killed meanwhile."""

import json
import re
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from numpy.typing import NDArray

from boc.errors import BackendError
from boc.evaluate.verify import verify
from boc.inputs.metadata import parse_filter
from boc.manage.attach import AttachReport, attach_index, detach_index
from boc.manage.build import build_index
from boc.manage.whole_index import index_names
from boc.search.searcher import Searcher
from boc.types import Batch, Embeddings, Item
from indexing.server.transport import Json
from tests.helpers import boc
from tests.oracles import random_units, write_features
from tests.servers import Server
from tests.servers.fixtures import address, kinds

ON_EACH = pytest.mark.parametrize(
    "server",
    kinds("opensearch-3", "elasticsearch-9"),
    indirect=True,
)
N = 3000
DIM = 24
WITHOUT = 7
"""Items that have no document."""
KEYS = [f"d{i}" for i in range(N)]
VECTORS = random_units(0, N, DIM)
Vectors: TypeAlias = NDArray[np.float32]
MAPPING = {
    "dynamic": "strict",
    "_meta": {"owner": "shop"},
    "properties": {
        "sku": {"type": "keyword"},
        "number": {"type": "long"},
        "title": {"type": "text", "fields": {"raw": {"type": "keyword"}}},
        "price": {"type": "double"},
        "sold": {"type": "boolean"},
        "added": {"type": "date"},
        "maker": {"properties": {"name": {"type": "keyword"}, "since": {"type": "integer"}}},
        "parts": {"type": "nested", "properties": {"name": {"type": "keyword"}}},
        "views": {"type": "long"},
    },
}


def document(i: int) -> Json:
    """What the other program writes."""
    return {
        "sku": f"sku {i:05d}",
        "number": i,
        "title": f'Größe "{i}" \U0001f600 <b>',
        "price": i / 7,
        "sold": i % 2 == 0,
        "added": f"202{i % 10}-0{1 + i % 9}-01",
        "maker": {"name": ["Å", "B"][i % 2], "since": None},
        "parts": [{"name": "wheel"}, {"name": ""}] if i % 3 else [],
        "views": 0,
    }


@dataclass
class Shop:
    """The other program, and its index of N documents on a server."""

    server: Any
    name: str
    folder: Path

    def __post_init__(self) -> None:
        self.at = address(self.server, replicas=0)

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
    ) -> Any:
        return self.server.request(method, path, body)

    def create(self, index: str, **body: object) -> None:
        self.ask(
            "PUT",
            index,
            {"settings": {"number_of_replicas": 0}, **body},
        )

    def make(
        self,
        *,
        shards: int = 1,
        routed: bool = False,
    ) -> None:
        settings = {"number_of_replicas": 0, "number_of_shards": shards}
        self.create(self.name, settings=settings, mappings=MAPPING)
        rows = []
        for i in range(N):
            head = {"_id": f"d{i}"}
            if routed:
                head["routing"] = f"r{i % 5}"
            rows += [json.dumps({"index": head}), json.dumps(document(i))]
        body = "\n".join([*rows, ""]).encode()
        assert not self.ask("POST", f"{self.name}/_bulk?refresh=true", body)["errors"]

    def indexes(self) -> list[str]:
        return list(self.ask("GET", f"*{self.name}*?expand_wildcards=all"))

    def sources(self) -> dict[str, Json]:
        """All documents as they are."""
        self.ask("POST", f"{self.name}/_refresh")
        body = {"size": 10_000, "sort": ["number"]}
        hits = self.ask("POST", f"{self.name}/_search", body)["hits"]["hits"]
        return {hit["_id"]: hit["_source"] for hit in hits}

    def count(self, field: str, name: str = "") -> int:
        """The number of documents with a field."""
        index = name or self.name
        self.ask("POST", f"{index}/_refresh")
        body = {"query": {"exists": {"field": field}}}
        return int(self.ask("POST", f"{index}/_count", body)["count"])

    def view(self, i: int) -> None:
        """Change one field of a document by a partial update, as a program would that counts
        something."""
        self.ask("POST", f"{self.name}/_update/d{i}?retry_on_conflict=20", {"doc": {"views": 1}})

    def features(
        self,
        keys: list[str],
        vectors: Vectors,
    ) -> Path:
        items = [Item(key, "image", f"/pictures/{key}.jpg", key) for key in keys]
        batch = Batch(items, Embeddings("image", vectors))
        return write_features(self.folder / f"{len(keys)}.h5", batch, dtype="float16")

    def attach(self, file: Path, **options: Any) -> AttachReport:
        report = attach_index(
            self.name,
            [file],
            at=self.at,
            **options,
        )
        assert report is not None
        return report

    def open(self, name: str = "") -> Searcher:
        return Searcher.open(name or self.name, self.at)

    def check(self, vectors: Vectors) -> None:
        """Searches with and without filters find what a product of all vectors finds, and the
        documents with it."""
        searcher = self.open()
        assert not searcher.index.searches_words
        stored = vectors.astype(np.float16).astype(np.float32)
        for i in (3, 50):
            query = Embeddings("image", vectors[i : i + 1])
            ranked = np.argsort(
                -(stored @ vectors[i]),
                kind="stable",
            ).tolist()
            for conditions, fits in FILTERS.items():
                declared = searcher.index.manifest.fields
                filters = [parse_filter(each, declared) for each in conditions]
                hits = searcher.search_vectors(
                    query,
                    k=8,
                    filters=filters,
                )[0]
                order = [n for n in ranked if fits(n)][:8]
                scores = (stored[order] @ vectors[i]).tolist()
                assert [hit.item.id for hit in hits] == [f"d{n}" for n in order]
                assert [hit.score for hit in hits] == pytest.approx(
                    scores,
                    abs=1e-4,
                )
                titles = [hit.item.fields["title"] for hit in hits]
                assert titles == [document(n)["title"] for n in order]
        assert verify(searcher.index, pairs=200).right


FILTERS: dict[tuple[str, ...], Callable[[int], bool]] = {
    (): lambda n: True,
    ("maker.name=Å", "number>=100", "price<300"): lambda n: n % 2 == 0 and 100 <= n < 2100,
    ("maker.name=B", "number<12"): lambda n: n % 2 == 1 and n < 12,
    ("added>=2025-01", "sold=false", "title.raw!=x"): lambda n: n % 10 >= 5 and n % 2 == 1,
}


@pytest.fixture
def shop(server: Any, tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(server, f"shop-{uuid.uuid4().hex[:12]}", tmp_path)
    yield shop
    for each in shop.indexes():
        shop.ask("DELETE", each)


def without_code(sources: dict[str, Json]) -> dict[str, str]:
    """The fields of the other program, to the byte."""
    ours = ("boc", "views")
    return {
        id: json.dumps({name: value for name, value in source.items() if name not in ours})
        for id, source in sources.items()
    }


@ON_EACH
@pytest.mark.parametrize(
    "by_key",
    [False, True],
    ids=["by _id", "by a key, on shards, routed"],
)
def test_attach_and_detach_amid_writes(shop: Shop, by_key: bool):
    shop.make(shards=3 if by_key else 1, routed=by_key)
    before = without_code(shop.sources())
    missing = [f"none {i}" for i in range(WITHOUT)]
    keys = [document(i)["sku"] for i in range(N)] if by_key else KEYS
    extra = random_units(1, WITHOUT, DIM)
    file = shop.features(
        [*keys, *missing],
        np.concatenate([VECTORS, extra]),
    )
    key = "sku" if by_key else None
    stop = threading.Event()
    viewed = set[int]()

    def view():
        while not stop.is_set() and not by_key:
            i = 37 * len(viewed) % N
            shop.view(i)
            viewed.add(i)

    program = threading.Thread(target=view)
    program.start()
    shown = []

    def confirm(change):
        shown.append(change)
        return True

    try:
        report = shop.attach(
            file,
            code="scalar",
            key=key,
            confirm=confirm,
        )
    finally:
        stop.set()
        program.join()
    assert (report.documents, report.written, report.unchanged) == (N, N, 0)
    assert (report.without, report.missing) == (WITHOUT, missing)
    assert [(list(change), list(change["properties"])) for change in shown] == [
        (["properties"], ["boc"]),
    ]
    after = shop.sources()
    assert without_code(after) == before
    assert all("boc" in source for source in after.values())
    assert {f"d{i}" for i in viewed} == {id for id, source in after.items() if source["views"]}
    (entry,) = shop.ask("GET", f"{shop.name}/_mapping").values()
    assert entry["mappings"]["_meta"] == MAPPING["_meta"]
    assert entry["mappings"]["dynamic"] == "strict"

    shop.check(VECTORS)
    # A partial update keeps what is attached.
    for i in () if by_key else range(0, N, 500):
        shop.view(i)
    shop.ask("POST", f"{shop.name}/_refresh")
    shop.check(VECTORS)
    assert shop.open().index.manifest.items == {"image": N, "text": 0}

    again = shop.attach(
        file,
        key=key,
        confirm=lambda change: False,
    )
    assert (again.documents, again.written, again.unchanged) == (N, 0, N)
    assert detach_index(shop.name, at=shop.at) == N
    left = shop.sources()
    assert without_code(left) == before
    assert not any("boc" in source for source in left.values())
    assert shop.indexes() == [shop.name]
    with pytest.raises(BackendError, match="was not made by boc"):
        shop.open()


@ON_EACH
def test_attach_continues_after_a_kill(shop: Shop):
    shop.make()
    before = shop.sources()
    file = shop.features(KEYS, VECTORS)

    def kill(*options, when):
        """Kill the command ``when`` so many documents have a code."""
        line = ["attach", shop.name, *options, "--yes", "--at", shop.at]
        run = [sys.executable, "-c", "from boc.cli import main; main()", *line]
        process = subprocess.Popen(
            run,
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        while process.poll() is None:
            if when(shop.count("boc.row")):
                process.kill()
            time.sleep(0.01)

    kill(
        str(file),
        "--code",
        "scalar",
        when=lambda count: count > 0,
    )
    report = shop.attach(file)
    assert (report.documents, report.written + report.unchanged) == (N, N)
    shop.check(VECTORS)
    kill("--detach", when=lambda count: count < N)
    if "boc" in json.dumps(shop.indexes()):
        detach_index(shop.name, at=shop.at)
    assert shop.sources() == before
    assert shop.indexes() == [shop.name]


@ON_EACH
def test_attach_again_updates(shop: Shop):
    shop.make()
    shop.attach(
        shop.features(KEYS[:100], VECTORS[:100]),
        code="scalar",
    )
    shop.ask("PUT", f"{shop.name}/_doc/d5?refresh=true", document(5))
    newer = np.concatenate(
        [
            VECTORS[:50],
            np.roll(
                VECTORS,
                1,
                axis=0,
            )[50:],
        ],
    )
    report = shop.attach(shop.features(KEYS, newer))
    assert (report.documents, report.written, report.unchanged) == (N, N - 49, 49)
    shop.check(newer)


@pytest.mark.parametrize("server", kinds("opensearch-3"), indirect=True)
def test_foreign_index_stays(shop: Shop):
    shop.make()
    file = shop.features(KEYS[:50], VECTORS[:50])
    at = ("--at", shop.at)
    mapping = shop.ask("GET", f"{shop.name}/_mapping")
    # Nobody is there to answer the question.
    unanswered = boc(f"attach {shop.name} {file}", *at)
    assert unanswered.exit_code == 1
    assert '"boc": {' in unanswered.output
    assert shop.ask("GET", f"{shop.name}/_mapping") == mapping
    assert shop.indexes() == [shop.name]
    assert boc(f"attach {shop.name} {file} --yes", *at).exit_code == 0
    before = shop.sources()
    assert shop.name in boc("info", *at).output
    assert "50 pictures" in boc(f"info {shop.name}", *at).output
    other = "index of another program|was not made by boc"
    for command, words in (
        (("index", shop.name, file, "--replace"), other),
        (("add", shop.name, file), other),
        (("delete", shop.name, "d1"), other),
        (("delete", shop.name, "--all"), other),
        (("compact", shop.name), other),
        (("attach", "nowhere", file), "boc attach needs an existing index"),
    ):
        result = boc(*command, *at)
        assert result.exit_code == 1, command
        assert re.search(words, result.output), result.output
    assert shop.sources() == before


@ON_EACH
def test_detach_after_an_alias_moved(shop: Shop):
    """The indexes that an alias stood for earlier are cleaned too; another alias shows its
    documents only."""
    art = shop.name
    one = f"{shop.name}-one"
    two = f"{shop.name}-two"
    few = f"{shop.name}-few"
    file = shop.features(KEYS[:50], VECTORS[:50])

    def alias(*actions):
        shop.ask("POST", "_aliases", {"actions": actions})

    for index in (one, two):
        shop.create(index, mappings={"dynamic": False})
        for i in range(50):
            shop.ask("PUT", f"{index}/_doc/d{i}", {"price": i})
    for index in (one, two):
        old = {"index": "*", "alias": art, "must_exist": False}
        alias(
            {"remove": old},
            {"add": {"index": index, "alias": art}},
        )
        shop.attach(file, code="scalar")
    assert [
        shop.count(
            "boc.row",
            index,
        )
        for index in (one, two)
    ] == [50, 50]
    shown = {"ids": {"values": ["d1", "d2"]}}
    alias({"add": {"index": two, "alias": few, "filter": shown}})
    for name, count in ((few, 2), (two, 50)):
        searcher = shop.open(name)
        assert (
            len(
                searcher.search_vectors(
                    Embeddings("image", VECTORS[:1]),
                    k=50,
                )[0],
            )
            == count
        )
        assert len(list(searcher.index.items())) == count
        assert searcher.index.manifest.items["image"] == count
    assert detach_index(art, at=shop.at) == 100
    assert [
        shop.count(
            "boc.row",
            index,
        )
        for index in (one, two)
    ] == [0, 0]
    shop.attach(file, code="scalar")
    # An older boc, or an administrator, may leave the codes without the index of the attachment.
    for code in shop.ask("GET", f"boc-on-{art}-boc-*?expand_wildcards=all"):
        shop.ask("DELETE", code)
    assert detach_index(two, at=shop.at) == 50
    with pytest.raises(BackendError, match="nothing is attached"):
        detach_index(two, at=shop.at)


@ON_EACH
@pytest.mark.parametrize(
    "source",
    [{"enabled": False}, {"excludes": ["secret"]}, {"includes": ["price"]}],
)
def test_partial_source_is_refused(shop: Shop, source: Json):
    """An update writes a document from its _source: fields that it lacks would be gone."""
    shop.create(shop.name, mappings={"_source": source})
    shop.ask("PUT", f"{shop.name}/_doc/d0?refresh=true", {"price": 1, "secret": "s"})
    before = shop.ask("GET", f"{shop.name}*")
    words = "stores only a part of its documents in _source, so an update would lose"
    with pytest.raises(BackendError, match=words):
        shop.attach(
            shop.features(["d0"], VECTORS[:1]),
            code="scalar",
        )
    assert shop.ask("GET", f"{shop.name}*") == before
    assert shop.count("secret") == 1


@pytest.mark.servers
@pytest.mark.parametrize("kind", ["elasticsearch-9", "opensearch-3"])
def test_hardened_server(
    own: Callable[[Server], Server],
    kind: str,
    tmp_path: Path,
):
    """Where scripts are forbidden, making an index is refused, and attaching before it writes."""
    settings = {
        "script.allowed_types": "none",
        "http.max_content_length": "1mb",
        "action.auto_create_index": False,
        "rest.action.multi.allow_explicit_index": False,
    }
    shop = Shop(
        own(Server(kind, tmp_path, settings=settings)),
        "shop",
        tmp_path,
    )
    file = shop.features(KEYS, VECTORS)
    with pytest.raises(BackendError, match="compares no vectors by scripts"):
        build_index("own", file, at=shop.at, code="bits:6")
    assert index_names(shop.at) == []
    shop.create("shop")
    shop.ask("PUT", "shop/_doc/d0?refresh=true", {"price": 1})
    before = shop.ask("GET", "shop*")
    words = r"cannot execute \[inline\] scripts.*; allow scripts \(script"
    with pytest.raises(BackendError, match=words):
        shop.attach(file, code="scalar")
    assert shop.ask("GET", "shop*") == before
