"""The indexes of a cluster behind their names.

The name of an index is an alias. It points to a generation, a separate index ``NAME-boc-DIGEST-N``:
DIGEST is computed from what is loaded and how, N counts up. A generation that is being loaded has
no alias NAME, so no search sees it. It is written through another alias, never by its own name: a
server creates a missing index again, with guessed fields, but refuses a missing alias. Publishing
swaps the alias in one request. The previous generation stays until the next load begins, so that
readers that have it open can continue.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any
from urllib.parse import quote

from msgspec import ValidationError, convert

from boc.errors import BackendError, ManifestError
from boc.manifest import OPTIONAL, Manifest
from boc.types import FieldType

from .requests import ATTACHED, HIDDEN, ITEM, OBJECT, OWN, Layout, object_mapping
from .term_fields import STRATEGIES, Strategy
from .transport import Json, RefusedError, Transport
from .vector_fields import VECTOR_FIELDS, VectorField

PHYSICAL = re.compile(r"(?P<name>.+)-boc-(?P<digest>[0-9a-f]{12})-(?P<number>[1-9][0-9]*)")


@dataclass(frozen=True)
class AliasState:
    """The state of an index on a server, stored beside its manifest.

    ``state`` is loading, complete, or editing (an edit was begun and not finished). ``field`` names
    the strategy, ``digits`` is the largest number of digits of its frequencies, ``vectors`` the
    layout of the vectors, ``unit`` whether no vector is longer than 1, ``concept_dim`` the width of
    concept sets, and ``blocks`` the number of documents that hold the arrays of the codec.
    ``attached``: the items are documents of another index, ``name``, and of those ``targets`` that
    an alias of this name stood for.
    """

    state: str
    field: str
    vectors: str
    unit: bool = True
    digits: int = 1
    concept_dim: int | None = None
    blocks: int = 0
    attached: bool = False
    targets: tuple[str, ...] = ()


@dataclass(frozen=True)
class Generation:
    """One version of an index: ``physical`` is the name of the index on the server, ``name`` its
    alias.

    ``narrowed``: it is read through the alias, which shows a part of it, or is all that this user
    may read. ``shadowed``: runtime fields that are computed in place of fields of boc;
    ``pipelines`` change what is written.
    """

    physical: str
    name: str
    digest: str
    number: int
    live: bool
    manifest: Manifest
    state: AliasState
    narrowed: bool = False
    shadowed: tuple[str, ...] = ()
    pipelines: tuple[str, ...] = ()

    @property
    def strategy(self) -> Strategy:
        return STRATEGIES[self.state.field].at(self.layout.own("terms"))

    @property
    def vectors(self) -> VectorField:
        return VECTOR_FIELDS[self.state.vectors].at(
            self.layout.own("vector"),
            self.manifest.vector_floats,
        )

    @property
    def loading_alias(self) -> str:
        return f"{self.physical}.load"

    @property
    def alias(self) -> str:
        """The alias of a generation that is published: its name, unless that is an index of another
        program."""
        if self.state.attached:
            return attached_alias(self.physical.rpartition("-boc-")[0])
        return self.name

    @property
    def target(self) -> str:
        """The name by which items are read: one index whatever the alias is moved to, unless the
        alias narrows it."""
        if self.state.attached or self.narrowed:
            return self.name
        return self.physical

    @property
    def layout(self) -> Layout:
        return ATTACHED if self.state.attached else OWN


def attached_alias(name: str) -> str:
    """Return the alias of what is attached to the index ``name``."""
    return f"{name}-boc"


def digest_of(manifest: Manifest, how: Sequence[Any]) -> str:
    """12 hex digits that differ for other contents, or for the same contents stored in another
    way."""
    contents = {**manifest.entries(), "how": list(how)}
    for part in ("items", "postings", "created", "maker", *OPTIONAL):
        contents.pop(part, None)
    return hashlib.sha256(json.dumps(contents, sort_keys=True).encode()).hexdigest()[:12]


def meta(manifest: Manifest, state: AliasState) -> Json:
    """Return the ``_meta`` of the mapping of a generation."""
    return {"boc": json.loads(manifest.to_json()), "server": asdict(state)}


def generations(transport: Transport, name: str) -> list[Generation]:
    """Return all generations of ``name``, oldest first."""
    return _parse_generations(indices_of(transport, f"{name}-boc-*"), name)


def live_generation(transport: Transport, name: str) -> Generation:
    """Return the generation that ``name`` points to. BackendError if there is none, or for an index
    of others."""
    generation = generation_behind(transport, name)
    if generation is None:
        existing = names(transport)
        there = f"it holds: {', '.join(existing)}" if existing else "it holds none"
        raise BackendError(
            f"no index {name!r} at {transport.label} ({there})",
            f"make it with <boc index {name} SOURCE --at ADDRESS>",
        )
    return generation


def check_own(generation: Generation | None) -> None:
    """Raise BackendError if the items are documents of another program, or if the name is
    borrowed."""
    if generation is None:
        return
    name = generation.name
    # An alias, a clone, or an index that was restored or shrunk.
    if not generation.digest:
        raise BackendError(
            f"{name} stands for the index {generation.physical}, which is read under this name, "
            "not changed; change it "
            "under its own name, or load under a name of its own and move the alias",
        )
    if generation.state.attached:
        raise BackendError(
            f"{name} is an index of another program, with a code attached to its documents",
            f"<boc attach {name}> adds to them, <boc attach {name} --detach> takes it away",
        )


def generation_behind(transport: Transport, name: str) -> Generation | None:
    """Return the generation that ``name`` stands for. BackendError for an index that boc cannot
    read."""
    indices = indices_of(transport, name)
    if not indices:
        return None
    generation = (
        next((each for each in _parse_generations(indices, name)[::-1] if each.live), None)
        or _attachment(transport, indices, name)
        or _behind_alias(transport, indices, name)
    )
    if generation is None:
        raise BackendError(
            f"{name!r} at {transport.label} was not made by boc",
            "choose another name, or add a code to its documents with "
            f"<boc attach {name} FEATURES> (if it is to be a copy of an index of boc, make it "
            "with <boc copy>)",
        )
    if generation.shadowed:
        raise BackendError(
            f"{generation.physical} at {transport.label} computes "
            f"{', '.join(generation.shadowed)} in place of what boc wrote; "
            'take these runtime fields away (PUT /INDEX/_mapping {"runtime": {"NAME": null}}), or '
            "load it again",
        )
    return generation


def _attachment(transport: Transport, indices: Json, name: str) -> Generation | None:
    """Return what is attached to documents behind ``name``, under this name or another one of their
    index. BackendError if an index was made again, and its fields of boc are others."""
    others = [name]
    for physical, entry in indices.items():
        if OBJECT in entry["mappings"].get("properties", {}):
            others += [physical, *entry.get("aliases", ())]
    for each in dict.fromkeys(others):
        there = generations(transport, each)
        if not there:
            # With rights on two aliases alone, a pattern does not find the second one.
            with suppress(RefusedError):
                there = _parse_generations(indices_of(transport, attached_alias(each)), each)
        live = [g for g in there if g.live and g.state.attached]
        if live:
            break
    else:
        return None
    generation = live[-1]
    dim = generation.manifest.identity.dim
    expected = object_mapping(STRATEGIES[generation.state.field], dim)["properties"]
    metadata: dict[str, FieldType] = {}
    for physical, entry in indices.items():
        properties = entry["mappings"].get("properties", {})
        metadata |= _fields(properties)
        present = properties.get(OBJECT, {}).get("properties", {})
        if any(present.get(field, {}).get("type") != expected[field]["type"] for field in expected):
            raise BackendError(
                f"the field {OBJECT!r} of {physical} is not mapped as it was when the code was "
                "attached: the index was made again",
                f"make it with the mapping of {OBJECT!r} before _reindex fills it, or repeat "
                "<boc attach> after <boc attach --detach>",
            )
    manifest = replace(generation.manifest, fields=metadata)
    digest = generation.digest if each == name else ""
    return replace(generation, name=name, digest=digest, manifest=manifest)


def _behind_alias(transport: Transport, indices: Json, name: str) -> Generation | None:
    """Return the generation behind a name that it was not made as. BackendError if there are
    several."""
    entries = {physical: entry for physical, entry in indices.items() if "boc" in _meta_of(entry)}
    if not entries:
        return None
    if len(indices) > 1:
        raise BackendError(
            f"{name!r} stands for {len(indices)} indexes; name one: "
            f"{', '.join(sorted(indices)[:10])}",
        )
    ((physical, entry),) = entries.items()
    generation = replace(_generation(physical, entry, name), live=True)
    if generation.state.state not in ("complete", "editing"):
        raise BackendError(
            f"{name!r} at {transport.label} is not loaded in whole",
            "repeat the <boc index> that loads it",
        )
    return None if generation.state.attached else generation


def readable(transport: Transport, generation: Generation) -> Generation:
    """Return the generation as this user may read it: through the alias, if under no other name.
    BackendError if items lack their codes, which a server's own copying of documents loses."""
    if generation.state.attached:
        return generation
    item = {"exists": {"field": "modality"}}
    lacking = [{"bool": {"must_not": {"exists": {"field": field}}}} for field in ("vector", "item")]
    query = {"bool": {"filter": [item, {"bool": {"should": lacking}}]}}
    body = {"query": query, "size": 1, "terminate_after": 1, "_source": False}
    try:
        hits = transport.search(f"/{generation.target}/_search", body)["hits"]["hits"]
    except RefusedError as error:
        if error.status != 403 or generation.narrowed:
            raise
        return readable(transport, replace(generation, narrowed=True))
    if hits:
        raise BackendError(
            f"{generation.name} at {transport.label} has items without a code, such as "
            f"{hits[0]['_id']!r}: _reindex, _update and _update_by_query write documents from "
            "their _source, which has no codes and vectors",
            "make it again with <boc index>, or copy the index that it was made of with "
            "<boc copy>, _clone, _shrink, _split or a snapshot",
        )
    return generation


