"""List, create, edit and remove indexes in an Elasticsearch or OpenSearch cluster, using a
``Transport``."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray

from boc.errors import BocError, note
from boc.inputs.sources import shard_of
from boc.manifest import Manifest

from .address import Address
from .aliases import check_own, drop, generations, live_generation, names, readable
from .attach import ServerAttachment, lost_codes
from .engine import ServerEngine
from .force_merge import merge
from .parts import Learned, PartWriter, forget, share_code
from .transport import RefusedError, Transport
from .writer import ServerEditor, ServerWriter, counts


@dataclass
class ServerBackend:
    """Manage the indexes in a cluster. ``order`` lists the field types for codes that the cluster
    supports, best first."""

    transport: Transport
    address: Address
    order: Sequence[str]

    def exists(self, name: str) -> bool:
        return any(generation.live for generation in generations(self.transport, name))

    def create(
        self,
        name: str,
        manifest: Manifest,
        arrays: Mapping[str, NDArray[Any]],
        part: str | None = None,
    ) -> ServerWriter:
        given = self.transport, self.address, self.order, name, manifest, arrays
        return ServerWriter(*given) if part is None else PartWriter(*given, *shard_of(part))

    def learn_once(self, name: str, key: str, learn: Callable[[], Learned]) -> Learned:
        return share_code(self.transport, self.address, name, key, learn)

    def open(self, name: str) -> ServerEngine:
        generation = readable(self.transport, live_generation(self.transport, name))
        if generation.state.state == "editing":
            note(
                f"{name}: an edit is running or was interrupted, so counts may be wrong; if nobody "
                "is editing the index, repeat the edit",
            )
        if generation.state.attached or generation.narrowed:
            items, postings, _ = counts(self.transport, generation.target, generation.layout)
            lost = lost_codes(self.transport, generation, sum(items.values()))
            generation = replace(generation, lost=lost)
            if lost:
                note(
                    f"{lost} documents of {name} lost their code: another program wrote them "
                    "again as a whole",
                    f"repeat <boc attach {name} FEATURES>",
                )
            else:
                manifest = replace(generation.manifest, items=items, postings=postings)
                generation = replace(generation, manifest=manifest)
        return ServerEngine(self.transport, generation)

    def attach(self, name: str) -> ServerAttachment:
        """Return the existing or a new attachment to the documents in ``name``, an index of another
        program."""
        return ServerAttachment(self.transport, self.address, name)

    def edit(self, name: str) -> ServerEditor:
        return ServerEditor(self.transport, self.address, name)

    def compact(self, name: str) -> None:
        generation = live_generation(self.transport, name)
        check_own(generation)
        merge(self.transport, generation.physical)

    def names(self) -> list[str]:
        return names(self.transport)

    def remove(self, name: str) -> None:
        present = generations(self.transport, name)
        # If the index does not exist, live_generation() raises an error that lists the existing
        # indexes.
        check_own(present[-1] if present else live_generation(self.transport, name))
        drop(self.transport, present)
        forget(self.transport, name)

    def about(self) -> dict[str, str]:
        """Return the engine, its version, and the reasons why indexes cannot be read: for example,
        indexes can be closed or blocked, lack a shard, or have another version."""
        version = "not told"
        with suppress(RefusedError):
            version = str(self.transport.request("GET", "/")["version"]["number"])
        about = {
            "engine": self.transport.engine,
            "address": self.transport.label,
            "version": version,
        }
        reasons = []
        for name in self.names():
            try:
                self.open(name)
            except BocError as error:
                reasons.append(f"{name} ({error})")
        if reasons:
            about["unreadable"] = "; ".join(reasons)
        return about
