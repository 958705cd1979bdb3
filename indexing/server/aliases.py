"""Manage the generations and aliases behind the index names on a cluster.

An index name is an alias for a generation, which is a separate index named ``NAME-boc-DIGEST-N``.
DIGEST is computed from the contents and their storage format, and N is a counter. While a
generation is being loaded, it does not have the alias NAME, so it is not visible to searches. Rows
are written through another alias instead of the generation's own name, because a server recreates a
missing index with guessed field types, but refuses to write to a missing alias. Publishing moves
the alias NAME in a single request. The previous generation is kept until the next load begins, so
that readers can continue to use it.

If a cluster template assigns aliases to indexes with such names, the name of the generation begins
with ``boc-on-`` instead. Attachments always use this prefix.
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

from boc.errors import BackendError, ManifestError, note
from boc.manifest import OPTIONAL, Manifest
from boc.types import FieldType

from .requests import ATTACHED, HIDDEN, ITEM, OBJECT, OWN, Layout, object_mapping
from .term_fields import STRATEGIES, Strategy
from .transport import Json, RefusedError, Transport
from .vector_fields import VECTOR_FIELDS, VectorField

APART = "boc-on-"
"""Prefix for indexes that should not match the index patterns of other programs. Users cannot
choose names with this prefix."""
PHYSICAL = re.compile(r"(?P<name>.+)-boc-(?P<digest>[0-9a-f]{12})-(?P<number>[1-9][0-9]*)")


WITH_CODE = [{"exists": {"field": field}} for field in ("vector", "item")]


@dataclass(frozen=True)
class AliasState:
    """State of an index on a server, stored with its manifest.

    ``state`` is loading, complete, or editing (an edit was started but not finished). ``field`` is
    the name of the strategy, ``digits`` the maximum number of digits in its frequencies,
    ``vectors`` the layout of the vectors, ``concept_dim`` the dimension of concept sets, and
    ``blocks`` the number of documents that store the codec's arrays. If ``attached`` is true, the
    items are documents in another index called ``name``, or in its ``targets``, which are the
    indexes that an alias with this name has pointed to. In this case, ``uncoded`` is the number of
    documents that had no code when the attachment was published. During a load in ``parts`` parts,
    ``by`` is the claim key of the process that created the generation.
    """

    state: str
    field: str
    vectors: str
    digits: int = 1
    concept_dim: int | None = None
    blocks: int = 0
    attached: bool = False
    targets: tuple[str, ...] = ()
    uncoded: int | None = None
    by: str = ""
    parts: int = 1

    @property
    def is_whole(self) -> bool:
        """Return whether the index has been completely loaded at least once."""
        return self.state in ("complete", "editing")


@dataclass(frozen=True)
class Generation:
    """Version of an index. ``physical`` is the index name on the server, and ``name`` is its alias.

    ``live`` is true if the generation was completely loaded and has the alias. ``narrowed`` means
    that the index must be read through the alias, either because the alias filters the index or
    because this user is allowed to read only the alias. ``shadowed`` lists runtime fields that
    override boc's fields, ``pipelines`` lists pipelines that modify documents when they are
    written, and ``blocks`` lists index blocks that prevent writing. ``created`` is the creation
    time reported by the cluster, with a tie-breaker for equal times. ``coded`` lists the indexes
    that have the code, if another program's name also covers other indexes. ``is_part`` means that
    an alias shows only some of the documents in the coded indexes. ``lost`` is the number of items
    that no longer have a code.
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
    blocks: tuple[str, ...] = ()
    created: tuple[int, str] = (0, "")
    coded: str = ""
    is_part: bool = False
    lost: int = 0

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
        """The alias of a published generation, which is its name unless another program's index has
        this name."""
        return attached_alias(attached_name(self.physical)) if self.state.attached else self.name

    @property
    def target(self) -> str:
        """Return the name used to read items. Unless the generation is narrowed, this name refers
        to the same index even after the alias is moved."""
        if self.state.attached or self.narrowed:
            return self.coded or self.name
        return self.physical

    @property
    def layout(self) -> Layout:
        return ATTACHED if self.state.attached else OWN


def attached_alias(name: str) -> str:
    """Return the alias of an attachment to the index ``name``."""
    return f"{name}-boc"


def attached_name(physical: str) -> str:
    """Return the index name for which the generation ``physical`` was created."""
    return physical.rpartition("-boc-")[0].removeprefix(APART)


def digest_of(manifest: Manifest, how: Sequence[Any]) -> str:
    """Return a digest of the contents and their layout, as 12 hex digits."""
    contents = {**manifest.entries(), "how": list(how)}
    for part in ("items", "postings", "created", "maker", *OPTIONAL):
        contents.pop(part, None)
    return hashlib.sha256(json.dumps(contents, sort_keys=True).encode()).hexdigest()[:12]


