"""What administrators do to indexes: snapshots, clones, shrinking, reindexing, aliases, templates.
Afterwards an index is whole, or opening it says in one line what is lost and what to do."""

import re
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from boc.errors import BackendError, BocWarning
from boc.evaluate.verify import verify
from boc.manage.attach import attach_index
from boc.manage.build import add_items, build_index
from boc.manage.copy import copy_index
from boc.plugins import backend
from boc.search.searcher import Searcher
from boc.types import MODALITIES, Batch, Embeddings, Item, Modality
from indexing.server.transport import Json
from tests.helpers import boc
from tests.oracles import random_units, write_features
from tests.servers.errors import RequestError
from tests.servers.fixtures import address, kinds

N = 400
DIM = 16
LOST = r"items without a code, such as .*copy_index\(\), _clone, _shrink, _split or a snapshot"

pytestmark = [
    pytest.mark.servers,
    pytest.mark.parametrize(
        "server",
        kinds("opensearch-3", "elasticsearch-9"),
        indirect=True,
    ),
]


def made(path: Path, seed: int) -> Path:
    """A feature file of N pictures and N captions."""
    batches = []
    for number, modality in enumerate(MODALITIES):
        items = [
            Item(f"{modality}/{i}", modality, f"{modality} {i} of {seed}", f"{i}") for i in range(N)
        ]
        batches.append(
            Batch(
                items,
                Embeddings(modality, random_units(2 * seed + number, N, DIM)),
            ),
        )
    return write_features(path, *batches, dtype="float16")


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> list[Path]:
    folder = tmp_path_factory.mktemp("made")
    return [
        made(
            folder / f"{seed}.h5",
            seed,
        )
        for seed in (1, 2)
    ]


refused = partial(pytest.raises, BackendError)
RUNTIME = {"modality": {"type": "keyword", "script": {"source": "emit('x')"}}}
"""A field that is computed in place of one of boc."""


@dataclass
class Place:
    """A server, two feature files, and the beginning of the names of a test, all of which are
    removed after it."""

    server: Any
    name: str
    files: list[Path]

    def __post_init__(self) -> None:
        self.at = address(self.server, replicas=0, shards=2)
        self.backend = backend(self.at)
        self.queries = random_units(9, 6, DIM)

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
    ) -> Any:
        return self.server.request(method, path, body)

    def build(self, name: str = "", file: int = 0, code: str = "bits:6", **options: Any) -> None:
        build_index(
            name or self.name,
            self.files[file],
            at=self.at,
            code=code,
            **options,
        )

    def add(self) -> None:
        add_items(
            self.name,
            self.files[1],
            at=self.at,
        )

    def set(self, setting: str, value: object) -> None:
        self.ask("PUT", f"{self.name}/_settings", {f"index.{setting}": value})

    def reindex(self, source: str, target: str) -> Any:
        body = {"source": {"index": source}, "dest": {"index": target}}
        return self.ask("POST", "_reindex?refresh=true", body)

    def physical(self, name: str = "") -> str:
        (found,) = self.ask("GET", name or self.name)
        return str(found)

    def alias(self, *actions: object) -> None:
        self.ask("POST", "_aliases", {"actions": actions})

    def move(self, alias: str, to: str) -> None:
        old = {"index": "*", "alias": alias, "must_exist": False}
        self.alias(
            {"remove": old},
            {"add": {"index": to, "alias": alias}},
        )

    def open(self, name: str = "") -> Searcher:
        return Searcher.open(name or self.name, self.at)

    def search(
        self,
        name: str = "",
        modality: Modality = "text",
    ) -> Any:
        query = Embeddings(modality, self.queries)
        answers = self.open(name).search_vectors(
            query,
            k=8,
            rm=2 * N,
        )
        return [
            [
                (
                    hit.item.id,
                    hit.item.content,
                    round(
                        hit.score,
                        5,
                    ),
                )
                for hit in hits
            ]
            for hits in answers
        ]

    def check(
        self,
        name: str = "",
        hits: object = None,
    ) -> None:
        """The index ``name`` verifies, and has these ``hits``, if they are given."""
        assert verify(self.open(name).index, pairs=100).right
        assert hits is None or self.search(name) == hits

    def refuses_changes(self, name: str) -> None:
        """The index is read under this name, and no command changes or removes it."""
        before = self.ask("GET", f"*{self.name}*?expand_wildcards=all")
        for change in (
            lambda: self.backend.edit(name),
            lambda: self.backend.compact(name),
            lambda: self.backend.remove(name),
            lambda: self.build(name, 1, replace=True),
        ):
            with refused(match="allows only searches; change the index under its own name"):
                change()
        assert self.ask("GET", f"*{self.name}*?expand_wildcards=all") == before


