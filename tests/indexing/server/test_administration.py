"""What administrators do to indexes: snapshots, clones, shrinking, reindexing, aliases, templates.
Afterwards an index is whole, or opening it says in one line what is lost and what to do."""

import re
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from boc.errors import BackendError
from boc.evaluate.verify import verify
from boc.manage.attach import attach_index
from boc.manage.build import add_items, build_index
from boc.manage.copy import copy_index
from boc.plugins import backend
from boc.search.searcher import Searcher
from boc.types import MODALITIES, Batch, Embeddings, Item, Modality
from tests.helpers import boc
from tests.oracles import random_units, write_features
from tests.servers.errors import RequestError
from tests.servers.fixtures import address, kinds

N = 400
DIM = 16
LOST = r"items without a code, such as .*boc copy, _clone, _shrink, _split or a snapshot"

pytestmark = [
    pytest.mark.servers,
    pytest.mark.parametrize("server", kinds("opensearch-3", "elasticsearch-9"), indirect=True),
]


def made(path: Path, seed: int) -> Path:
    """A feature file of N pictures and N captions."""
    batches = []
    for number, modality in enumerate(MODALITIES):
        items = [
            Item(f"{modality}/{i}", modality, f"{modality} {i} of {seed}", f"{i}") for i in range(N)
        ]
        batches.append(Batch(items, Embeddings(modality, random_units(2 * seed + number, N, DIM))))
    return write_features(path, *batches, dtype="float16")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("made")
    return [made(folder / f"{seed}.h5", seed) for seed in (1, 2)]


@pytest.fixture(scope="module")
def queries() -> NDArray[np.float32]:
    return random_units(9, 6, DIM)


@dataclass
class Place:
    """A server, and the beginning of the names of a test, all of which are removed after it."""

    server: Any
    name: str

    def __post_init__(self) -> None:
        self.at = address(self.server, replicas=0, shards=2)

    def ask(self, method: str, path: str, body: object = None) -> Any:
        return self.server.request(method, path, body)

    def physical(self, name: str) -> str:
        (found,) = self.ask("GET", name)
        return str(found)

    def move(self, alias: str, to: str) -> None:
        actions = [
            {"remove": {"index": "*", "alias": alias, "must_exist": False}},
            {"add": {"index": to, "alias": alias}},
        ]
        self.ask("POST", "_aliases", {"actions": actions})


@pytest.fixture
def place(server: Any) -> Iterator[Place]:
    found = Place(server, f"admin-{uuid.uuid4().hex[:10]}")
    yield found
    for each in found.ask("GET", f"*{found.name}*"):
        found.ask("DELETE", each)


def answers(
    at: str,
    name: str,
    queries: NDArray[np.float32],
    modality: Modality = "text",
) -> list[list[tuple[str, str, float]]]:
    found = Searcher.open(name, at).search_vectors(Embeddings(modality, queries), k=8, rm=2 * N)
    return [
        [(hit.item.id, hit.item.content, round(hit.score, 5)) for hit in hits] for hits in found
    ]


def is_right(place: Place, name: str) -> bool:
    return verify(backend(place.at).open(name), pairs=100).right


def refuses_changes(place: Place, name: str, file: Path) -> None:
    """The index is read under this name, and no command changes or removes it."""
    before = place.ask("GET", f"*{place.name}*")
    there = backend(place.at)
    for change in (
        lambda: there.edit(name),
        lambda: there.compact(name),
        lambda: there.remove(name),
        lambda: build_index(name, file, at=place.at, replace=True),
    ):
        with pytest.raises(
            BackendError,
            match="read under this name, not changed; change it under its own name",
        ):
            change()
    assert place.ask("GET", f"*{place.name}*") == before


