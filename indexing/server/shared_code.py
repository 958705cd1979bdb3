"""The code of an index that several processes load: the first one learns it, and the others take it from the server.

It is kept in a small index of its own, ``NAME-boc-KEY-code``, until the index is published. Who makes that index
learns, and counts in its ``_meta`` meanwhile, so that the others see that it is alive. They wait; if it died, one of
them learns.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from boc.errors import BackendError
from boc.manifest import describe

from .address import Address
from .aliases import indices_of
from .bulk import Bulk
from .force_merge import refresh
from .requests import kept
from .searches import stored_arrays
from .transport import Json, RefusedError, Transport
from .writer import put_arrays

Learned: TypeAlias = tuple[dict[str, Any], Mapping[str, NDArray[Any]]]
"""The configuration of a code, and its arrays."""

BEAT = 2.0  # seconds between two signs of life
DEAD = 30.0  # seconds without one after which whoever learns is given up
PAUSE = 0.5  # seconds between two looks
META = "boc_code"


def shared(transport: Transport, address: Address, name: str, key: str, learn: Callable[[], Learned]) -> Learned:
    """What ``learn`` returns, called here or by the process that asked first. ``key`` stands for what is learned from
    and how, in 12 hex digits."""
    physical, seen, since = f"{name}-boc-{key}-code", -1, time.monotonic()
    while True:
        told = indices_of(transport, physical).get(physical, {}).get("mappings", {}).get("_meta", {}).get(META)
        if told is None:
            if _make(transport, physical):
                return _learned(transport, address, physical, learn)
            continue
        if told["config"] is not None:
            return told["config"], _read(transport, physical, told)
        if told["beat"] != seen:
            seen, since = told["beat"], time.monotonic()
        elif time.monotonic() - since > DEAD:
            _drop(transport, physical)
        time.sleep(PAUSE)


def forget(transport: Transport, name: str) -> None:
    """Remove the codes that loads of ``name`` have shared."""
    for physical, entry in indices_of(transport, f"{name}-boc-*-code").items():
        if META in entry["mappings"].get("_meta", {}):
            _drop(transport, physical)


def _make(transport: Transport, physical: str) -> bool:
    """Make the index; False if another process did."""
    body = {
        "settings": {"number_of_shards": 1, "number_of_replicas": 0},
        "mappings": {
            "dynamic": False,
            "_source": kept(["block"]),
            "_meta": _meta(),
            "properties": {"block": {"type": "binary", "doc_values": True}},
        },
        "aliases": {f"{physical}.load": {}},
    }
    try:
        transport.request("PUT", f"/{physical}", body)
    except RefusedError as error:
        if error.kind != "resource_already_exists_exception":
            raise
        return False
    return True


def _meta(beat: int = 0, config: Json | None = None, arrays: Json | None = None, blocks: int = 0) -> Json:
    return {META: {"beat": beat, "config": config, "arrays": arrays, "blocks": blocks}}


def _remember(transport: Transport, physical: str, meta: Json) -> None:
    transport.request("PUT", f"/{physical}/_mapping", {"_meta": meta})


def _learned(transport: Transport, address: Address, physical: str, learn: Callable[[], Learned]) -> Learned:
    """Learn, with signs of life, and leave the result. Nothing stays if that fails."""
    stop = threading.Event()

    def beat() -> None:
        number = 0
        while not stop.wait(BEAT):
            number += 1
            with suppress(BackendError):
                _remember(transport, physical, _meta(number))

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    done = False
    try:
        try:
            config, arrays = learn()
        finally:
            stop.set()
            thread.join()
        with Bulk(transport, f"{physical}.load", require_alias=True, patience=address.patience) as bulk:
            blocks = put_arrays(bulk, arrays)
        refresh(transport, physical)
        told = {array: describe(values) for array, values in arrays.items()}
        _remember(transport, physical, _meta(0, config, told, blocks))
        done = True
    finally:
        if not done:
            with suppress(BackendError):
                _drop(transport, physical)
    return config, arrays


def _read(transport: Transport, physical: str, told: Json) -> dict[str, NDArray[Any]]:
    """The arrays that another process left. BackendError if they are not those that it told of."""
    arrays: dict[str, NDArray[Any]] = stored_arrays(transport, physical, told["blocks"], told["arrays"])
    if {name: describe(np.asarray(values)) for name, values in arrays.items()} != told["arrays"]:
        raise BackendError(f"{transport.shown}: {physical} is damaged; delete it, and repeat the command")
    return arrays


def _drop(transport: Transport, physical: str) -> None:
    try:
        transport.request("DELETE", f"/{physical}")
    except RefusedError as error:
        if error.status != 404:
            raise