def names(transport: Transport) -> list[str]:
    """Return the names of all published indexes, sorted; closed and blocked ones refuse most
    requests, but not this."""
    result = set()
    answer = transport.request("GET", "/_resolve/index/*-boc-*", expand_wildcards="all")
    for entry in answer.get("indices", ()):
        match = PHYSICAL.fullmatch(entry["name"])
        if match and {match["name"], attached_alias(match["name"])} & set(entry.get("aliases", ())):
            result.add(match["name"])
    return sorted(result)


def remember(transport: Transport, generation: Generation) -> None:
    """Store the manifest and state of a generation on the server."""
    body = {"_meta": meta(generation.manifest, generation.state)}
    transport.request("PUT", f"/{generation.physical}/_mapping", body)


def publish(transport: Transport, generation: Generation, before: list[Generation]) -> None:
    """Point the name to ``generation`` only, in one request."""
    own = {"index": generation.physical}
    gone = [{"index": old.physical, "alias": old.name} for old in before if old.live]
    gone.append({**own, "alias": generation.loading_alias})
    actions: list[Json] = [{"remove": {**each, "must_exist": False}} for each in gone]
    actions.append({"add": {**own, "alias": generation.alias, "is_write_index": True}})
    transport.request("POST", "/_aliases", {"actions": actions})