def meta(manifest: Manifest, state: AliasState) -> Json:
    """Return the ``_meta`` of a generation's mapping."""
    return {"boc": json.loads(manifest.to_json()), "server": asdict(state)}


def generations(transport: Transport, name: str) -> list[Generation]:
    """Return all generations of ``name``, including its attachments, oldest first."""
    return _parse_generations(made_for(transport, name), name)


def made_for(transport: Transport, name: str) -> Json:
    """Return the entries of all indexes that boc created for ``name``."""
    patterns = [f"{name}-boc-*", f"{APART}{name}-boc-*"]
    try:
        return indices_of(transport, ",".join(patterns))
    except RefusedError as error:
        # Few users need privileges for the second pattern.
        if error.status != 403:
            raise
        return indices_of(transport, patterns[0])


def live_generation(transport: Transport, name: str) -> Generation:
    """Return the generation that ``name`` points to. Raises BackendError if there is no such index,
    or if it was created by another program."""
    generation = generation_behind(transport, name)
    if generation is None:
        existing = names(transport)
        if name in existing:
            raise BackendError(
                f"{name} at {transport.label} has a code, but its documents are removed",
                f"<boc attach {name} --detach> removes the code, too",
            )
        there = f"it holds: {', '.join(existing)}" if existing else "it holds none"
        raise BackendError(
            f"no index {name!r} at {transport.label} ({there})",
            f"make it with <boc index {name} SOURCE --at ADDRESS>",
        )
    return generation


def check_own(generation: Generation | None) -> None:
    """Raise BackendError if the items are documents of another program, or if the index was created
    under another name."""
    if generation is None:
        return
    name = generation.name
    if generation.state.attached:
        own = attached_name(generation.physical)
        raise BackendError(
            f"{name} is an index of another program, with a code attached to its documents",
            f"<boc attach {own}> adds to them, <boc attach {own} --detach> takes it away",
        )
    # The index is an alias or a clone, or it was restored or shrunk.
    if not generation.digest:
        raise BackendError(
            f"{name} is another name for the index {generation.physical} and allows only searches; "
            "change the index under its own name, or load another index and move the alias",
        )


def generation_behind(transport: Transport, name: str) -> Generation | None:
    """Return the generation behind ``name``. Raises BackendError if boc cannot read the index."""
    indices = indices_of(transport, name)
    if not indices:
        return None
    generation = (
        next((each for each in _parse_generations(indices, name)[::-1] if each.live), None)
        or attachment_behind(transport, theirs_of(indices), name)
        or _behind_alias(transport, indices, name)
    )
    if generation is None:
        raise BackendError(
            f"{name!r} at {transport.label} was not made by boc",
            f"choose another name, or add a code to its documents with <boc attach {name} "
            "FEATURES> (if it is to be a copy of an index of boc, make it with <boc copy>)",
        )
    if generation.shadowed:
        raise BackendError(
            f"{generation.physical} at {transport.label} computes "
            f"{', '.join(generation.shadowed)} in place of the values that boc wrote; "
            'remove these runtime fields (PUT /INDEX/_mapping {"runtime": {"NAME": null}}), or '
            "load it again",
        )
    return generation


def attachment_behind(transport: Transport, indices: Json, name: str) -> Generation | None:
    """Return the attachment to the documents behind ``name``, whether it was created for this name
    or for another name of the same index. Raises BackendError if an index was recreated with
    different boc fields."""
    others = [name]
    for physical, entry in indices.items():
        if OBJECT in entry["mappings"].get("properties", {}):
            others += [physical, *entry.get("aliases", ())]
    for each in dict.fromkeys(others):
        # The user may not have privileges for the other alias.
        with suppress(RefusedError):
            there = _parse_generations(indices_of(transport, attached_alias(each)), each)
            if live := [g for g in there if g.live and g.state.attached]:
                break
    else:
        return None
    generation = live[-1]
    dim = generation.manifest.identity.dim
    expected = object_mapping(STRATEGIES[generation.state.field], dim)["properties"]
    metadata: dict[str, FieldType] = {}
    coded = []
    narrowed = False
    for physical, entry in indices.items():
        properties = entry["mappings"].get("properties", {})
        present = properties.get(OBJECT, {}).get("properties", {})
        if all(present.get(field, {}).get("type") == expected[field]["type"] for field in expected):
            coded.append(physical)
            metadata |= _fields(properties)
            narrowed |= is_narrowed(entry, name)
    others = sorted({*indices} - {*coded})
    if not coded or (others and narrowed):
        raise BackendError(
            f"the field {OBJECT!r} of {', '.join(others)} is not mapped as it was when the code "
            f"was attached to {', '.join(generation.state.targets)}: the index was rebuilt, or "
            "the name now belongs to another index",
            f"create it with the mapping of {OBJECT!r} before _reindex fills it, or repeat "
            "<boc attach> after <boc attach --detach>, or move the alias back",
        )
    if others:
        note(
            f"of the indexes behind {name}, {', '.join(coded)} has the code and is searched, "
            f"{', '.join(others)} has none",
            f"<boc attach {others[-1]} FEATURES> adds it",
        )
    manifest = replace(generation.manifest, fields=metadata)
    return replace(
        generation,
        name=name,
        digest=generation.digest if each == name else "",
        manifest=manifest,
        coded=",".join(coded) if others else "",
        is_part=narrowed,
    )


