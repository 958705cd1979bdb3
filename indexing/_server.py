"""What Elasticsearch and OpenSearch have in common: a place of indexes, over a ``Transport``."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from boc.errors import BackendError
from boc.manifest import Manifest

from . import _bodies
from ._address import Address
from ._generations import drop, generations, names, published
from ._reading import ServerIndex
from ._selftest import self_test
from ._transport import Json, RefusedError, Transport
from ._writing import ServerEditor, ServerWriter


class ServerBackend:
    """The indexes of one cluster. ``order`` names its ways to store codes, best first."""

    def __init__(self, transport: Transport, address: Address, order: Sequence[str]) -> None:
        self.transport = transport
        self.address = address
        self._order = order

    def exists(self, name: str) -> bool:
        return any(generation.live for generation in generations(self.transport, name))

    def create(self, name: str, manifest: Manifest, arrays: Mapping[str, NDArray[Any]]) -> ServerWriter:
        return ServerWriter(self.transport, self.address, self._order, name, manifest, arrays)

    def open(self, name: str) -> ServerIndex:
        return ServerIndex(self.transport, published(self.transport, name))

    def edit(self, name: str) -> ServerEditor:
        return ServerEditor(self.transport, self.address, name)

    def names(self) -> list[str]:
        return names(self.transport)

    def remove(self, name: str) -> None:
        there = generations(self.transport, name)
        if not there:
            published(self.transport, name)  # says what there is
        drop(self.transport, there)

    def about(self) -> dict[str, str]:
        """Engine, version, and how codes can be stored there: tried with a small index that is removed again."""
        found = {"engine": self.transport.engine, "address": self.transport.shown, "version": self._version()}
        for field in _bodies.STRATEGIES:
            found[field] = self._tried(field)
        return found

    def _version(self) -> str:
        try:
            return str(self.transport.request("GET", "/")["version"]["number"])
        except RefusedError:
            return "not told to this user"

    def _tried(self, field: str) -> str:
        strategy = _bodies.STRATEGIES[field]
        index = f"boc-probe-{uuid.uuid4().hex[:12]}"
        body: Json = {
            "settings": {"number_of_shards": 1, "number_of_replicas": 0, **strategy.settings},
            "mappings": {"dynamic": False, "properties": {"terms": strategy.mapping}},
        }
        try:
            self.transport.request("PUT", f"/{index}", body)
        except RefusedError as error:
            return f"no ({error.reason or error.kind})"
        try:
            lack = self_test(self.transport, index, strategy)
        except BackendError as error:
            return f"no ({error})"
        finally:
            self.transport.request("DELETE", f"/{index}")
        default = field == next((f for f in self._order), None)
        return f"no ({lack})" if lack else "exact, the default" if default else "exact"