@pytest.mark.parametrize("code", ["dictionary", "bits:6"])
def test_snapshot(place: Place, files: list[Path], queries: NDArray[np.float32], code: str) -> None:
    name = place.name
    repository = f"_snapshot/{place.name}"
    build_index(name, files[0], at=place.at, code=code)
    wanted = answers(place.at, name, queries)
    physical = place.physical(name)
    try:
        place.ask("PUT", repository, {"type": "fs", "settings": {"location": name}})
    except RequestError as refused:  # a server that was not started here
        pytest.skip(f"no file repository: {refused}")
    try:
        taken = place.ask(
            "PUT",
            f"{repository}/one?wait_for_completion=true",
            {"indices": f"{name}*"},
        )
        assert taken["snapshot"]["state"] == "SUCCESS"
        place.ask("DELETE", physical)
        with pytest.raises(BackendError, match="no index"):
            backend(place.at).open(name)
        restore = f"{repository}/one/_restore?wait_for_completion=true"
        assert not place.ask("POST", restore, {"indices": physical})["snapshot"]["shards"]["failed"]
        assert is_right(place, name)
        assert answers(place.at, name, queries) == wanted
        renamed = {"indices": physical, "rename_pattern": "^", "rename_replacement": "restored-"}
        place.ask("POST", restore, {**renamed, "include_aliases": False})
        other = f"restored-{physical}"
        assert is_right(place, other)
        assert answers(place.at, other, queries) == wanted
        refuses_changes(place, other, files[1])
        build_index(
            name,
            files[1],
            at=place.at,
            code=code,
            replace=True,
        )  # its own name is still its own
        assert is_right(place, name)
        assert answers(place.at, other, queries) == wanted != answers(place.at, name, queries)
    finally:
        place.ask("DELETE", f"{repository}/one")
        place.ask("DELETE", repository)


def test_clone_split_shrink(place: Place, files: list[Path], queries: NDArray[np.float32]) -> None:
    """The second does what a policy of index lifecycle management does: read only, one segment,
    shrunk, its aliases moved, the first one deleted."""
    name = place.name
    build_index(name, files[0], at=place.at, code="dictionary")
    wanted = answers(place.at, name, queries)
    physical = place.physical(name)
    place.ask("PUT", f"{name}/_settings", {"index.blocks.write": True})
    place.ask("POST", f"{name}/_forcemerge?max_num_segments=1")
    for how, target in (
        ("clone", f"{name}-clone"),
        ("split", f"{name}-split"),
        ("shrink", f"shrink-ab1c-{physical}"),
    ):
        shards = {"clone": 2, "split": 4, "shrink": 1}[how]
        place.ask(
            "PUT",
            f"{physical}/_{how}/{target}",
            {"settings": {"index.number_of_shards": shards}},
        )
        place.ask("GET", f"_cluster/health/{target}?wait_for_status=yellow&timeout=20s")
        assert is_right(place, target)
        assert answers(place.at, target, queries) == wanted
        refuses_changes(place, target, files[1])
    shrunk = f"shrink-ab1c-{physical}"
    added = [{"add": {"index": shrunk, "alias": alias}} for alias in (name, physical)]
    place.ask("POST", "_aliases", {"actions": [{"remove_index": {"index": physical}}, *added]})
    for alias in (name, physical):
        assert is_right(place, alias)
        assert answers(place.at, alias, queries) == wanted
        refuses_changes(place, alias, files[1])