def theirs_of(indices: Json) -> Json:
    """Return the entries in ``indices`` that were created by other programs, because a template or
    an administrator may have assigned their alias to the small index of an attachment as well."""
    return {
        physical: entry
        for physical, entry in indices.items()
        if not _meta_of(entry).get("server", {}).get("attached")
    }


def is_narrowed(entry: Json, name: str) -> bool:
    """Return whether the alias ``name`` shows only some of the documents in an index."""
    return not {"filter", "search_routing"}.isdisjoint(entry.get("aliases", {}).get(name, ()))


def _behind_alias(transport: Transport, indices: Json, name: str) -> Generation | None:
    """Return the generation behind a name that is not its original name. Raises BackendError if
    there are several generations."""
    entries = {physical: entry for physical, entry in indices.items() if "boc" in _meta_of(entry)}
    if not entries:
        return None
    if len(indices) > 1:
        raise BackendError(
            f"{name!r} is a name of {len(indices)} indexes; name one: "
            f"{', '.join(sorted(indices)[:10])}",
        )
    ((physical, entry),) = entries.items()
    generation = replace(_generation(physical, entry, name), live=True)
    if not generation.state.is_whole:
        raise BackendError(
            f"{name!r} at {transport.label} is not loaded completely",
            "repeat the <boc index> command that loads it",
        )
    return None if generation.state.attached else generation


def readable(transport: Transport, generation: Generation) -> Generation:
    """Return the generation in the form that this user can read, which is through the alias if the
    user has no access to other names. Items that have lost their code are counted and excluded from
    searches. Raises BackendError if no item has a code, which happens if the documents were copied
    by the server."""
    if generation.state.attached:
        return generation
    item = {"exists": {"field": "modality"}}
    query = {"bool": {"filter": [item], "must_not": {"bool": {"filter": WITH_CODE}}}}
    body = {"query": query, "size": 1, "track_total_hits": True, "_source": False}
    try:
        found = transport.search(f"/{generation.target}/_search", body)["hits"]
    except RefusedError as error:
        if error.status != 403 or generation.narrowed:
            raise
        return readable(transport, replace(generation, narrowed=True))
    lost = int(found["total"]["value"])
    if not lost:
        return generation
    whole = {"query": {"bool": {"filter": [item, *WITH_CODE]}}, "size": 0, "terminate_after": 1}
    left = transport.search(f"/{generation.target}/_search", whole)["hits"]["total"]["value"]
    problem = (
        f"{generation.name} at {transport.label} has {lost} items without a code, such as "
        f"{found['hits'][0]['_id']!r}: _reindex, _update and _update_by_query write documents from "
        "their _source, which has no codes and vectors"
    )
    if not left:
        raise BackendError(
            problem,
            "rebuild it with <boc index>, or copy the index from which it was made with "
            "<boc copy>, _clone, _shrink, _split or a snapshot",
        )
    note(problem, f"<boc add {generation.name} SOURCE> puts them in again; others are searched")
    return replace(generation, lost=lost)


def names(transport: Transport) -> list[str]:
    """Return the sorted names of all published indexes, including closed and blocked indexes, which
    reject most other requests."""
    result = set()
    answer = transport.request("GET", "/_resolve/index/*-boc-*", expand_wildcards="all")
    for entry in answer.get("indices", ()):
        if not PHYSICAL.fullmatch(entry["name"]):
            continue
        name = attached_name(entry["name"])
        if not {name, attached_alias(name)}.isdisjoint(entry.get("aliases", ())):
            result.add(name)
    return sorted(result)


