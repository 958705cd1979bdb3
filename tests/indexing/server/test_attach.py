"""A code in the documents of another program: its own fields stay, whoever writes and whatever is
killed meanwhile."""

import json
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from boc.errors import BackendError
from boc.evaluate.verify import verify
from boc.inputs.metadata import parse_filter
from boc.manage.attach import attach_index, detach_index
from boc.manage.build import build_index
from boc.search.searcher import Searcher
from boc.types import Batch, Embeddings, Item
from tests.helpers import boc
from tests.oracles import random_units, write_features
from tests.servers import Server
from tests.servers.fixtures import address, kinds

SERVERS = kinds("opensearch-3", "elasticsearch-9")
N = 3000
DIM = 24
WITHOUT = 7  # items that have no document
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


def document(i: int) -> dict[str, Any]:
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

    def ask(self, method: str, path: str, body: object = None) -> Any:
        return self.server.request(method, path, body)

    def make(self, settings: dict[str, Any], routed: bool = False) -> None:
        self.ask(
            "PUT",
            self.name,
            {"settings": {"number_of_replicas": 0, **settings}, "mappings": MAPPING},
        )
        heads = [{"_id": f"d{i}", **({"routing": f"r{i % 5}"} if routed else {})} for i in range(N)]
        rows = [
            f"{json.dumps({'index': head})}\n{json.dumps(document(i))}\n"
            for i, head in enumerate(heads)
        ]
        assert not self.ask("POST", f"{self.name}/_bulk?refresh=true", "".join(rows).encode())[
            "errors"
        ]

    def sources(self) -> dict[str, dict[str, Any]]:
        """All documents as they are."""
        self.ask("POST", f"{self.name}/_refresh")
        body = {"size": 10_000, "sort": ["number"]}
        return {
            hit["_id"]: hit["_source"]
            for hit in self.ask("POST", f"{self.name}/_search", body)["hits"]["hits"]
        }

    def view(self, i: int) -> None:
        """Change one field of a document by a partial update, as a program would that counts
        something."""
        self.ask("POST", f"{self.name}/_update/d{i}?retry_on_conflict=20", {"doc": {"views": 1}})


@pytest.fixture
def shop(server: Any) -> Iterator[Shop]:
    found = Shop(server, f"shop-{uuid.uuid4().hex[:12]}")
    yield found
    for each in found.ask("GET", f"{found.name}*"):
        found.ask("DELETE", each)


@pytest.fixture
def at(server: Any) -> str:
    return address(server, replicas=0)


@pytest.fixture(scope="module")
def vectors() -> NDArray[np.float32]:
    return random_units(0, N, DIM)


def features(path: Path, keys: list[str], vectors: NDArray[np.float32]) -> Path:
    items = [Item(key, "image", f"/pictures/{key}.jpg", key) for key in keys]
    return write_features(path, Batch(items, Embeddings("image", vectors)), dtype="float16")


def theirs(source: dict[str, Any]) -> str:
    """The fields of the other program, to the byte."""
    return json.dumps(
        {name: value for name, value in source.items() if name not in ("boc", "views")},
    )


def check_searches(at: str, name: str, keys: list[str], vectors: NDArray[np.float32]) -> None:
    """Searches with and without filters find what a product of all vectors finds, and the documents
    with it."""
    searcher = Searcher.open(name, at)
    stored = vectors.astype(np.float16).astype(np.float32)
    some: list[tuple[list[str], Callable[[int], bool]]] = [
        ([], lambda n: True),
        (["maker.name=Å", "number>=100", "price<300"], lambda n: n % 2 == 0 and 100 <= n < 2100),
        (["maker.name=B", "number<12"], lambda n: n % 2 == 1 and n < 12),
        (["added>=2025-01", "sold=false", "title.raw!=x"], lambda n: n % 10 >= 5 and n % 2 == 1),
    ]
    for i in (3, 50):
        for conditions, fits in some:
            filters = [parse_filter(each, searcher.index.manifest.fields) for each in conditions]
            query = Embeddings("image", vectors[i : i + 1])
            hits = searcher.search_vectors(query, k=8, filters=filters)[0]
            order = [
                n for n in np.argsort(-(stored @ vectors[i]), kind="stable").tolist() if fits(n)
            ][:8]
            assert [hit.item.id for hit in hits] == [keys[n] for n in order]
            assert [hit.score for hit in hits] == pytest.approx(
                (stored[order] @ vectors[i]).tolist(),
                abs=1e-4,
            )
            assert [hit.item.fields["title"] for hit in hits] == [
                document(n)["title"] for n in order
            ]