def test_reindex_is_refused(place: Place, files: list[Path], queries: NDArray[np.float32]) -> None:
    name = place.name
    other = f"{place.name}-other"
    build_index(name, files[0], at=place.at, code="bits:6")
    wanted = answers(place.at, name, queries)
    (entry,) = place.ask("GET", name).values()
    kept = {
        key: value
        for key, value in entry["settings"]["index"].items()
        if key in ("sort", "similarity", "analysis")
    }
    place.ask("PUT", other, {"settings": {"index": kept}, "mappings": entry["mappings"]})
    copied = place.ask(
        "POST",
        "_reindex?refresh=true",
        {"source": {"index": name}, "dest": {"index": other}},
    )
    assert copied["created"] >= 2 * N
    with pytest.raises(BackendError, match=LOST):
        Searcher.open(other, place.at)
    place.move(f"{name}-alias", other)
    with pytest.raises(BackendError, match=LOST):
        verify(backend(place.at).open(f"{name}-alias"))
    place.ask("DELETE", other)
    place.ask("PUT", other)
    place.ask(
        "POST",
        "_reindex?refresh=true",
        {"source": {"index": name}, "dest": {"index": other}},
    )
    with pytest.raises(
        BackendError,
        match="if it is to be a copy of an index of boc, make it with boc copy",
    ):
        Searcher.open(other, place.at)

    copy_index(name, f"{name}-copy", at=place.at)
    assert is_right(place, f"{name}-copy")
    assert answers(place.at, f"{name}-copy", queries) == wanted
    # Some documents written again from their _source, in the index itself.
    place.ask(
        "POST",
        f"{name}/_update_by_query?refresh=true",
        {"query": {"ids": {"values": ["image/3"]}}},
    )
    with pytest.raises(BackendError, match=f"such as 'image/3'.*{LOST[-30:]}"):
        Searcher.open(name, place.at)


@pytest.fixture
def template(place: Place) -> Iterator[Callable[..., None]]:
    """Have the cluster make indexes of these names with settings and mappings of its own, by a
    template of today or, ``old``, of the form before."""

    def put(settings: object, mappings: object = None, *, old: bool = False) -> None:
        take_away()
        content = {
            "settings": {"number_of_replicas": 0, **(settings or {})},
            "mappings": mappings or {},
        }
        pattern: dict[str, Any] = {"index_patterns": [f"{place.name}*"]}
        body = (
            {**pattern, "order": 9, **content}
            if old
            else {**pattern, "priority": 300, "template": content}
        )
        place.ask("PUT", f"{'_template' if old else '_index_template'}/{place.name}", body)

    def take_away() -> None:
        for kind in ("_template", "_index_template"):
            with suppress(RequestError):
                place.ask("DELETE", f"{kind}/{place.name}")

    yield put
    take_away()


def results(place: Place, name: str, queries: NDArray[np.float32]) -> object:
    searcher = Searcher.open(name, place.at)
    by_words = searcher.search_words(["the text of 1"], k=20, find="text")
    return answers(place.at, name, queries), [
        [(hit.id, round(hit.score, 5)) for hit in hits] for hits in by_words
    ]


def test_a_template_changes_nothing(
    place: Place,
    files: list[Path],
    queries: NDArray[np.float32],
    template: Callable[..., None],
) -> None:
    build_index(place.name, files[0], at=place.at, code="bits:6")
    wanted = results(place, place.name, queries)
    computed = {"modality": {"type": "keyword", "script": {"source": "emit('x')"}}}
    english = {"default": {"type": "english"}, "default_search": {"type": "english"}}
    mappings: Any
    for number, (settings, mappings) in enumerate(
        (
            *(({}, {each: computed}) for each in ("runtime", "derived")),
            (
                {},
                {
                    "properties": {
                        "content": {"type": "integer"},
                        "group": {"type": "date"},
                        "part": {"type": "boolean"},
                    },
                },
            ),
            (
                {},
                {
                    "properties": {
                        "content": {"type": "text", "copy_to": "words"},
                        "words": {"type": "keyword"},
                    },
                },
            ),
            (
                {},
                {
                    "properties": {
                        "modality": {"type": "keyword", "null_value": "image"},
                        "size": {"type": "date"},
                    },
                },
            ),
            ({}, {"_source": {"includes": ["x"], "excludes": ["x"]}, "dynamic": "strict"}),
            *(
                (settings, {})
                for settings in (
                    {"index.final_pipeline": "absent"},
                    {"index.default_pipeline": "absent"},
                    {"analysis": {"analyzer": english}},
                    {"similarity": {"default": {"type": "BM25", "b": 0, "k1": 0.1}}},
                    {
                        "index.sort.field": ["modality", "size"],
                        "index.sort.missing": ["_first"] * 2,
                    },
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
                    {
                        f"index.blocks.{block}": True
                        for block in ("read_only", "read", "write", "metadata")
                    },
                )
            ),
        ),
    ):
        try:
            template(settings, mappings)
        except RequestError:  # it knows no such setting
            continue
        for _ in range(2):  # the second time nothing is left to do
            build_index(f"{place.name}-{number}", files[0], at=place.at, code="bits:6")
        assert f"{place.name}-{number}" in backend(place.at).names()
        assert results(place, f"{place.name}-{number}", queries) == wanted, (settings, mappings)
        assert is_right(place, f"{place.name}-{number}")


