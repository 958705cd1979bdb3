"""What an administrator does before, amid and after our commands, a case a row.

Each case has an index of another program, ``art``, with its alias, counts and settings, and one of
ours, ``pics``. Whatever is done: nothing of theirs is changed, nothing of ours is lost, and an
error says what to do.
"""

import json
import re
import uuid
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from boc.errors import BocError
from boc.evaluate.verify import verify
from boc.manage.attach import AttachReport, attach_index, detach_index
from boc.manage.build import add_items, build_index, delete_items
from boc.manage.copy import copy_index
from boc.plugins import backend
from boc.search.searcher import Searcher
from boc.types import Batch, Embeddings, Item
from indexing.server import creation
from indexing.server.transport import Json
from tests.oracles import random_units, write_features
from tests.servers.errors import RequestError
from tests.servers.fixtures import address, kinds

pytestmark = [
    pytest.mark.servers,
    pytest.mark.parametrize(
        "server",
        kinds("elasticsearch-9", "opensearch-3"),
        indirect=True,
    ),
]
N = 120
DIM = 16
CODE = "dictionary:2/16"
VECTORS = random_units(3, N, DIM)


def feature_file(path: Path, count: int) -> Path:
    items = [
        Item(
            f"{i:03d}",
            "image",
            f"{i}.jpg",
        )
        for i in range(count)
    ]
    batch = Batch(
        items,
        Embeddings("image", VECTORS[:count]),
    )
    return write_features(
        path,
        batch,
        dtype="float16",
    )