@pytest.mark.parametrize("server", SERVERS, indirect=True)
@pytest.mark.parametrize("how", ["by _id", "by a key, on three shards, routed"])
def test_attach_and_detach_amid_writes(
    shop: Shop,
    at: str,
    tmp_path: Path,
    vectors: NDArray[np.float32],
    how: str,
) -> None:
    by_key = how != "by _id"
    shop.make({"number_of_shards": 3} if by_key else {}, routed=by_key)
    before = shop.sources()
    keys = [f"sku {i:05d}" if by_key else f"d{i}" for i in range(N)]
    extra = np.ones((WITHOUT, DIM), np.float32) / np.sqrt(np.float32(DIM))
    file = features(
        tmp_path / "all.h5",
        keys + [f"none {i}" for i in range(WITHOUT)],
        np.concatenate([vectors, extra]),
    )
    stop = threading.Event()
    viewed = set[int]()

    def view() -> None:
        while not stop.is_set() and not by_key:
            i = 37 * len(viewed) % N
            shop.view(i)
            viewed.add(i)

    program = threading.Thread(target=view)
    program.start()
    shown: list[Any] = []

    def confirm(change: dict[str, Any]) -> bool:
        shown.append(change)
        return True

    try:
        report = attach_index(
            shop.name,
            [file],
            at=at,
            code="scalar",
            key="sku" if by_key else None,
            confirm=confirm,
        )
    finally:
        stop.set()
        program.join()
    assert report is not None
    assert (report.documents, report.written, report.unchanged, report.without) == (
        N,
        N,
        0,
        WITHOUT,
    )
    assert report.missing == [f"none {i}" for i in range(WITHOUT)]
    assert list(shown[0]) == ["properties"]
    assert list(shown[0]["properties"]) == ["boc"]
    after = shop.sources()
    assert {id: theirs(source) for id, source in after.items()} == {
        id: theirs(s) for id, s in before.items()
    }
    assert all("boc" in source for source in after.values())
    assert {f"d{i}" for i in viewed} == {id for id, source in after.items() if source["views"]}
    mapping = next(iter(shop.ask("GET", f"{shop.name}/_mapping").values()))["mappings"]
    assert mapping["_meta"] == MAPPING["_meta"]
    assert mapping["dynamic"] == "strict"

    check_searches(at, shop.name, [f"d{i}" for i in range(N)], vectors)
    for i in range(0, N, 500):
        if not by_key:
            shop.view(i)  # a partial update keeps what is attached
    shop.ask("POST", f"{shop.name}/_refresh")
    check_searches(at, shop.name, [f"d{i}" for i in range(N)], vectors)
    index = Searcher.open(shop.name, at).index
    assert verify(index, pairs=200).right
    assert index.manifest.items == {"image": N, "text": 0}

    again = attach_index(
        shop.name,
        [file],
        at=at,
        key="sku" if by_key else None,
        confirm=lambda c: False,
    )
    assert again is not None
    assert (again.documents, again.written, again.unchanged) == (N, 0, N)
    assert detach_index(shop.name, at=at) == N
    left = shop.sources()
    assert {id: theirs(source) for id, source in left.items()} == {
        id: theirs(s) for id, s in before.items()
    }
    assert not any("boc" in source for source in left.values())
    assert list(shop.ask("GET", f"{shop.name}*")) == [shop.name]
    with pytest.raises(BackendError, match="was not made by boc"):
        Searcher.open(shop.name, at)