@pytest.mark.parametrize("old", [True, False])
def test_what_a_template_adds_to_fields_is_named(
    place: Place,
    files: list[Path],
    queries: NDArray[np.float32],
    template: Callable[..., None],
    *,
    old: bool,
) -> None:
    """It is as without the template, or nothing is left of the load, which goes on once the
    template is gone."""
    build_index(f"{place.name}-plain", files[0], at=place.at, code="bits:6")
    wanted = results(place, f"{place.name}-plain", queries)
    refused = 0
    cases: tuple[dict[str, Any], ...] = (
        {"enabled": False},
        {"_routing": {"required": True}},
        {"_source": {"excludes": ["content", "arr*"]}},
        *(
            {"properties": {"words": {"type": "text", **more}}}
            for more in ({"index": False}, {"norms": False})
        ),
        *(
            {"properties": {"modality": {"type": "keyword", **more}}}
            for more in ({"copy_to": "words"}, {"doc_values": False}, {"ignore_above": 2})
        ),
        *({"properties": {"meta": more}} for more in ({"enabled": False}, {"type": "nested"})),
    )
    for mappings in cases:
        template({}, mappings, old=old)
        reason = ""
        try:
            build_index(place.name, files[0], at=place.at, code="bits:6")
        except BackendError as error:
            reason = str(error)
        if reason:
            refused += 1
            words = (
                "a template of the cluster (sets|hides|has)|refused admin-.*; change what a "
                "template"
            )
            assert re.search(words, reason), (mappings, reason)
            assert not place.ask("GET", f"{place.name}-boc-*"), mappings
            template({})
            build_index(place.name, files[0], at=place.at, code="bits:6")
        assert results(place, place.name, queries) == wanted, mappings
        backend(place.at).remove(place.name)
    assert refused


def test_fields_computed_later_are_named(
    place: Place,
    files: list[Path],
    queries: NDArray[np.float32],
) -> None:
    build_index(place.name, files[0], at=place.at, code="bits:6")
    wanted = answers(place.at, place.name, queries)
    physical = place.physical(place.name)
    runtime = {"runtime": {"modality": {"type": "keyword", "script": {"source": "emit('x')"}}}}
    if place.server.kind.engine == "opensearch":
        with pytest.raises(RequestError):  # its derived fields take no name that is there
            place.ask("PUT", f"{physical}/_mapping", {"derived": runtime["runtime"]})
        return
    place.ask("PUT", f"{physical}/_mapping", runtime)
    with pytest.raises(
        BackendError,
        match="computes modality in place of what boc wrote; take these runtime fields",
    ):
        Searcher.open(place.name, place.at)
    assert place.name in backend(place.at).about()["unreadable"]
    place.ask("PUT", f"{physical}/_mapping", {"runtime": {"modality": None}})
    assert answers(place.at, place.name, queries) == wanted
    # A load that broke off under such a field begins again.
    place.ask("PUT", f"{physical}/_mapping", runtime)
    place.ask("DELETE", f"{physical}/_alias/{place.name}")
    build_index(place.name, files[0], at=place.at, code="bits:6")
    assert answers(place.at, place.name, queries) == wanted