@dataclass
class Site:
    """A cluster with an index of another program, and what its administrator did to it."""

    server: Any
    folder: Path
    key: str = field(default_factory=lambda: uuid.uuid4().hex[:8])

    def __post_init__(self) -> None:
        self.at = address(self.server, replicas=0)
        self.art = f"art{self.key}"
        self.first = f"{self.art}-000001"
        self.second = f"{self.art}-000002"
        self.pics = f"pics{self.key}"
        self.file = feature_file(self.folder / "all.h5", N)
        self.some = feature_file(self.folder / "some.h5", N // 2)
        self.undo: list[tuple[str, str, Json | None]] = []

    def ask(self, method: str, path: str, body: object = None) -> Any:
        return self.server.request(method, path, body)

    def make(self, mappings: Json | None = None, **more: object) -> None:
        """The index of the other program, which reads and writes it by its alias."""
        self.ask(
            "PUT",
            self.first,
            {
                "settings": {"number_of_replicas": 0},
                "mappings": mappings or {},
                "aliases": {self.art: {}},
            },
        )
        self.write(N, **more)

    def write(self, count: int, **more: object) -> None:
        lines = []
        for i in range(count):
            lines += [
                json.dumps({"index": {"_id": f"{i:03d}"}}),
                json.dumps({"sku": f"{i:03d}", "n": i, **more}),
            ]
        body = "\n".join([*lines, ""]).encode()
        assert not self.ask("POST", f"{self.art}/_bulk?refresh=true", body)["errors"]

    def template(self, kind: str = "art", **content: object) -> None:
        path = f"_index_template/{kind}{self.key}"
        body = {
            "index_patterns": [f"*{kind}{self.key}*"],
            "priority": 400,
            "template": content,
        }
        self.ask("PUT", path, body)
        self.undo.append(("DELETE", path, None))

    def set(self, index: str, name: str, value: object) -> None:
        self.ask("PUT", f"{index}/_settings", {f"index.{name}": value})
        self.undo.insert(0, ("PUT", f"{index}/_settings", {f"index.{name}": None}))

    def cluster(self, name: str, value: object) -> None:
        self.ask("PUT", "_cluster/settings", {"persistent": {name: value}})
        self.undo.insert(0, ("PUT", "_cluster/settings", {"persistent": {name: None}}))

    def restore(self) -> None:
        for method, path, body in self.undo:
            try:
                self.ask(method, path, body)
            except RequestError:
                # The index is gone with its setting.
                continue
        self.undo.clear()

    def theirs(self) -> Json:
        """All of the other program: documents without ours, counts, aliases, settings, fields."""
        result = {"patterns": sorted(self.ask("GET", f"{self.art}*"))}
        for index in result["patterns"]:
            entry = self.ask("GET", index)[index]
            entry["mappings"].get("properties", {}).pop("boc", None)
            hits = self.ask("GET", f"{index}/_search?size=1000")["hits"]["hits"]
            sources = {hit["_id"]: hit["_source"] for hit in hits}
            for source in sources.values():
                if "row" in (source.get("boc") or ()):
                    del source["boc"]
            result[index] = [entry, sources]
        return result

    def attach(self, name: str = "", **options: Any) -> AttachReport:
        report = attach_index(
            name or self.art,
            [self.file],
            at=self.at,
            code=CODE,
            **options,
        )
        assert report is not None
        return report

    def build(self, **options: Any) -> None:
        build_index(
            self.pics,
            self.file,
            at=self.at,
            code=CODE,
            **options,
        )

    def hits(self, name: str) -> list[str]:
        query = Embeddings("image", VECTORS[5:6])
        (hits,) = Searcher.open(name, self.at).search_vectors(query, k=3)
        return [hit.id for hit in hits]

    def check(self, name: str, count: int = N) -> None:
        """The index is whole."""
        index = Searcher.open(name, self.at).index
        assert verify(index, pairs=50).right
        assert sum(index.manifest.items.values()) == count
        assert self.hits(name)[0] == "005"


@pytest.fixture
def site(server: Any, tmp_path: Path) -> Iterator[Site]:
    site = Site(server, tmp_path)
    yield site
    site.restore()
    for each in site.ask("GET", f"*{site.key}*?expand_wildcards=all"):
        site.ask("DELETE", each)


Step = Callable[[Site], object]


def attached(site: Site) -> None:
    """An attachment ends well, is searched, and leaves nothing."""
    site.attach()
    site.check(site.art)
    site.write(N)
    detach_index(site.art, at=site.at)


def loaded(site: Site) -> None:
    site.build()
    site.check(site.pics)
    site.build(replace=True)
    site.check(site.pics)


# Templates that match indexes of ours: what they add is no part of them.
TEMPLATES: dict[str, tuple[Step, Step]] = {
    "alias of theirs": (
        lambda site: site.template(aliases={site.art: {}}),
        attached,
    ),
    "hidden and many replicas": (
        lambda site: site.template(settings={"number_of_replicas": 1, "index.hidden": True}),
        attached,
    ),
    "default pipeline": (
        lambda site: site.template(settings={"index.default_pipeline": "absent"}),
        attached,
    ),
    "alias of our name": (
        lambda site: site.template("pics", aliases={site.pics: {}}),
        loaded,
    ),
    "alias of another name": (
        lambda site: site.template("pics", aliases={f"all{site.key}": {}}),
        loaded,
    ),
    "final pipeline": (
        lambda site: site.template("pics", settings={"index.final_pipeline": "absent"}),
        loaded,
    ),
    "read-only from the start": (
        lambda site: site.template("pics", settings={"index.blocks.write": True}),
        loaded,
    ),
    "small windows": (
        lambda site: site.template("pics", settings={"index.max_result_window": 5}),
        loaded,
    ),
    "dynamic fields": (
        lambda site: site.template("pics", mappings={"dynamic": "strict"}),
        loaded,
    ),
}


@pytest.mark.parametrize("case", TEMPLATES)
def test_templates_change_nothing(site: Site, case: str):
    prepare, use = TEMPLATES[case]
    site.make()
    prepare(site)
    before = site.theirs()
    use(site)
    assert site.theirs() == before
    ours = site.ask("GET", f"{site.pics}*?expand_wildcards=all").values()
    assert {alias for each in ours for alias in each["aliases"]} <= {site.pics}


def close(site: Site) -> None:
    site.ask("POST", f"{site.first}/_close")
    site.undo.insert(0, ("POST", f"{site.first}/_open", None))


def roll(site: Site) -> None:
    site.ask("PUT", site.second, {"aliases": {site.art: {"is_write_index": True}}})


def add_alias(site: Site, index: str, alias: str, **options: object) -> None:
    add = {"index": index, "alias": alias, **options}
    site.ask("POST", "_aliases", {"actions": [{"add": add}]})


# Before an attachment: it is refused with these words, and nothing is changed.
REFUSED: dict[str, tuple[Json | None, Step, str, Json]] = {
    "object of theirs, not mapped": (
        {"dynamic": False},
        lambda site: site.write(N, boc={"theirs": "precious"}),
        "already has a field 'boc'",
        {},
    ),
    "text of theirs, not mapped": (
        {"dynamic": False},
        lambda site: site.write(N, boc="precious"),
        "already has a field 'boc'",
        {},
    ),
    "keyword of theirs, mapped": (
        {"properties": {"boc": {"type": "keyword"}}},
        lambda site: None,
        "has a field 'boc' of another kind",
        {},
    ),
    "object of theirs, mapped": (
        {"properties": {"boc": {"properties": {"theirs": {"type": "keyword"}}}}},
        lambda site: None,
        "has a field 'boc' of another kind",
        {},
    ),
    "half of _source": (
        {"_source": {"excludes": ["n"]}},
        lambda site: None,
        "stores only a part of its documents in _source.*rebuild it",
        {},
    ),
    "name of the code taken": (
        None,
        lambda site: add_alias(site, site.first, f"{site.art}-boc"),
        "the alias of a code of .* is a name of .*give the documents another alias",
        {},
    ),
    "limit of fields": (
        None,
        lambda site: site.set(site.first, "mapping.total_fields.limit", 2),
        "Limit of total fields .*raise this limit",
        {},
    ),
    "wildcard": (None, lambda site: None, "is not a valid index name; use", {"name": "art*"}),
    "another cluster": (
        None,
        lambda site: None,
        "is not a valid index name; use",
        {"name": "a:art"},
    ),
    "hidden name": (None, lambda site: None, "is not a valid index name; use", {"name": ".art"}),
    "long name": (None, lambda site: None, "is not a valid index name; use", {"name": 101 * "a"}),
    "small window": (
        None,
        lambda site: site.set(site.first, "max_result_window", 500),
        r"max_result_window 500.*raise it",
        {},
    ),
    "write block": (
        None,
        lambda site: site.set(site.first, "blocks.write", True),
        "remove this block",
        {},
    ),
    "read-only": (
        None,
        lambda site: site.set(site.first, "blocks.read_only", True),
        "remove this block",
        {},
    ),
    "read block": (
        None,
        lambda site: site.set(site.first, "blocks.read", True),
        "remove this block",
        {},
    ),
    "metadata block": (
        None,
        lambda site: site.set(site.first, "blocks.metadata", True),
        "remove this block",
        {},
    ),
    "read-only cluster": (
        None,
        lambda site: site.cluster("cluster.blocks.read_only", True),
        "remove this block",
        {},
    ),
    "closed": (None, close, "_open", {}),
    "two indexes": (None, roll, "is a name of 2 indexes; name one", {}),
    "no room for shards": (
        None,
        lambda site: site.cluster("cluster.max_shards_per_node", 1),
        "maximum|shards",
        {},
    ),
    "unknown field": (None, lambda site: None, "is no field.*name a keyword", {"key": "nope"}),
    "text field": (None, lambda site: None, "is text.*name a keyword", {"key": "sku"}),
    "field of other ids": (
        {"properties": {"m": {"type": "long"}}},
        lambda site: site.write(N, m=1000),
        r"no item \(for example '000'\) has a document; name the document field",
        {"key": "m"},
    ),
    "short keywords": (
        {"properties": {"sku": {"type": "keyword", "ignore_above": 2}}},
        lambda site: None,
        "leaves out values of more than 2",
        {"key": "sku"},
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_attachment_changes_nothing(site: Site, case: str):
    mappings, prepare, words, options = REFUSED[case]
    site.make(mappings)
    entry = site.ask("GET", site.first)
    prepare(site)
    with pytest.raises(BocError, match=words):
        site.attach(**options)
    site.restore()
    after = site.ask("GET", site.first)
    assert after[site.first]["mappings"] == entry[site.first]["mappings"]
    found = site.ask("GET", f"*{site.key}*?expand_wildcards=all")
    assert {*found} <= {site.first, site.second}
    sources = [each for _, each in map(site.theirs().get, {site.first})]
    assert len(sources[0]) == N


def import_half(site: Site) -> None:
    site.write(N // 2)


def copy_mapped(site: Site) -> None:
    mappings = site.ask("GET", site.first)[site.first]["mappings"]
    site.ask("PUT", site.second, {"mappings": mappings})
    body = {"source": {"index": site.first}, "dest": {"index": site.second}}
    site.ask("POST", "_reindex?refresh=true", body)
    site.ask("DELETE", site.first)
    add_alias(site, site.second, site.art)


def clone(site: Site) -> None:
    site.set(site.first, "blocks.write", True)
    site.ask("PUT", f"{site.first}/_clone/{site.second}")
    site.restore()
    site.ask("PUT", f"{site.second}/_settings", {"index.blocks.write": None})
    add_alias(site, site.second, site.art)
    site.ask("DELETE", site.first)


# After an attachment: how many items are found, whether it verifies, what is warned of.
AFTER: dict[str, tuple[Step, int, bool, str]] = {
    "nightly import of all": (lambda site: site.write(N), 0, False, f"{N} documents .* lost"),
    "nightly import of a half": (import_half, N // 2, False, f"{N // 2} documents .* lost"),
    "documents removed": (
        lambda site: [site.ask("DELETE", f"{site.first}/_doc/{i:03d}") for i in range(20)],
        N - 20,
        True,
        "",
    ),
    "partial updates": (
        lambda site: [
            site.ask("POST", f"{site.art}/_update/{i:03d}", {"doc": {"views": 1}})
            for i in range(20)
        ],
        N,
        True,
        "",
    ),
    "rollover": (roll, N, True, "000001 has the code and is searched"),
    "reindex with the mapping": (copy_mapped, N, True, ""),
    "clone": (clone, N, True, ""),
}


@pytest.mark.filterwarnings("ignore::boc.errors.BocWarning")
@pytest.mark.parametrize("case", AFTER)
def test_changes_after_an_attachment_are_told(site: Site, case: str):
    change, found, right, words = AFTER[case]
    site.make()
    site.attach()
    change(site)
    site.ask("POST", f"{site.art}*/_refresh")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        searcher = Searcher.open(site.art, site.at)
    assert re.search(words, " ".join(str(each.message) for each in caught))
    assert bool(caught) == bool(words)
    assert verify(searcher.index, pairs=50).right == right
    assert len(list(searcher.index.items())) == found
    if not right:
        site.attach()
        site.check(site.art)
    detach_index(site.art, at=site.at)
    for index in site.ask("GET", f"{site.art}*"):
        hits = site.ask("GET", f"{index}/_search?size=1000")["hits"]["hits"]
        assert not [hit for hit in hits if "boc" in hit["_source"]]
    assert not site.ask("GET", f"boc-on-*{site.key}*?expand_wildcards=all")


def remove_code(site: Site) -> None:
    (code,) = site.ask("GET", f"boc-on-{site.art}-*?expand_wildcards=all")
    site.ask("DELETE", code)


def attach_again(site: Site) -> None:
    detach_index(site.art, at=site.at)
    site.make()
    site.attach()


def make_again(site: Site) -> None:
    site.ask("DELETE", site.first)
    site.make()


def move_alias(site: Site, old: str, new: str) -> None:
    add_alias(site, new, site.art)
    actions = [{"remove": {"index": old, "alias": site.art}}]
    site.ask("POST", "_aliases", {"actions": actions})


def move_away(site: Site) -> None:
    site.ask("PUT", site.second)
    move_alias(site, site.first, site.second)


# After an attachment: what cannot be done, the error, and what mends it.
BROKEN: dict[str, tuple[Step, Step, str, Step]] = {
    "index of the code removed": (
        remove_code,
        lambda site: site.hits(site.art),
        "add a code to its documents with",
        Site.attach,
    ),
    "documents removed": (
        lambda site: site.ask("DELETE", site.first),
        lambda site: site.hits(site.art),
        "has a code, but its documents are removed.*detach",
        attach_again,
    ),
    "index made again": (
        make_again,
        lambda site: site.hits(site.art),
        "the index was rebuilt",
        Site.attach,
    ),
    "alias moved away": (
        move_away,
        lambda site: site.hits(site.art),
        "or move the alias back",
        lambda site: move_alias(site, site.second, site.first),
    ),
    "read-only": (
        lambda site: site.set(site.first, "blocks.read_only", True),
        lambda site: detach_index(site.art, at=site.at),
        "remove this block",
        Site.restore,
    ),
    "attached under another name": (
        lambda site: None,
        lambda site: site.attach(site.first),
        "with a code attached.*attach art[0-9a-f]* adds to them",
        lambda site: None,
    ),
    "loaded under its name": (
        lambda site: None,
        lambda site: build_index(site.art, site.some, at=site.at, code=CODE, replace=True),
        "is an index of another program",
        lambda site: None,
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_errors_after_an_attachment_name_the_remedy(site: Site, case: str) -> None:
    change, use, words, mend = BROKEN[case]
    site.make()
    before = site.theirs()[site.first][1]
    site.attach()
    change(site)
    with pytest.raises(BocError, match=words):
        use(site)
    mend(site)
    site.check(site.art)
    detach_index(site.art, at=site.at)
    assert site.theirs()[site.first][1] == before
    assert not site.ask("GET", f"boc-on-*{site.key}*?expand_wildcards=all")


def test_removed_documents_stay_removed(site: Site) -> None:
    """An attachment that is under way does not make their index again."""
    site.make()

    def remove(stage: str, done: int, total: int) -> None:
        if stage == "attaching":
            site.ask("DELETE", site.first)

    with pytest.raises(BocError, match=r"no such index .*see what was removed"):
        site.attach(progress=remove)
    assert detach_index(site.art, at=site.at) == 0
    assert not site.ask("GET", f"*{site.key}*?expand_wildcards=all")


class Killed(BaseException):
    """The end of a process: nothing of ours runs after it."""


@pytest.mark.parametrize("kind", ["_index_template", "_template"])
@pytest.mark.parametrize(
    ("options", "reads"),
    [
        ({}, 0),
        ({"replace": True}, 0),
        ({"shard": "1/1"}, 0),
        ({"shard": "1/1"}, 2),
    ],
    ids=["load", "replace", "code of parts", "part"],
)
def test_kill_after_a_creation_changes_no_alias(
    site: Site,
    monkeypatch,
    options: Json,
    reads: int,
    kind: str,
):
    """No index of ours has an alias of a template, not even before boc could take it away.

    The process dies when it reads back an index that it created, after as many other ``reads``.
    """
    if "replace" in options:
        site.build()
    theirs = f"{site.pics}-theirs"
    content = {"aliases": {f"all{site.key}": {}}}
    body = content if kind == "_template" else {"template": content}
    site.ask("PUT", f"{kind}/{site.pics}", {"index_patterns": [f"{site.pics}*"], **body})
    site.undo.append(("DELETE", f"{kind}/{site.pics}", None))
    site.ask("PUT", theirs)
    left = iter(range(reads))
    whole = creation._read

    def read(*given: Any) -> Json:
        if next(left, None) is None:
            raise Killed
        return whole(*given)

    with monkeypatch.context() as patch:
        patch.setattr(creation, "_read", read)
        with pytest.raises(Killed):
            site.build(**options)
    assert {*site.ask("GET", f"_alias/all{site.key}")} == {theirs}
    site.build(**options)
    site.check(site.pics)
    assert {*site.ask("GET", f"_alias/all{site.key}")} == {theirs}
    assert site.pics in backend(site.at).names()


def give_back(site: Site) -> None:
    actions = [{"remove": {"index": site.first, "alias": site.pics}}]
    site.ask("POST", "_aliases", {"actions": actions})


@pytest.mark.parametrize(
    ("take", "restore"),
    [
        (lambda site: add_alias(site, site.first, site.pics), give_back),
        (
            lambda site: site.ask("PUT", site.pics),
            lambda site: site.ask("DELETE", site.pics),
        ),
    ],
)
def test_name_taken_amid_a_load(site: Site, take: Step, restore: Step) -> None:
    """It stays theirs alone. When they give it back, the load goes on with its rows."""
    site.make()

    def progress(stage: str, done: int, total: int) -> None:
        if stage == "indexing":
            take(site)

    with pytest.raises(BocError, match="was not made by boc; choose another name"):
        site.build(progress=progress)
    assert not [each for each in site.ask("GET", site.pics) if "-boc-" in each]
    restore(site)
    (physical,) = site.ask("GET", f"{site.pics}-boc-*")
    site.build()
    assert {*site.ask("GET", site.pics)} == {physical}
    site.check(site.pics)


@pytest.mark.parametrize("work", [Site.attach, Site.build])
def test_two_at_once(site: Site, work: Step) -> None:
    """One does the work, and the others are refused or find it done."""
    site.make()

    def outcome(number: int) -> str:
        try:
            work(site)
        except BocError as error:
            return str(error)
        return "done"

    with ThreadPoolExecutor() as pool:
        outcomes = {*pool.map(outcome, range(3))}
    assert "done" in outcomes
    refused = ("is being written by another process", "has an index")
    assert all(any(words in each for words in refused) for each in outcomes - {"done"}), outcomes
    site.check(site.art if work is Site.attach else site.pics)


def update_some(site: Site) -> None:
    site.ask("POST", f"{site.pics}/_update_by_query?max_docs=5&refresh=true")


def delete_some(site: Site) -> None:
    body = {"query": {"terms": {"id": [f"{i:03d}" for i in range(9)]}}}
    site.ask("POST", f"{site.pics}/_delete_by_query?refresh=true", body)


def take_alias(site: Site) -> None:
    actions = [{"remove": {"index": f"{site.pics}-boc-*", "alias": site.pics}}]
    site.ask("POST", "_aliases", {"actions": actions})


def break_off(site: Site) -> None:
    """Leave the index as a killed load does where a template gives the alias."""
    ((physical, entry),) = site.ask("GET", site.pics).items()
    own = entry["mappings"]["_meta"]
    own["server"]["state"] = "loading"
    site.ask("PUT", f"{physical}/_mapping", {"_meta": own})


# To an index of ours: the error, if any, and what mends it.
OURS: dict[str, tuple[Step, Step, str, Step]] = {
    "documents updated": (
        update_some,
        lambda site: site.check(site.pics),
        "",
        lambda site: add_items(site.pics, site.file, at=site.at),
    ),
    "documents deleted": (
        delete_some,
        lambda site: site.check(site.pics),
        "",
        lambda site: add_items(site.pics, site.file, at=site.at),
    ),
    "write block": (
        lambda site: site.set(site.pics, "blocks.write", True),
        lambda site: delete_items(site.pics, ["005"], at=site.at),
        r"index\.blocks\.write.*remove this block, then run",
        Site.restore,
    ),
    "short keep-alive": (
        lambda site: (
            site.cluster("search.default_keep_alive", "30s"),
            site.cluster("search.max_keep_alive", "1m"),
        ),
        lambda site: site.check(site.pics),
        "",
        Site.restore,
    ),
    "alias taken away": (
        take_alias,
        lambda site: site.hits(site.pics),
        "no index",
        lambda site: site.build(replace=True),
    ),
    "load broken off under the name": (
        break_off,
        lambda site: site.hits(site.pics),
        "is not loaded completely.*repeat",
        Site.build,
    ),
    "array of the code removed": (
        lambda site: site.ask("DELETE", f"{site.pics}/_doc/boc:block:0?refresh=true"),
        lambda site: site.hits(site.pics),
        "is missing or changed",
        lambda site: site.build(replace=True),
    ),
    "closed": (
        lambda site: site.ask("POST", f"{site.pics}/_close"),
        lambda site: site.hits(site.pics),
        "closed; open it",
        lambda site: site.ask("POST", f"{site.pics}/_open"),
    ),
}


@pytest.mark.filterwarnings("ignore::boc.errors.BocWarning")
@pytest.mark.parametrize("case", OURS)
def test_changes_of_our_index_are_mended(site: Site, case: str):
    change, use, words, mend = OURS[case]
    site.build()
    change(site)
    if words:
        with pytest.raises(BocError, match=words):
            use(site)
    elif case.startswith("documents"):
        index = Searcher.open(site.pics, site.at).index
        assert not verify(index, pairs=50).right
        site.hits(site.pics)
    else:
        use(site)
    mend(site)
    assert not backend(site.at).open(site.pics).is_unfinished
    site.check(site.pics)


def test_copy_of_odd_documents(site: Site):
    """Nulls, lists with nulls and points are left out, and told of."""
    mappings = {"properties": {"where": {"type": "geo_point"}}}
    odd = {"a": None, "b": [1, None, 2], "where": {"lat": 1, "lon": 2}, "c": {"d": None}}
    site.make(mappings, **odd)
    site.attach()
    to = f"file:{site.folder}"
    with pytest.warns(UserWarning, match="values that no filter of art.* supports are omitted"):
        copy_index(site.art, at=site.at, to=to)
    index = backend(to).open(site.art)
    item = next(iter(index.items()))
    assert (item.id, item.fields["n"], item.fields["b"]) == ("000", 0, [1, 2])
    assert verify(index, pairs=50).right
