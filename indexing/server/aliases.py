"""The indexes of a cluster behind their names.

The name of an index is an alias. It points to a generation, an index ``NAME-boc-DIGEST-N`` of its own: DIGEST follows
from what is loaded and how, N counts. A generation being loaded has no alias NAME, so nobody sees it; it can be written
through an alias of its own, never by its name: a server makes a missing index anew, with fields of its own guessing,
and refuses a missing alias. Publishing swaps the alias in one request. The generation before stays until the next load
begins, so that readers that have it open can go on.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any
from urllib.parse import quote

from boc.errors import BackendError, ManifestError
from boc.manifest import Manifest

from .term_fields import STRATEGIES, Strategy
from .transport import Json, RefusedError, Transport

PHYSICAL = re.compile(r"(?P<name>.+)-boc-(?P<digest>[0-9a-f]{12})-(?P<number>[1-9][0-9]*)")


@dataclass(frozen=True)
class State:
    """What an index on a server says of itself beside its manifest.

    ``state`` is loading, complete, or editing (an edit was begun and not finished). ``field`` names the strategy,
    ``digits`` how many of them its frequencies have at most, ``vectors`` the layout of the vectors and ``unit`` whether
    none is longer than 1, ``concept_dim`` the width of concept sets, ``blocks`` the number of documents that hold the
    codec's arrays.
    """

    state: str
    field: str
    vectors: str
    unit: bool = True
    digits: int = 1
    concept_dim: int | None = None
    blocks: int = 0


@dataclass(frozen=True)
class Generation:
    """An index on the server: ``physical`` is its own name."""

    physical: str
    name: str
    digest: str
    number: int
    live: bool
    manifest: Manifest
    state: State

    @property
    def strategy(self) -> Strategy:
        return STRATEGIES[self.state.field]

    @property
    def loading_alias(self) -> str:
        return f"{self.physical}.load"


def digest_of(manifest: Manifest, how: Sequence[Any]) -> str:
    """12 hex digits that tell loads of other contents apart, or of the same made otherwise."""
    contents = {**asdict(manifest), "how": list(how)}
    for part in ("items", "postings", "created", "maker"):
        contents.pop(part)
    return hashlib.sha256(json.dumps(contents, sort_keys=True).encode()).hexdigest()[:12]


def meta(manifest: Manifest, state: State) -> Json:
    """The ``_meta`` of a generation's mapping."""
    return {"boc": json.loads(manifest.to_json()), "server": asdict(state)}


def generations(transport: Transport, name: str) -> list[Generation]:
    """All generations of ``name``, oldest first."""
    return _parsed(_indices(transport, f"{name}-boc-*"), name)


def published(transport: Transport, name: str) -> Generation:
    """The generation that ``name`` points to. BackendError if there is none, or the name is somebody else's."""
    found = _behind(transport, name)
    if found is None:
        known = names(transport)
        there = f"it holds: {', '.join(known)}" if known else "it holds none"
        raise BackendError(
            f"no index {name!r} at {transport.shown} ({there}); make it with boc index {name} SOURCE --at ADDRESS"
        )
    return found


def check_free(transport: Transport, name: str) -> None:
    """BackendError if the name is somebody else's."""
    _behind(transport, name)


def _behind(transport: Transport, name: str) -> Generation | None:
    indices = _indices(transport, name)
    found = [generation for generation in _parsed(indices, name) if generation.live]
    if indices and not found:
        raise BackendError(f"{name!r} at {transport.shown} was not made by boc; choose another name")
    return found[-1] if found else None


def names(transport: Transport) -> list[str]:
    """Names of all published indexes, sorted."""
    answer = transport.request("GET", "/*-boc-*/_alias", expand_wildcards="open")
    found = set()
    for physical, entry in answer.items():
        match = PHYSICAL.fullmatch(physical)
        if match and match["name"] in entry.get("aliases", {}):
            found.add(match["name"])
    return sorted(found)


def remember(transport: Transport, generation: Generation) -> None:
    """Write down the manifest and state of a generation."""
    body = {"_meta": meta(generation.manifest, generation.state)}
    transport.request("PUT", f"/{generation.physical}/_mapping", body)


def publish(transport: Transport, generation: Generation, before: list[Generation]) -> Generation:
    """Point the name to ``generation`` and nothing else, in one request."""
    actions: list[Json] = [
        {"remove": {"index": old.physical, "alias": old.name, "must_exist": False}} for old in before if old.live
    ]
    actions.append({"remove": {"index": generation.physical, "alias": generation.loading_alias, "must_exist": False}})
    actions.append({"add": {"index": generation.physical, "alias": generation.name, "is_write_index": True}})
    transport.request("POST", "/_aliases", {"actions": actions})
    return replace(generation, live=True)


def drop(transport: Transport, unwanted: list[Generation]) -> None:
    """Remove generations."""
    for generation in unwanted:
        try:
            transport.request("DELETE", f"/{generation.physical}")
        except RefusedError as error:
            if error.status != 404:
                raise


def _indices(transport: Transport, pattern: str) -> Json:
    try:
        return transport.request("GET", f"/{quote(pattern, safe='*')}", expand_wildcards="open,closed")
    except RefusedError as error:
        if error.status == 404:
            return {}
        raise


def _parsed(indices: Json, name: str) -> list[Generation]:
    found = []
    for physical, entry in indices.items():
        match = PHYSICAL.fullmatch(physical)
        told = entry.get("mappings", {}).get("_meta", {})
        if not match or match["name"] != name or "boc" not in told:
            continue
        try:
            state = State(**told["server"])
        except (KeyError, TypeError):
            raise ManifestError(f"{physical}: its _meta is not of this version of boc; make the index anew") from None
        if state.field not in STRATEGIES:
            raise ManifestError(f"{physical}: codes stored as {state.field!r}, unknown to this boc; upgrade boc")
        found.append(
            Generation(
                physical,
                name,
                match["digest"],
                int(match["number"]),
                name in entry.get("aliases", {}),
                Manifest.from_json(json.dumps(told["boc"]), where=physical),
                state,
            )
        )
    return sorted(found, key=lambda generation: generation.number)