@pytest.mark.parametrize("kind", ["final_pipeline", "default_pipeline"])
def test_a_pipeline_of_later_is_refused_before_writing(
    place: Place,
    files: list[Path],
    kind: str,
) -> None:
    build_index(place.name, files[0], at=place.at, code="bits:6")
    physical = place.physical(place.name)
    place.ask("PUT", f"_ingest/pipeline/{place.name}", {"processors": []})
    try:
        place.ask("PUT", f"{physical}/_settings", {f"index.{kind}": place.name})
        with pytest.raises(
            BackendError,
            match=rf"has a {kind}, which may change what is written .*: \"_none\"}}",
        ):
            add_items(place.name, files[1], at=place.at)
        assert not backend(place.at).open(place.name).is_unfinished
        place.ask("PUT", f"{physical}/_settings", {f"index.{kind}": "_none"})
    finally:
        place.ask("DELETE", f"_ingest/pipeline/{place.name}")
    add_items(place.name, files[1], at=place.at)
    assert is_right(place, place.name)


@pytest.mark.parametrize("trouble", ["metadata", "read", "close"])
def test_one_index_in_trouble_costs_itself_only(
    place: Place,
    files: list[Path],
    trouble: str,
) -> None:
    other = f"{place.name}-other"
    for name in (place.name, other):
        build_index(name, files[0], at=place.at, code="bits:6")
    physical = place.physical(place.name)
    there = backend(place.at)
    if trouble == "close":
        place.ask("POST", f"{physical}/_close")
    else:
        place.ask("PUT", f"{physical}/_settings", {f"index.blocks.{trouble}": True})
    try:
        assert {place.name, other} <= {*there.names()}
        unreadable = there.about()["unreadable"]
        assert re.search(
            rf"\b{place.name} \(.*(closed; open it|have this block taken away)",
            unreadable,
        )
        assert other not in unreadable
        assert is_right(place, other)
        assert other in boc("info", "--at", place.at).output
        with pytest.raises(BackendError, match="no index"):
            there.open(f"{place.name}-absent")
        build_index(f"{place.name}-new", files[0], at=place.at, code="bits:6")
    finally:
        if trouble == "close":
            place.ask("POST", f"{physical}/_open")
        else:
            place.ask("PUT", f"{physical}/_settings", {f"index.blocks.{trouble}": None})
    assert is_right(place, place.name)
    assert place.name not in there.about().get("unreadable", "")


def test_a_template_that_forbids_the_index_is_named(place: Place, files: list[Path]) -> None:
    path = f"_index_template/{place.name}"
    pattern = {"index_patterns": [f"{place.name}*"], "priority": 300}
    place.ask("PUT", path, {**pattern, "data_stream": {}})
    with pytest.raises(
        BackendError,
        match=r"refused admin-.*data streams only.*change what a template \(GET",
    ):
        build_index(place.name, files[0], at=place.at)
    if (
        place.server.kind.engine == "opensearch"
    ):  # the other archive lacks the module of data streams
        place.ask("PUT", f"_data_stream/{place.name}")
        with pytest.raises(
            BackendError,
            match="is a data stream, whose documents stay as they are; attach to a _re",
        ):
            attach_index(place.name, files[:1], at=place.at)
        place.ask("DELETE", f"_data_stream/{place.name}")
    place.ask("DELETE", path)
    build_index(place.name, files[0], at=place.at)
    assert is_right(place, place.name)


def test_a_rollover_is_told_with_the_next_step(place: Place, files: list[Path]) -> None:
    build_index(place.name, files[0], at=place.at)
    place.ask("POST", f"{place.name}/_rollover/{place.name}-other")
    assert is_right(place, place.name)
    with pytest.raises(
        BackendError,
        match=r"more than one write index.*; take the alias from the other index",
    ):
        build_index(place.name, files[1], at=place.at, replace=True)
    place.ask("DELETE", f"{place.name}-other")
    build_index(place.name, files[1], at=place.at, replace=True)
    assert is_right(place, place.name)