@pytest.fixture
def place(
    server: Any,
    files: list[Path],
) -> Iterator[Place]:
    place = Place(server, f"admin-{uuid.uuid4().hex[:10]}", files)
    yield place
    for each in place.ask("GET", f"*{place.name}*?expand_wildcards=all"):
        place.ask("DELETE", each)


@pytest.mark.parametrize("code", ["dictionary", "bits:6"])
def test_snapshot(place: Place, code: str):
    name = place.name
    repository = f"_snapshot/{place.name}"
    place.build(code=code)
    wanted = place.search()
    physical = place.physical()
    try:
        place.ask(
            "PUT",
            repository,
            {"type": "fs", "settings": {"location": name}},
        )
    except RequestError as error:
        pytest.skip(f"no file repository, a server that was not started here: {error}")
    try:
        body = {"indices": f"{name}*"}
        taken = place.ask("PUT", f"{repository}/one?wait_for_completion=true", body)
        assert taken["snapshot"]["state"] == "SUCCESS"
        place.ask("DELETE", physical)
        with refused(match="no index"):
            place.open()
        restore = f"{repository}/one/_restore?wait_for_completion=true"
        assert not place.ask(
            "POST",
            restore,
            {"indices": physical},
        )["snapshot"]["shards"]["failed"]
        place.check(name, wanted)
        renamed = {"indices": physical, "rename_pattern": "^", "rename_replacement": "restored-"}
        place.ask("POST", restore, {**renamed, "include_aliases": False})
        other = f"restored-{physical}"
        place.check(other, wanted)
        place.refuses_changes(other)
        # The name of the first index is still its own.
        place.build(name, 1, code, replace=True)
        place.check()
        assert place.search(other) == wanted != place.search()
    finally:
        place.ask("DELETE", f"{repository}/one")
        place.ask("DELETE", repository)


def test_clone_split_shrink(place: Place):
    """Shrinking does what a policy of index lifecycle management does: read only, one segment,
    shrunk, its aliases moved, the first index deleted."""
    name = place.name
    place.build(code="dictionary")
    wanted = place.search()
    physical = place.physical()
    shrunk = f"shrink-ab1c-{physical}"
    place.set("blocks.write", True)
    place.ask("POST", f"{name}/_forcemerge?max_num_segments=1")
    for how, target, shards in (
        ("clone", f"{name}-clone", 2),
        ("split", f"{name}-split", 4),
        ("shrink", shrunk, 1),
    ):
        body = {"settings": {"index.number_of_shards": shards}}
        place.ask("PUT", f"{physical}/_{how}/{target}", body)
        place.ask("GET", f"_cluster/health/{target}?wait_for_status=yellow&timeout=20s")
        place.check(target, wanted)
        place.refuses_changes(target)
    added = [{"add": {"index": shrunk, "alias": alias}} for alias in (name, physical)]
    place.alias({"remove_index": {"index": physical}}, *added)
    for alias in (name, physical):
        place.check(alias, wanted)
        place.refuses_changes(alias)


def test_reindex_is_refused(place: Place):
    name = place.name
    other = f"{name}-other"
    place.build()
    wanted = place.search()
    (entry,) = place.ask("GET", name).values()
    settings = entry["settings"]["index"]
    kept = {key: settings[key] for key in {"sort", "similarity", "analysis"} & settings.keys()}
    place.ask(
        "PUT",
        other,
        {"settings": {"index": kept}, "mappings": entry["mappings"]},
    )
    assert place.reindex(name, other)["created"] >= 2 * N
    with refused(match=LOST):
        place.open(other)
    place.move(f"{name}-alias", other)
    with refused(match=LOST):
        place.open(f"{name}-alias")
    place.ask("DELETE", other)
    place.ask("PUT", other)
    place.reindex(name, other)
    with refused(match=r"if it is to be a copy of an index of boc, make it with boc.copy_index"):
        place.open(other)

    copy_index(name, f"{name}-copy", at=place.at)
    place.check(f"{name}-copy", wanted)
    # Some documents are written again from their _source, in the index itself.
    some = {"query": {"ids": {"values": ["image/3"]}}}
    place.ask("POST", f"{name}/_update_by_query?refresh=true", some)
    with pytest.warns(BocWarning, match="has 1 items without a code, such as 'image/3'"):
        index = place.open().index
    assert len(list(index.items())) == 2 * N - 1
    with pytest.warns(BocWarning):
        add_items(name, place.files[0], at=place.at)
    place.check(name, wanted)