def drop(transport: Transport, unwanted: list[Generation]) -> None:
    """Delete generations from the server; missing ones are no error."""
    for generation in unwanted:
        drop_index(transport, generation.physical)


def drop_index(transport: Transport, physical: str) -> None:
    """Delete an index from the server; a missing one is no error."""
    try:
        transport.request("DELETE", f"/{physical}")
    except RefusedError as error:
        if error.status != 404:
            raise


def indices_of(transport: Transport, pattern: str) -> Json:
    try:
        return transport.request("GET", f"/{quote(pattern, safe='*')}", expand_wildcards="all")
    except RefusedError as error:
        if error.status == 404:
            return {}
        raise


def _meta_of(entry: Json) -> Json:
    own: Json = entry.get("mappings", {}).get("_meta", {})
    return own


def _parse_generations(indices: Json, name: str) -> list[Generation]:
    result = []
    for physical, entry in indices.items():
        match = PHYSICAL.fullmatch(physical)
        if match and match["name"] == name and "boc" in _meta_of(entry):
            number = int(match["number"])
            result.append(_generation(physical, entry, name, match["digest"], number))
    return sorted(result, key=lambda generation: generation.number)


def _generation(
    physical: str,
    entry: Json,
    name: str,
    digest: str = "",
    number: int = 0,
) -> Generation:
    """Return the generation that the ``_meta`` of an index tells of. ManifestError if it is of
    another version."""
    own = _meta_of(entry)
    try:
        # Entries of other versions are left out.
        state = convert(own["server"], AliasState)
    except (KeyError, ValidationError):
        raise ManifestError(
            f"{physical}: its _meta is not of this version of boc; make the index again",
        ) from None
    for kind, name_of_field, table in (
        ("codes", state.field, STRATEGIES),
        ("vectors", state.vectors, VECTOR_FIELDS),
    ):
        if name_of_field not in table:
            raise ManifestError(
                f"{physical}: {kind} stored as {name_of_field!r}, unknown to this boc; make the "
                "index again, or use "
                "the version of boc that made it",
            )
    aliases = entry.get("aliases", {})
    computed = () if state.attached else entry["mappings"].get("runtime", ())
    settings = entry.get("settings", {}).get("index", {})
    return Generation(
        physical,
        name,
        digest,
        number,
        live=(attached_alias(name) if state.attached else name) in aliases,
        manifest=Manifest.from_dict(own["boc"], where=physical),
        state=state,
        # These settings of an alias have it show a part of the index.
        narrowed=not {"filter", "search_routing"}.isdisjoint(aliases.get(name, ())),
        shadowed=tuple(
            sorted(each for each in computed if each.partition(".")[0] in {*ITEM, *HIDDEN}),
        ),
        pipelines=tuple(
            each
            for each in ("default_pipeline", "final_pipeline")
            if settings.get(each, "_none") != "_none"
        ),
    )


THEIRS: dict[str, FieldType] = {
    **dict.fromkeys(("keyword", "constant_keyword", "wildcard", "ip"), "keyword"),
    **dict.fromkeys(("long", "integer", "short", "byte"), "integer"),
    **dict.fromkeys(("double", "float", "half_float", "scaled_float"), "float"),
    "boolean": "boolean",
    "date": "date",
    "text": "text",
}
"""The types of other programs' fields that filters know, and what they are as metadata."""


def _fields(properties: Json, path: str = "") -> Iterator[tuple[str, FieldType]]:
    """Return the fields of a mapping that filters know, with their types; boc's own apart."""
    for name, entry in properties.items():
        if entry.get("type") == "nested" or f"{path}{name}" == OBJECT:
            continue
        if entry.get("type") in THEIRS:
            yield f"{path}{name}", THEIRS[entry["type"]]
        for part in ("properties", "fields"):
            yield from _fields(entry.get(part, {}), f"{path}{name}.")
