"""Load an index from several processes at the same time. Each process writes a part, and the last
process to finish publishes the index.

One process learns the code, and the other processes read it from the server. Until the main index
is published, the code is stored in a separate small index, ``NAME-boc-KEY-code``. The process that
claims this small index learns the code while the others wait. If this process dies, another process
learns the code.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeAlias
from uuid import uuid4

from numpy.typing import NDArray

from boc.errors import BackendError
from boc.manifest import describe

from . import requests
from .address import Address
from .aliases import (
    Generation,
    digest_of,
    drop,
    drop_index,
    generations,
    indices_of,
    made_for,
    newest_whole,
    remember,
)
from .bulk import Bulk, await_shards
from .claim import PAUSE, Claim, InUseError, check_unclaimed
from .creation import create_index, name_apart
from .force_merge import refresh
from .searches import WHOLE, stored_arrays
from .transport import Json, RefusedError, Transport, UnfinishedError
from .writer import ServerWriter, put_arrays

TESTING = "testing"
"""State of a generation while the process that created it tests the scores and the other processes
wait."""
META = "boc_code"
"""Key in the ``_meta`` of an index that stores a code."""
CLAIM = "boc:publish"

Learned: TypeAlias = tuple[dict[str, Any], Mapping[str, NDArray[Any]]]
"""Configuration and arrays of a code."""


@dataclass
class PartWriter(ServerWriter):
    """Load part ``number`` of ``count`` parts, numbered from 1.

    All parts are written to the same generation. When a part is complete, its process stores a
    document with the number of items. The process that finds these documents for all parts
    publishes the index. Rows are never removed. If a process dies, running the same command on any
    machine resumes the part from the stored rows.
    """

    number: int
    count: int
    first_state = TESTING

    def _enter(self) -> None:
        self._digest = digest_of(self.manifest, [*self.address.layout, "parts", self.count])
        others = [g for g in self._generations() if g.digest != self._digest]
        check_unclaimed(self.transport, others)
        if generation := self._join():
            self._begin(generation)

    def commit(self) -> None:
        """Mark this part as complete, and publish the index if all parts are complete."""
        # This part may be empty, and the other processes may not have created the index yet.
        if not self._begun:
            self._begin(self._create(0))
        generation = self.generation
        self._bulk.flush()
        before = [part["part"] for part in self._complete()]
        state = generation.state
        marker = {
            "part": self.number,
            "items": len(self._ledger),
            "concept_dim": state.concept_dim,
        }
        path = f"/{generation.loading_alias}/_doc/boc:part:{self.number}"
        self.transport.request("PUT", path, marker, require_alias="true")
        complete = self._complete()
        if len(complete) < self.count or not self._claim(again=self.number in before):
            self._committed = True
            return
        present = generations(self.transport, self.name)
        keep = newest_whole(present)
        unwanted = [g for g in present if g.number != keep and g.physical != generation.physical]
        check_unclaimed(self.transport, unwanted)
        drop(self.transport, unwanted)
        dims = [part["concept_dim"] for part in complete if part["concept_dim"] is not None]
        state = replace(state, concept_dim=max(dims, default=None))
        self.generation = replace(generation, state=state)
        self._publish(sum(part["items"] for part in complete))
        forget(self.transport, self.name)

    def __exit__(self, *raised: object) -> None:
        # Do not drop any generation, because other processes are also loading.
        self._committed = True
        super().__exit__(*raised)

    def _create(self, largest: int) -> Generation:
        """Return the generation created by another process, or create a new generation."""
        while True:
            # If another process creates a generation after this check, both have the same number,
            # so the request below is rejected.
            if generation := self._join():
                return generation
            try:
                generation = super()._create(largest)
            except RefusedError as error:
                if error.kind != "resource_already_exists_exception":
                    raise
                continue
            tested = replace(generation, state=replace(generation.state, state="loading"))
            remember(self.transport, tested)
            return tested

    def _join(self) -> Generation | None:
        """Return the generation that the other processes are loading, after its scores have been
        tested. Return None if no generation has been created."""
        # If the test takes longer, the process is assumed to be dead.
        deadline = time.monotonic() + 60
        while True:
            generation = self._continued(generations(self.transport, self.name))
            if generation is None or generation.state.state != TESTING:
                return generation
            if time.monotonic() > deadline:
                drop(self.transport, [generation])
                return None
            time.sleep(PAUSE)

    def _complete(self) -> list[Json]:
        physical = self.generation.physical
        await_shards(self.transport, physical, self.address.patience)
        refresh(self.transport, physical)
        markers = [f"boc:part:{number}" for number in range(1, self.count + 1)]
        body = {"query": {"ids": {"values": markers}}, "size": self.count}
        hits = self.transport.search(f"/{physical}/_search", body, **WHOLE)["hits"]["hits"]
        return [hit["_source"] for hit in hits]

    def _claim(self, *, again: bool) -> bool:
        """Return whether this process must publish the index. If several processes finish at the
        same time, the first process to claim this task publishes. If that process died, a process
        that loads a complete part ``again`` publishes."""
        by = uuid4().hex
        path = f"/{self.generation.loading_alias}/_create/{CLAIM}"
        claim = {"part": self.number, "by": by}
        try:
            self.transport.request("PUT", path, claim, require_alias="true")
        except RefusedError as error:
            if error.status != 409:
                raise
            # If the response to a request was lost, the repeated request conflicts with its own
            # claim.
            first = self.transport.request("GET", f"/{self.generation.physical}/_doc/{CLAIM}")
            return again or first["_source"]["by"] == by
        return True

    def _audit(self, physical: str, count: int, expected: int) -> None:
        if count != expected:
            raise UnfinishedError(
                f"{self.transport.label} has {count} items, but the {self.count} parts had "
                f"{expected}: parts share ids, or come from other versions of the source; load "
                "them with another number of parts",
            )


def share_code(
    transport: Transport,
    address: Address,
    name: str,
    key: str,
    learn: Callable[[], Learned],
) -> Learned:
    """Return the result of ``learn``. Only the first process that claims ``key`` runs ``learn``,
    and the other processes use its result. ``key`` consists of 12 hex digits that identify the
    training data and the method."""
    physical = name_apart(transport, f"{name}-boc-{key}-code")
    alias = f"{physical}.load"
    claim = Claim(transport, name)
    try:
        while True:
            holds = False
            with suppress(InUseError):
                _make(transport, physical, alias)
                claim.take(physical, alias)
                holds = True
            entry = indices_of(transport, physical).get(physical, {})
            code = entry.get("mappings", {}).get("_meta", {}).get(META)
            if code:
                described = code["arrays"]
                stored = stored_arrays(transport, physical, code["blocks"], described)
                if {array: describe(values) for array, values in stored.items()} != described:
                    raise BackendError(
                        f"{transport.label}: {physical} is damaged; delete it, and repeat the "
                        "command",
                    )
                return code["config"], stored
            if holds:
                break
            time.sleep(PAUSE)
        config, arrays = learn()
        with Bulk(transport, alias, require_alias=True, patience=address.patience) as bulk:
            blocks = put_arrays(bulk, arrays)
        refresh(transport, physical)
        described = {array: describe(values) for array, values in arrays.items()}
        code = {"config": config, "arrays": described, "blocks": blocks}
        transport.request("PUT", f"/{physical}/_mapping", {"_meta": {META: code}})
        return config, arrays
    finally:
        claim.release()


def _make(transport: Transport, physical: str, alias: str) -> None:
    """Create the index that stores a code, unless another process has already created it."""
    try:
        create_index(transport, physical, requests.code_body({META: {}}, alias))
    except RefusedError as error:
        if error.kind != "resource_already_exists_exception":
            raise


def forget(transport: Transport, name: str) -> None:
    """Remove the codes shared by loads of ``name``."""
    for physical, entry in made_for(transport, name).items():
        if META in entry["mappings"].get("_meta", {}):
            drop_index(transport, physical)