@pytest.fixture
def template(place: Place) -> Iterator[Callable[..., None]]:
    """Have the cluster make indexes of these names with settings and mappings of its own, by a
    template of today or, ``old``, of the form before."""

    def put(
        settings,
        mappings,
        *,
        old=False,
    ):
        take_away()
        content = {"settings": {"number_of_replicas": 0, **settings}, "mappings": mappings}
        body = {"index_patterns": [f"{place.name}*"]}
        if old:
            place.ask(
                "PUT",
                f"_template/{place.name}",
                {**body, "order": 9, **content},
            )
        else:
            body |= {"priority": 300, "template": content}
            place.ask("PUT", f"_index_template/{place.name}", body)

    def take_away():
        for kind in ("_template", "_index_template"):
            with suppress(RequestError):
                place.ask("DELETE", f"{kind}/{place.name}")

    yield put
    take_away()


def results(place: Place, name: str = "") -> object:
    answers = place.open(name).search_words(
        ["the text of 1"],
        k=20,
        find="text",
    )
    words = [
        [
            (
                hit.id,
                round(
                    hit.score,
                    5,
                ),
            )
            for hit in hits
        ]
        for hits in answers
    ]
    return place.search(name), words


ENGLISH = {"default": {"type": "english"}, "default_search": {"type": "english"}}
FIELDS: list[Json] = [
    {
        "content": {"type": "integer"},
        "group": {"type": "date"},
        "part": {"type": "boolean"},
    },
    {"content": {"type": "text", "copy_to": "words"}, "words": {"type": "keyword"}},
    {"modality": {"type": "keyword", "null_value": "image"}, "size": {"type": "date"}},
]
MAPPINGS: list[Json] = [
    {"runtime": RUNTIME},
    {"derived": RUNTIME},
    *({"properties": fields} for fields in FIELDS),
    {"_source": {"includes": ["x"], "excludes": ["x"]}, "dynamic": "strict"},
]
SETTINGS: list[Json] = [
    {"index.final_pipeline": "absent"},
    {"index.default_pipeline": "absent"},
    {"analysis": {"analyzer": ENGLISH}},
    {"similarity": {"default": {"type": "BM25", "b": 0, "k1": 0.1}}},
    {"index.sort.field": ["modality", "size"], "index.sort.missing": ["_first"] * 2},
    {
        "index.max_result_window": 10,
        "index.max_rescore_window": 5,
        "index.max_terms_count": 3,
    },
    {"index.max_docvalue_fields_search": 0, "index.max_script_fields": 0},
    {"index.hidden": True},
    {"index.write.wait_for_active_shards": "2", "number_of_replicas": 1},
    {"index.auto_expand_replicas": "0-all", "index.mapping.ignore_malformed": True},
    {"index.mapping.total_fields.limit": 5, "index.mapping.depth.limit": 1},
    {"index.search.default_pipeline": "absent"},
    {f"index.blocks.{block}": True for block in ("read_only", "read", "write", "metadata")},
]


def test_template_changes_nothing(
    place: Place,
    template: Callable[..., None],
):
    place.build()
    wanted = results(place)
    cases = [*(({}, mappings) for mappings in MAPPINGS), *((each, {}) for each in SETTINGS)]
    for number, case in enumerate(cases):
        try:
            template(*case)
        except RequestError:
            # The server knows no such setting.
            continue
        name = f"{place.name}-{number}"
        # The second time nothing is left to do.
        for _ in range(2):
            place.build(name)
        assert name in place.backend.names()
        assert results(place, name) == wanted, case
        place.check(name)


WORDS = ({"index": False}, {"norms": False})
KEYWORDS = ({"copy_to": "words"}, {"doc_values": False}, {"ignore_above": 2})
ADDED: list[Json] = [
    {"enabled": False},
    {"_routing": {"required": True}},
    {"_source": {"excludes": ["content", "arr*"]}},
    *({"properties": {"words": {"type": "text", **more}}} for more in WORDS),
    *({"properties": {"modality": {"type": "keyword", **more}}} for more in KEYWORDS),
    *({"properties": {"meta": more}} for more in ({"enabled": False}, {"type": "nested"})),
]