@pytest.mark.parametrize("server", SERVERS, indirect=True)
def test_attach_continues_after_a_kill(
    shop: Shop,
    at: str,
    tmp_path: Path,
    vectors: NDArray[np.float32],
) -> None:
    shop.make({})
    before = shop.sources()
    keys = [f"d{i}" for i in range(N)]
    file = features(tmp_path / "all.h5", keys, vectors)

    def killed(*options: str, has: bool) -> None:
        """Kill the command as soon as the first documents have a code, or no longer."""
        line = ["attach", shop.name, *options, "--yes", "--at", at]
        run = [sys.executable, "-c", "from boc.cli import main; main()", *line]
        process = subprocess.Popen(run, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        while process.poll() is None:
            shop.ask("POST", f"{shop.name}/_refresh")
            found = shop.ask(
                "POST",
                f"{shop.name}/_count",
                {"query": {"exists": {"field": "boc.row"}}},
            )["count"]
            if (found > 0) if has else (found < N):
                process.send_signal(signal.SIGKILL)
            time.sleep(0.01)
        process.wait()

    killed(str(file), "--code", "scalar", has=True)
    report = attach_index(shop.name, [file], at=at)
    assert report is not None
    assert report.documents == N
    assert report.written + report.unchanged == N
    check_searches(at, shop.name, keys, vectors)
    killed("--detach", has=False)
    if "boc" in json.dumps(list(shop.ask("GET", f"{shop.name}*"))):
        detach_index(shop.name, at=at)
    assert shop.sources() == before
    assert list(shop.ask("GET", f"{shop.name}*")) == [shop.name]


@pytest.mark.parametrize("server", SERVERS, indirect=True)
def test_attach_again_updates(
    shop: Shop,
    at: str,
    tmp_path: Path,
    vectors: NDArray[np.float32],
) -> None:
    shop.make({})
    keys = [f"d{i}" for i in range(N)]
    attach_index(
        shop.name,
        [features(tmp_path / "first.h5", keys[:100], vectors[:100])],
        at=at,
        code="scalar",
    )
    turned = np.roll(vectors, 1, axis=0)
    shop.ask("PUT", f"{shop.name}/_doc/d5?refresh=true", document(5))
    newer = np.concatenate([vectors[:50], turned[50:]])
    report = attach_index(shop.name, [features(tmp_path / "all.h5", keys, newer)], at=at)
    assert report is not None
    assert (report.documents, report.written, report.unchanged) == (N, N - 49, 49)
    check_searches(at, shop.name, keys, newer)
    assert verify(Searcher.open(shop.name, at).index, pairs=200).right


@pytest.mark.parametrize("server", kinds("opensearch-3"), indirect=True)
def test_foreign_index_stays(
    shop: Shop,
    at: str,
    tmp_path: Path,
    vectors: NDArray[np.float32],
) -> None:
    shop.make({})
    file = features(tmp_path / "some.h5", [f"d{i}" for i in range(50)], vectors[:50])
    mapping = shop.ask("GET", f"{shop.name}/_mapping")
    asked = boc("attach", shop.name, file, "--at", at)  # nobody is there to answer
    assert asked.exit_code == 1
    assert '"boc": {' in asked.output
    assert shop.ask("GET", f"{shop.name}/_mapping") == mapping
    assert list(shop.ask("GET", f"{shop.name}*")) == [shop.name]
    assert boc("attach", shop.name, file, "--yes", "--at", at).exit_code == 0
    before = shop.sources()
    assert shop.name in boc("info", "--at", at).output
    assert "50 pictures" in boc("info", shop.name, "--at", at).output
    for command in (
        ("index", shop.name, file, "--replace"),
        ("add", shop.name, file),
        ("delete", shop.name, "d1"),
        ("delete", shop.name, "--all"),
        ("compact", shop.name),
    ):
        result = boc(*command, "--at", at)
        assert result.exit_code == 1, command
        assert re.search("index of another program|was not made by boc", result.output), (
            result.output
        )
    result = boc("attach", "nowhere", file, "--at", at)
    assert result.exit_code == 1
    assert "boc attach adds to one that is there" in result.output
    assert shop.sources() == before


@pytest.mark.parametrize("server", SERVERS, indirect=True)
def test_detach_after_an_alias_moved(
    shop: Shop,
    at: str,
    tmp_path: Path,
    vectors: NDArray[np.float32],
) -> None:
    """What an alias stood for earlier is cleaned too; another alias of the index shows what it
    shows."""
    art = shop.name
    one = f"{shop.name}-one"
    two = f"{shop.name}-two"
    file = features(tmp_path / "some.h5", [f"d{i}" for i in range(50)], vectors[:50])

    def codes(name: str) -> int:
        shop.ask("POST", f"{name}/_refresh")
        body = {"query": {"exists": {"field": "boc.row"}}}
        return int(shop.ask("POST", f"{name}/_count", body)["count"])

    for index in (one, two):
        shop.ask(
            "PUT",
            index,
            {"settings": {"number_of_replicas": 0}, "mappings": {"dynamic": False}},
        )
        for i in range(50):
            shop.ask("PUT", f"{index}/_doc/d{i}", {"price": i})
    for index in (one, two):
        actions = [
            {"remove": {"index": "*", "alias": art, "must_exist": False}},
            {"add": {"index": index, "alias": art}},
        ]
        shop.ask("POST", "_aliases", {"actions": actions})
        attach_index(art, [file], at=at, code="scalar")
    assert (codes(one), codes(two)) == (50, 50)
    few = {
        "add": {"index": two, "alias": f"{art}-few", "filter": {"ids": {"values": ["d1", "d2"]}}},
    }
    shop.ask("POST", "_aliases", {"actions": [few]})
    for name, shown in ((f"{art}-few", 2), (two, 50)):
        searcher = Searcher.open(name, at)
        hits = searcher.search_vectors(Embeddings("image", vectors[:1]), k=50)[0]
        assert (
            len(hits)
            == len(list(searcher.index.items()))
            == searcher.index.manifest.items["image"]
            == shown
        )
    assert detach_index(art, at=at) == 100
    assert (codes(one), codes(two)) == (0, 0)
    attach_index(art, [file], at=at, code="scalar")
    for code in shop.ask("GET", f"{art}-boc-*"):
        shop.ask("DELETE", code)  # what an older boc, or an administrator, left
    assert detach_index(two, at=at) == 50
    with pytest.raises(BackendError, match="nothing is attached"):
        detach_index(two, at=at)


@pytest.mark.parametrize("server", SERVERS, indirect=True)
@pytest.mark.parametrize(
    "source",
    [{"enabled": False}, {"excludes": ["secret"]}, {"includes": ["price"]}],
)
def test_a_partial_source_is_refused(
    shop: Shop,
    at: str,
    tmp_path: Path,
    vectors: NDArray[np.float32],
    source: dict[str, Any],
) -> None:
    """An update writes a document from its _source: what that lacks would be gone."""
    shop.ask(
        "PUT",
        shop.name,
        {"settings": {"number_of_replicas": 0}, "mappings": {"_source": source}},
    )
    shop.ask("PUT", f"{shop.name}/_doc/d0?refresh=true", {"price": 1, "secret": "s"})
    before = shop.ask("GET", f"{shop.name}*")
    with pytest.raises(
        BackendError,
        match="keeps a part of its documents in _source, so that an update would lose",
    ):
        attach_index(
            shop.name,
            [features(tmp_path / "one.h5", ["d0"], vectors[:1])],
            at=at,
            code="scalar",
        )
    assert shop.ask("GET", f"{shop.name}*") == before
    there = {"query": {"exists": {"field": "secret"}}}
    assert shop.ask("POST", f"{shop.name}/_count", there)["count"] == 1


@pytest.mark.servers
@pytest.mark.parametrize("kind", ["elasticsearch-9", "opensearch-3"])
def test_a_hardened_server(
    own: Callable[[Server], Server],
    kind: str,
    tmp_path: Path,
    vectors: NDArray[np.float32],
) -> None:
    """Where scripts are forbidden, and requests short, indexes work, and attaching is refused
    before it writes."""
    hard = {
        "script.allowed_types": "none",
        "http.max_content_length": "1mb",
        "action.auto_create_index": False,
    }
    node = own(
        Server(kind, tmp_path, settings={**hard, "rest.action.multi.allow_explicit_index": False}),
    )
    at = address(node, replicas=0)
    file = features(tmp_path / "f.h5", [f"d{i}" for i in range(N)], vectors)
    build_index("own", file, at=at, code="bits:6")
    hits = Searcher.open("own", at).search_vectors(Embeddings("image", vectors[:5]), k=1)
    assert [found[0].id for found in hits] == [f"d{i}" for i in range(5)]
    assert verify(Searcher.open("own", at).index, pairs=200).right
    node.request("PUT", "shop", {"settings": {"number_of_replicas": 0}})
    node.request("PUT", "shop/_doc/d0?refresh=true", {"price": 1})
    before = node.request("GET", "shop*")
    with pytest.raises(
        BackendError,
        match=r"cannot execute \[inline\] scripts.*; allow scripts of updates \(script",
    ):
        attach_index("shop", [file], at=at, code="scalar")
    assert node.request("GET", "shop*") == before