def test_a_block_is_told_with_the_next_step(place: Place, files: list[Path]) -> None:
    build_index(place.name, files[0], at=place.at)
    physical = place.physical(place.name)
    place.ask("PUT", f"{physical}/_settings", {"index.blocks.read_only": True})
    with pytest.raises(
        BackendError,
        match=r"read-only.* have this block taken away, then repeat the command",
    ):
        add_items(place.name, files[1], at=place.at)
    assert is_right(place, place.name)
    place.ask("PUT", f"{physical}/_settings", {"index.blocks.read_only": None})
    add_items(place.name, files[1], at=place.at)
    assert is_right(place, place.name)


@pytest.mark.slow
def test_shards_that_no_node_takes_are_told(
    place: Place,
    files: list[Path],
    template: Callable[[object], None],
) -> None:
    place.ask("PUT", f"{place.name}-lacks-a-node", {"settings": {"number_of_replicas": 9}})
    template({"index.routing.allocation.require.data": "hot"})
    with pytest.raises(
        BackendError,
        match=r"no node takes the shards of .* \(.*require.*then repeat the command",
    ):
        build_index(place.name, files[0], at=place.at)
    place.ask("DELETE", f"{place.name}-lacks-a-node")
    assert place.ask("GET", f"*{place.name}*") == {}


def test_a_filtered_alias_shows_what_it_shows(
    place: Place,
    files: list[Path],
    queries: NDArray[np.float32],
    tmp_path: Path,
) -> None:
    name = place.name
    alias = f"{place.name}-public"
    rows = [f"{modality}/{i},t{i % 3}" for modality in ("image", "text") for i in range(N)]
    (tmp_path / "tags.csv").write_text("\n".join(["id,tag", *rows]))
    build_index(name, files[0], at=place.at, metadata=tmp_path / "tags.csv")
    shown = {f"{modality}/{i}" for modality in ("image", "text") for i in range(1, N, 3)}
    add = {"index": place.physical(name), "alias": alias, "filter": {"term": {"meta.tag": "t1"}}}
    place.ask("POST", "_aliases", {"actions": [{"add": add}]})
    searcher = Searcher.open(alias, place.at)
    assert sum(searcher.index.manifest.items.values()) == len(shown)
    assert {item.id for item in searcher.index.items()} == shown
    assert set(searcher.index.sample(50, "image")) <= shown
    with pytest.raises(KeyError):
        searcher.index.find(["image/0"])
    everything = searcher.search_vectors(Embeddings("text", queries), k=N)
    assert [{hit.id for hit in hits} for hits in everything] == [
        {i for i in shown if i.startswith("image")},
    ] * 6
    assert {
        hit.id for hits in searcher.search_words(["image"], k=N, find="image") for hit in hits
    } <= shown
    copy_index(alias, at=place.at, to=f"file:{tmp_path}")
    assert {item.id for item in backend(f"file:{tmp_path}").open(alias).items()} == shown
    refuses_changes(place, alias, files[1])
    build_index(f"{name}-two", files[1], at=place.at)
    place.move(alias, place.physical(f"{name}-two"))
    with pytest.raises(BackendError, match="has become another index; open it again"):
        searcher.search_vectors(Embeddings("text", queries), k=N)


