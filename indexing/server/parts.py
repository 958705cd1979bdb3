"""Several processes load one index at once: each writes a part, and the last one to finish
publishes.

The first one learns the code, and the others take it from the server. It is kept in a small index
of its own, ``NAME-boc-KEY-code``, until the index is published. Who makes that index learns, and
counts in its ``_meta`` meanwhile, so that the others see that it is alive. They wait; if it died,
one of them learns.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any, TypeAlias
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from boc.errors import BackendError
from boc.manifest import describe

from . import requests
from .address import Address
from .aliases import Generation, digest_of, drop, drop_index, generations, indices_of, remember
from .bulk import Bulk
from .force_merge import refresh
from .score_check import clear_of_templates
from .searches import stored_arrays
from .transport import Json, RefusedError, Transport, UnfinishedError
from .writer import ServerWriter, put_arrays

TESTING = "testing"
"""The state of a generation while the process that made it tests its scores. The others wait."""
TEST_PATIENCE = 60.0  # seconds after which whoever tests is given up
PAUSE = 0.5  # seconds between two looks
BEAT = 2.0  # seconds between two signs of life
DEAD = 30.0  # seconds without one after which whoever learns is given up
META = "boc_code"
CLAIM = "boc:publish"

Learned: TypeAlias = tuple[dict[str, Any], Mapping[str, NDArray[Any]]]
"""The configuration of a code, and its arrays."""


class PartWriter(ServerWriter):
    """Loads the part ``number`` of ``count``, 1 to ``count``.

    All parts write into one generation, and each leaves a document with its number of items when it
    is complete. Who finds all of them publishes. Rows stay whatever happens: a part whose process
    died is loaded by the same command, anywhere, which continues from what is there.
    """

    first_state = TESTING

    def __init__(self, number: int, count: int, *of_whole: Any) -> None:
        if count > requests.WINDOW:
            raise BackendError(
                f"{count} parts are too many, at most {requests.WINDOW} can be counted; load fewer",
            )
        super().__init__(*of_whole)
        self._part = number
        self._count = count

    def __enter__(self) -> PartWriter:
        self._digest = digest_of(self._manifest, [*self._address.layout, "parts", self._count])
        self._generations()
        generation = self._join()
        if generation is not None:
            self._begin(generation)
        return self

    def commit(self) -> None:
        """Say that this part is complete, and publish if all are."""
        if (
            self._load is None
        ):  # this part has no items, or another process has not made the index yet
            self._begin(self._create(0))
        assert self._load is not None
        bulk = self._load.rows.bulk
        generation = self._load.generation
        bulk.flush()
        before = [part["part"] for part in self._complete()]
        state = generation.state
        marker = {
            "part": self._part,
            "items": len(self._ledger),
            "unit": state.unit,
            "concept_dim": state.concept_dim,
        }
        self._transport.request(
            "PUT",
            f"/{generation.loading_alias}/_doc/{_marker(self._part)}",
            marker,
            require_alias="true",
        )
        complete = self._complete()
        if len(complete) < self._count or not self._claim(again=self._part in before):
            self._committed = True
            return
        there = generations(self._transport, self._name)
        drop(
            self._transport,
            [g for g in there if not g.live and g.physical != generation.physical],
        )
        self._before = [g for g in there if g.live]
        dims = [part["concept_dim"] for part in complete if part["concept_dim"] is not None]
        state = replace(
            state,
            unit=all(part["unit"] for part in complete),
            concept_dim=max(dims, default=None),
        )
        self._load.generation = replace(generation, state=state)
        self._publish(sum(part["items"] for part in complete))
        forget(self._transport, self._name)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: object,
    ) -> None:
        self._committed = True  # nothing is dropped, since others load too
        super().__exit__(kind, error, trace)

    def _create(self, largest: int) -> Generation:
        """Return the generation that another process made, or a new one."""
        while True:
            # Numbered before it looks for another's: one made in between has this number, and is
            # refused below.
            self._number = 1 + max(
                (g.number for g in generations(self._transport, self._name)),
                default=0,
            )
            generation = self._join()
            if generation is not None:
                return generation
            try:
                generation = super()._create(largest)
            except RefusedError as error:
                if error.kind != "resource_already_exists_exception":
                    raise
                continue
            tested = replace(generation, state=replace(generation.state, state="loading"))
            remember(self._transport, tested)
            return tested

    def _join(self) -> Generation | None:
        """Return the generation that other processes load, once its scores are tested; None if
        there is none."""
        deadline = time.monotonic() + TEST_PATIENCE
        while True:
            there = generations(self._transport, self._name)
            live = max((g.number for g in there if g.live), default=0)
            generation = next(
                (g for g in reversed(there) if g.digest == self._digest and g.number > live),
                None,
            )
            if generation is None or generation.state.state != TESTING:
                return generation
            if time.monotonic() > deadline:
                drop(self._transport, [generation])
                return None
            time.sleep(PAUSE)

    def _complete(self) -> list[Json]:
        assert self._load is not None
        physical = self._load.generation.physical
        self._load.shards.wait(self._address.patience)
        refresh(self._transport, physical)
        markers = [_marker(number) for number in range(1, self._count + 1)]
        body: Json = {"query": {"ids": {"values": markers}}, "size": self._count}
        params = {"allow_partial_search_results": "false"}
        hits = self._transport.search(f"/{physical}/_search", body, **params)["hits"]["hits"]
        return [hit["_source"] for hit in hits]

    def _claim(self, *, again: bool) -> bool:
        """Return whether this process is to publish. Of several that end at once the first is,
        unless it died: then who loads a complete part ``again``."""
        assert self._load is not None
        generation = self._load.generation
        by = uuid4().hex
        path = f"/{generation.loading_alias}/_create/{CLAIM}"
        try:
            self._transport.request(
                "PUT",
                path,
                {"part": self._part, "by": by},
                require_alias="true",
            )
        except RefusedError as error:
            if error.status != 409:
                raise
            # A request that is sent again after its answer was lost meets the claim that it made
            # itself.
            claim = self._transport.request("GET", f"/{generation.physical}/_doc/{CLAIM}")
            return again or claim["_source"]["by"] == by
        return True

    def _audit(self, physical: str, count: int, expected: int) -> None:
        if count != expected:
            raise UnfinishedError(
                f"{self._transport.label} holds {count} items, and the {self._count} parts had "
                f"{expected}: an id is in "
                "several, or they are of other versions of the source; load them with another "
                "number of parts",
            )


def _marker(part: int) -> str:
    return f"boc:part:{part}"


def share_code(
    transport: Transport,
    address: Address,
    name: str,
    key: str,
    learn: Callable[[], Learned],
    *,
    beat: float = BEAT,
    dead: float = DEAD,
) -> Learned:
    """Return what ``learn`` returns, called here or by the process that asked first. ``key`` stands
    for what is learned from and how, in 12 hex digits. Who learns gives a sign of life every
    ``beat`` seconds, and is given up after ``dead`` seconds without one."""
    physical = f"{name}-boc-{key}-code"
    seen = -1
    since = time.monotonic()
    while True:
        progress = (
            indices_of(transport, physical)
            .get(physical, {})
            .get("mappings", {})
            .get("_meta", {})
            .get(META)
        )
        if progress is None:
            if reserve(transport, physical):
                return _learn(transport, address, physical, learn, beat)
            continue
        if progress["config"] is not None:
            return progress["config"], _read(transport, physical, progress)
        if progress["beat"] != seen:
            seen = progress["beat"]
            since = time.monotonic()
        elif time.monotonic() - since > dead:
            drop_index(transport, physical)
        time.sleep(PAUSE)


def forget(transport: Transport, name: str) -> None:
    """Remove the codes that loads of ``name`` have shared."""
    for physical, entry in indices_of(transport, f"{name}-boc-*-code").items():
        if META in entry["mappings"].get("_meta", {}):
            drop_index(transport, physical)


def reserve(transport: Transport, physical: str) -> bool:
    """Make the index of a code, to learn it; False if another process did."""
    body = requests.code_body(_meta(), f"{physical}.load")
    try:
        transport.request("PUT", f"/{physical}", body)
    except RefusedError as error:
        if error.kind != "resource_already_exists_exception":
            raise
        return False
    clear_of_templates(transport, physical, body["mappings"])
    return True


def _meta(
    beat: int = 0,
    config: Json | None = None,
    arrays: Json | None = None,
    blocks: int = 0,
) -> Json:
    return {META: {"beat": beat, "config": config, "arrays": arrays, "blocks": blocks}}


def _remember(transport: Transport, physical: str, meta: Json) -> None:
    transport.request("PUT", f"/{physical}/_mapping", {"_meta": meta})


def _learn(
    transport: Transport,
    address: Address,
    physical: str,
    learn: Callable[[], Learned],
    beat: float,
) -> Learned:
    """Learn the code while sending heartbeats, then store it; clean up on failure."""
    stop = threading.Event()

    def send_heartbeats() -> None:
        number = 0
        while not stop.wait(beat):
            number += 1
            with suppress(BackendError):
                _remember(transport, physical, _meta(number))

    thread = threading.Thread(target=send_heartbeats, daemon=True)
    thread.start()

    def discard() -> None:
        with suppress(BackendError):
            drop_index(transport, physical)

    with ExitStack() as undo:
        undo.callback(discard)
        try:
            config, arrays = learn()
        finally:
            stop.set()
            thread.join()
        with Bulk(
            transport,
            f"{physical}.load",
            require_alias=True,
            patience=address.patience,
        ) as bulk:
            blocks = put_arrays(bulk, arrays)
        refresh(transport, physical)
        shapes = {array: describe(values) for array, values in arrays.items()}
        _remember(transport, physical, _meta(0, config, shapes, blocks))
        undo.pop_all()
    return config, arrays


def _read(transport: Transport, physical: str, progress: Json) -> dict[str, NDArray[Any]]:
    """Return the arrays that another process left. BackendError if they are not those that it told
    of."""
    arrays: dict[str, NDArray[Any]] = stored_arrays(
        transport,
        physical,
        progress["blocks"],
        progress["arrays"],
    )
    if {name: describe(np.asarray(values)) for name, values in arrays.items()} != progress[
        "arrays"
    ]:
        raise BackendError(
            f"{transport.label}: {physical} is damaged; delete it, and repeat the command",
        )
    return arrays