@pytest.mark.parametrize("old", [True, False])
def test_additions_of_a_template_are_named(
    place: Place,
    template: Callable[..., None],
    *,
    old: bool,
):
    """The index is as without the template, or nothing is left of the load, which goes on once the
    template is gone."""
    plain = f"{place.name}-plain"
    place.build(plain)
    wanted = results(place, plain)
    refusals = []
    for mappings in ADDED:
        template({}, mappings, old=old)
        try:
            place.build()
        except BackendError as error:
            refusals.append(str(error))
            assert not place.ask("GET", f"{place.name}-boc-*"), mappings
            template({}, {})
            place.build()
        assert results(place) == wanted, mappings
        place.backend.remove(place.name)
    assert refusals
    words = "a template of the cluster (sets|hides|has)|refused admin-.*; change what a template"
    assert [
        each
        for each in refusals
        if not re.search(
            words,
            each,
        )
    ] == []


def test_fields_computed_later_are_named(place: Place):
    place.build()
    wanted = place.search()
    mapping = f"{place.physical()}/_mapping"
    if place.server.kind.engine == "opensearch":
        # Derived fields take no name of a field that exists.
        with pytest.raises(RequestError):
            place.ask("PUT", mapping, {"derived": RUNTIME})
        return
    place.ask("PUT", mapping, {"runtime": RUNTIME})
    with refused(match="computes modality in place of .* boc wrote; remove these runtime fields"):
        place.open()
    assert place.name in place.backend.about()["unreadable"]
    place.ask("PUT", mapping, {"runtime": {"modality": None}})
    assert place.search() == wanted
    # A load that broke off under such a field begins again.
    place.ask("PUT", mapping, {"runtime": RUNTIME})
    place.ask("DELETE", f"{place.physical()}/_alias/{place.name}")
    place.build()
    assert place.search() == wanted


@pytest.mark.parametrize("kind", ["final_pipeline", "default_pipeline"])
def test_later_pipeline_is_refused_before_writing(place: Place, kind: str):
    place.build()
    pipeline = f"_ingest/pipeline/{place.name}"
    place.ask("PUT", pipeline, {"processors": []})
    try:
        place.set(kind, place.name)
        with refused(match=rf"has a {kind}, which may change written documents.*: \"_none\"}}"):
            place.add()
        assert not place.open().index.is_unfinished
        place.set(kind, "_none")
    finally:
        place.ask("DELETE", pipeline)
    place.add()
    place.check()


@pytest.mark.parametrize("trouble", ["metadata", "read", "close"])
def test_trouble_of_one_index_costs_that_index_only(place: Place, trouble: str):
    other = f"{place.name}-other"
    place.build()
    place.build(other)
    physical = place.physical()
    block = f"{physical}/_settings", {f"index.blocks.{trouble}": True}
    free = f"{physical}/_settings", {f"index.blocks.{trouble}": None}
    if trouble == "close":
        place.ask("POST", f"{physical}/_close")
    else:
        place.ask("PUT", *block)
    try:
        assert {place.name, other} <= {*place.backend.names()}
        unreadable = place.backend.about()["unreadable"]
        words = rf"\b{place.name} \(.*(closed; open it|remove this block)"
        assert re.search(words, unreadable)
        assert other not in unreadable
        place.check(other)
        assert other in boc(f"info --at {place.at}").output
        with refused(match="no index"):
            place.open(f"{place.name}-absent")
        place.build(f"{place.name}-new")
    finally:
        if trouble == "close":
            place.ask("POST", f"{physical}/_open")
        else:
            place.ask("PUT", *free)
    place.check()
    assert place.name not in place.backend.about().get(
        "unreadable",
        "",
    )


def test_template_that_forbids_the_index_is_named(place: Place):
    path = f"_index_template/{place.name}"
    pattern = {"index_patterns": [f"{place.name}*"], "priority": 300}
    place.ask("PUT", path, {**pattern, "data_stream": {}})
    with refused(match=r"refused admin-.*data streams only.*change what a template \(GET"):
        place.build()
    # The archive of Elasticsearch lacks the module of data streams.
    if place.server.kind.engine == "opensearch":
        stream = f"_data_stream/{place.name}"
        place.ask("PUT", stream)
        with refused(match="is a data stream, whose documents cannot change; attach to a _re"):
            attach_index(
                place.name,
                place.files[:1],
                at=place.at,
            )
        place.ask("DELETE", stream)
    place.ask("DELETE", path)
    place.build()
    place.check()


def test_refusal_after_a_rollover_names_the_next_step(place: Place):
    place.build()
    place.ask("POST", f"{place.name}/_rollover/{place.name}-other")
    place.check()
    with refused(match=r"more than one write index.*; take the alias from the other index"):
        place.build(file=1, replace=True)
    place.ask("DELETE", f"{place.name}-other")
    place.build(file=1, replace=True)
    place.check()