def newest_whole(present: Sequence[Generation]) -> int:
    """Return the number of the generation that a load keeps. This is the generation that the name
    points to, or else the newest generation that was completely loaded. Returns 0 if there is no
    such generation."""
    live = [g.number for g in present if g.live]
    return max(live or [g.number for g in present if g.state.is_whole], default=0)


def remember(transport: Transport, generation: Generation) -> None:
    """Store the manifest and state of a generation on the server."""
    body = {"_meta": meta(generation.manifest, generation.state)}
    transport.request("PUT", f"/{generation.physical}/_mapping", body)


def publish(transport: Transport, generation: Generation, before: list[Generation]) -> None:
    """Point the name to ``generation`` only, in a single request, and remove the name from the
    generations in ``before``."""
    own = {"index": generation.physical}
    gone = [{"index": old.physical, "alias": old.name} for old in before]
    gone.append({**own, "alias": generation.loading_alias})
    actions = [{"remove": {**each, "must_exist": False}} for each in gone]
    alias = {**own, "alias": generation.alias, "is_write_index": True}
    # A hidden alias does not match the index patterns of the other program.
    if generation.state.attached:
        alias["is_hidden"] = True
    actions.append({"add": alias})
    transport.request("POST", "/_aliases", {"actions": actions})


def drop(transport: Transport, unwanted: list[Generation]) -> None:
    """Delete generations from the server. Missing generations are ignored."""
    for generation in unwanted:
        drop_index(transport, generation.physical)


def drop_index(transport: Transport, physical: str) -> None:
    """Delete an index from the server. A missing index is ignored."""
    try:
        transport.request("DELETE", f"/{physical}")
    except RefusedError as error:
        if error.status != 404:
            raise


def indices_of(transport: Transport, pattern: str) -> Json:
    try:
        return transport.request("GET", f"/{quote(pattern, safe='*,')}", expand_wildcards="all")
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
        if not match or "boc" not in _meta_of(entry):
            continue
        if match["name"].removeprefix(APART) == name:
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
    """Return the generation described by the ``_meta`` of an index. Raises ManifestError if its
    format version is not supported."""
    own = _meta_of(entry)
    try:
        # Ignore entries written by other versions.
        state = convert(own["server"], AliasState)
    except (KeyError, ValidationError):
        raise ManifestError(
            f"{physical}: its _meta was written by another version of boc; rebuild the index",
        ) from None
    for kind, name_of_field, table in (
        ("codes", state.field, STRATEGIES),
        ("vectors", state.vectors, VECTOR_FIELDS),
    ):
        if name_of_field not in table:
            raise ManifestError(
                f"{physical}: {kind} stored as {name_of_field!r}, which this boc does not know; "
                "rebuild the index, or use the version of boc that made it",
            )
    aliases = entry.get("aliases", {})
    computed = () if state.attached else entry["mappings"].get("runtime", ())
    settings = entry.get("settings", {}).get("index", {})
    return Generation(
        physical,
        name,
        digest,
        number,
        live=state.is_whole and (attached_alias(name) if state.attached else name) in aliases,
        manifest=Manifest.from_dict(own["boc"], where=physical),
        state=state,
        narrowed=is_narrowed(entry, name),
        shadowed=tuple(
            sorted(each for each in computed if each.partition(".")[0] in {*ITEM, *HIDDEN}),
        ),
        pipelines=tuple(
            each
            for each in ("default_pipeline", "final_pipeline")
            if settings.get(each, "_none") != "_none"
        ),
        blocks=tuple(
            name
            for name, value in settings.get("blocks", {}).items()
            if name in ("write", "read_only") and str(value) == "true"
        ),
        created=(int(settings.get("creation_date", 0)), settings.get("uuid", "")),
    )


THEIRS: dict[str, FieldType] = {
    **dict.fromkeys(("keyword", "constant_keyword", "wildcard", "ip"), "keyword"),
    **dict.fromkeys(("long", "integer", "short", "byte"), "integer"),
    **dict.fromkeys(("double", "float", "half_float", "scaled_float"), "float"),
    "boolean": "boolean",
    "date": "date",
    "text": "text",
}
"""Field types in other programs' indexes that filters support, with the corresponding metadata
types."""


def _fields(properties: Json, path: str = "") -> Iterator[tuple[str, FieldType]]:
    """Yield the fields in a mapping that filters support, with their types, except boc's own
    fields."""
    for name, entry in properties.items():
        if entry.get("type") == "nested" or f"{path}{name}" == OBJECT:
            continue
        if entry.get("type") in THEIRS:
            yield f"{path}{name}", THEIRS[entry["type"]]
        for part in ("properties", "fields"):
            yield from _fields(entry.get(part, {}), f"{path}{name}.")
