"""What Elasticsearch and OpenSearch have in common: a place of indexes, over a ``Transport``."""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from boc.errors import BackendError, BocWarning
from boc.manifest import Manifest

from . import term_fields
from .address import Address
from .aliases import drop, generations, names, published
from .force_merge import merge
from .index import ServerIndex
from .score_check import self_test
from .transport import Json, RefusedError, Transport
from .writer import ServerEditor, ServerWriter

EXACT = "exact"  # said of a way to store codes that passed its test


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
        generation = published(self.transport, name)
        if generation.state.state == "editing":
            warnings.warn(
                f"{name}: an edit is under way or broke off, counts may not hold; if nobody edits it, repeat the edit",
                BocWarning,
                stacklevel=2,
            )
        return ServerIndex(self.transport, generation)

    def edit(self, name: str) -> ServerEditor:
        return ServerEditor(self.transport, self.address, name)

    def compact(self, name: str) -> None:
        merge(self.transport, published(self.transport, name).physical)

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
        tried = {field: self._tried(field) for field in term_fields.STRATEGIES}
        default = next((field for field in self._order if tried[field] == EXACT), None)
        return {**found, **tried, **({} if default is None else {default: f"{EXACT}, the default"})}

    def _version(self) -> str:
        try:
            return str(self.transport.request("GET", "/")["version"]["number"])
        except RefusedError:
            return "not told"

    def _tried(self, field: str) -> str:
        strategy = term_fields.STRATEGIES[field]
        index = f"boc-probe-{uuid.uuid4().hex[:12]}"
        body: Json = {
            "settings": {"number_of_shards": 1, "number_of_replicas": 0, **strategy.settings},
            "mappings": {"dynamic": False, "properties": {"terms": strategy.mapping}},
        }
        try:
            self.transport.request("PUT", f"/{index}", body)
        except RefusedError as error:
            if error.status in (401, 403):
                return f"not known: this user may not make the index {index}"
            return f"no ({error.reason or error.kind})"
        try:
            lack = self_test(self.transport, index, strategy)
        except BackendError as error:
            return f"no ({error})"
        finally:
            self.transport.request("DELETE", f"/{index}")
        return f"no ({lack})" if lack else EXACT