@pytest.mark.slow
def test_shards_without_a_node_are_named(
    place: Place,
    template: Callable[..., None],
):
    lacking = f"{place.name}-lacks-a-node"
    place.ask("PUT", lacking, {"settings": {"number_of_replicas": 9}})
    template({"index.routing.allocation.require.data": "hot"}, {})
    with refused(match=r"no node accepts the shards of .* \(.*require.*then run the command again"):
        place.build()
    place.ask("DELETE", lacking)
    assert place.ask("GET", f"*{place.name}*?expand_wildcards=all") == {}


def test_filtered_alias_shows_its_items_only(place: Place, tmp_path: Path):
    alias = f"{place.name}-public"
    second = f"{place.name}-two"
    tags = {f"{modality}/{i}": f"t{i % 3}" for modality in MODALITIES for i in range(N)}
    rows = ["id,tag", *(f"{id},{tag}" for id, tag in tags.items())]
    (tmp_path / "tags.csv").write_text("\n".join(rows))
    place.build(metadata=tmp_path / "tags.csv")
    shown = {id for id, tag in tags.items() if tag == "t1"}
    condition = {"term": {"meta.tag": "t1"}}
    place.alias({"add": {"index": place.physical(), "alias": alias, "filter": condition}})
    searcher = place.open(alias)
    index = searcher.index
    assert sum(index.manifest.items.values()) == len(shown)
    assert {item.id for item in index.items()} == shown
    assert set(index.sample(50, "image")) <= shown
    with pytest.raises(KeyError):
        index.find(["image/0"])
    query = Embeddings("text", place.queries)
    pictures = {id for id in shown if id.startswith("image")}
    for hits in searcher.search_vectors(query, k=N):
        assert {hit.id for hit in hits} == pictures
    (hits,) = searcher.search_words(
        ["image"],
        k=N,
        find="image",
    )
    assert {hit.id for hit in hits} <= shown
    copy_index(alias, at=place.at, to=f"file:{tmp_path}")
    assert {item.id for item in backend(f"file:{tmp_path}").open(alias).items()} == shown
    place.refuses_changes(alias)
    place.build(second, 1)
    place.move(alias, place.physical(second))
    with refused(match="is now another index; open it again"):
        searcher.search_vectors(query, k=N)


def test_reindex_keeps_attached_codes(place: Place):
    name = place.name
    first, second, third = (f"{name}-{i}" for i in (1, 2, 3))
    place.ask(
        "PUT",
        first,
        {"mappings": {"dynamic": False}, "aliases": {name: {}}},
    )
    for i in range(N):
        place.ask("PUT", f"{first}/_doc/image%2F{i}", {"price": i})
    attach_index(
        name,
        place.files[:1],
        at=place.at,
        code="bits:6",
    )
    hits = place.search(modality="image")
    (entry,) = place.ask("GET", first).values()
    for target, body in ((second, {"mappings": entry["mappings"]}), (third, None)):
        place.ask("PUT", target, body)
        place.reindex(first, target)
    place.move(name, second)
    place.ask("DELETE", first)
    place.check()
    assert place.search(modality="image") == hits
    place.move(name, third)
    with refused(match="create it with the mapping of 'boc'"):
        place.open()


def test_move_of_an_alias(place: Place):
    """Who searches through it has the hits of one index or the other, whole."""
    one, two, three, live = (f"{place.name}-{each}" for each in ("one", "two", "three", "live"))
    place.build(one)
    place.build(two, 1)
    allowed = [place.search(name) for name in (one, two)]
    place.move(live, place.physical(one))
    stop = threading.Event()

    def search():
        while not stop.is_set():
            yield allowed.index(place.search(live))

    def load():
        for file in (1, 0):
            place.build(three, file, replace=True)

    with ThreadPoolExecutor(2) as pool:
        seen = pool.submit(lambda: set(search()))
        loaded = pool.submit(load)
        for i in range(20):
            place.move(
                live,
                place.physical((two, one)[i % 2]),
            )
            threading.Event().wait(0.02)
        wait([loaded])
        stop.set()
    loaded.result()
    assert seen.result() == {0, 1}
    for name in (one, two, live, three):
        place.check(name)
    place.refuses_changes(live)
    place.alias({"add": {"index": place.physical(two), "alias": live}})
    with refused(match="is a name of 2 indexes; name one"):
        place.open(live)
