"""Which node holds the primary of each shard of an index, so that a load can say what it waits for."""

from __future__ import annotations

import time
import warnings

from boc.errors import BackendError, BocWarning

from .transport import RefusedError, Transport, UnfinishedError, UnreachableError

NOTICE = 10.0  # seconds without a shard after which a note says so
PAUSE = 1.0  # seconds between two looks


class Shards:
    """The shards of ``index``, with the node that each was on when it was last seen. Thread-safe."""

    def __init__(self, transport: Transport, index: str) -> None:
        self._transport = transport
        self._index = index
        self._seen: dict[int, str] = {}
        self.lost()

    def lost(self) -> str:
        """Which shards have no living copy, and where they were; empty if there are none, or none is known."""
        try:
            told = self._transport.request("GET", f"/{self._index}/_search_shards")
        except BackendError:  # no master, or no right to ask: what called says what is wrong
            return ""
        copies = [copy for group in told.get("shards", ()) for copy in group]
        alive = {
            int(copy["shard"]): str(told["nodes"].get(copy["node"], {}).get("name", copy["node"]))
            for copy in sorted(copies, key=lambda copy: bool(copy["primary"]))
            if copy["state"] in ("STARTED", "RELOCATING")
        }
        self._seen = {**self._seen, **alive}
        gone = [f"shard {shard}, last on node {node}," for shard, node in self._seen.items() if shard not in alive]
        return f"{self._index} has no living copy of {' and of '.join(gone)} and waits for it" if gone else ""

    def wait(self, patience: float) -> None:
        """Wait until every shard answers. UnfinishedError, naming shards and nodes, after ``patience`` seconds."""
        begun = noted = time.monotonic()
        while True:
            try:
                self._transport.request(
                    "POST", f"/{self._index}/_search", {"size": 0}, allow_partial_search_results="false"
                )
                return
            except (RefusedError, UnreachableError) as error:
                if isinstance(error, RefusedError) and error.status not in (500, 503):
                    raise
                trouble = self.lost() or str(error)
            now = time.monotonic()
            if now - begun >= patience:
                raise UnfinishedError(f"{trouble}; bring the node back, and repeat the command to go on")
            if now - noted >= NOTICE:
                warnings.warn(f"the load goes on when it can: {trouble}", BocWarning, stacklevel=2)
                noted = now
            time.sleep(PAUSE)