def test_reindex_keeps_attached_codes(
    place: Place,
    files: list[Path],
    queries: NDArray[np.float32],
) -> None:
    name = place.name
    first, second, third = (f"{name}-{i}" for i in (1, 2, 3))
    place.ask("PUT", first, {"mappings": {"dynamic": False}, "aliases": {name: {}}})
    for i in range(N):
        place.ask("PUT", f"{first}/_doc/image%2F{i}", {"price": i})
    attach_index(name, [files[0]], at=place.at, code="bits:6")
    found = answers(place.at, name, queries, "image")
    (entry,) = place.ask("GET", first).values()
    for target, body in ((second, {"mappings": entry["mappings"]}), (third, None)):
        place.ask("PUT", target, body)
        place.ask(
            "POST",
            "_reindex?refresh=true",
            {"source": {"index": first}, "dest": {"index": target}},
        )
    place.move(name, second)
    place.ask("DELETE", first)
    assert is_right(place, name)
    assert answers(place.at, name, queries, "image") == found
    place.move(name, third)
    with pytest.raises(
        BackendError,
        match="the index was made again; make it with the mapping of 'boc'",
    ):
        Searcher.open(name, place.at)


def test_move_of_an_alias(place: Place, files: list[Path], queries: NDArray[np.float32]) -> None:
    """Who searches through it has the hits of one index or the other, whole."""
    one, two, live = (f"{place.name}-{each}" for each in ("one", "two", "live"))
    for name, file in zip((one, two), files, strict=True):
        build_index(name, file, at=place.at, code="bits:6")
    allowed = [answers(place.at, name, queries) for name in (one, two)]
    place.move(live, place.physical(one))
    stop = threading.Event()
    seen = list[Any]()
    errors = list[Exception]()

    def search() -> None:
        while not stop.is_set():
            try:
                seen.append(answers(place.at, live, queries))
            except BackendError as error:
                errors.append(error)

    def load() -> None:
        for file in (files[1], files[0]):
            build_index(f"{place.name}-three", file, at=place.at, code="bits:6", replace=True)

    threads = [threading.Thread(target=each) for each in (search, load)]
    for thread in threads:
        thread.start()
    for i in range(20):
        place.move(live, place.physical((two, one)[i % 2]))
        threading.Event().wait(0.02)
    threads[1].join()
    stop.set()
    threads[0].join()
    assert not errors
    assert {allowed.index(each) for each in seen} == {0, 1}
    for name in (one, two, live, f"{place.name}-three"):
        assert is_right(place, name)
    refuses_changes(place, live, files[1])
    place.ask(
        "POST",
        "_aliases",
        {"actions": [{"add": {"index": place.physical(two), "alias": live}}]},
    )
    with pytest.raises(BackendError, match="stands for 2 indexes; name one"):
        Searcher.open(live, place.at)


def test_index_template(place: Place, files: list[Path], queries: NDArray[np.float32]) -> None:
    name = place.name
    strings = {"strings": {"match_mapping_type": "string", "mapping": {"type": "keyword"}}}
    template: dict[str, Any] = {
        "settings": {
            "number_of_replicas": 1,
            "refresh_interval": "30s",
            "codec": "best_compression",
        },
        "mappings": {
            "dynamic": True,
            "dynamic_templates": [strings],
            "_source": {"includes": ["id"]},
            "properties": {
                "terms": {"type": "keyword"},
                "modality": {"type": "text"},
                "team": {"type": "keyword"},
            },
        },
        "aliases": {f"{name}-all": {}},
    }
    build_index(f"{name}-plain", files[0], at=place.at, code="dictionary")
    place.ask(
        "PUT",
        f"_index_template/{name}",
        {"index_patterns": [f"{name}-boc-*"], "priority": 900, "template": template},
    )
    try:
        build_index(name, files[0], at=place.at, code="dictionary")
        assert is_right(place, name)
        assert answers(place.at, name, queries) == answers(place.at, f"{name}-plain", queries)
        (mapping,) = (entry["mappings"] for entry in place.ask("GET", f"{name}/_mapping").values())
        assert str(mapping["dynamic"]) == "false"
        build_index(name, files[1], at=place.at, code="dictionary", replace=True)
        assert is_right(place, name)
    finally:
        place.ask("DELETE", f"_index_template/{name}")
