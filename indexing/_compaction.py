"""Making an index small after a load, before anybody searches it."""

from __future__ import annotations

import time

from ._transport import Transport

PATIENCE = 24 * 3600.0  # seconds that a merge may take
RELEASE = 35.0  # seconds after which servers have looked whether operations must still be retained


def refresh(transport: Transport, index: str) -> None:
    """Let searches see all that was written."""
    transport.request("POST", f"/{index}/_refresh", timeout=PATIENCE)


def compact(transport: Transport, index: str, patience: float) -> None:
    """One segment a shard, without what servers keep for recovery.

    Of documents whose _source is not whole a server keeps a copy, two thirds of all bytes, until a merge that has
    something to rewrite after no copy of the shard can need it. So there are two merges, the second of a document that
    is only there to be deleted; between them ``patience`` seconds at most are waited for that moment. The segments from
    before stay on the disk until nothing searches them and no commit names them.
    """
    _merge(transport, index)
    transport.request("PUT", f"/{index}/_doc/boc:dummy", {})
    transport.request("POST", f"/{index}/_flush", timeout=PATIENCE)
    _await_release(transport, index, min(patience, RELEASE))
    transport.request("DELETE", f"/{index}/_doc/boc:dummy")
    _merge(transport, index)
    refresh(transport, index)
    transport.request("POST", f"/{index}/_flush", force="true", timeout=PATIENCE)


def _merge(transport: Transport, index: str) -> None:
    refresh(transport, index)
    transport.request("POST", f"/{index}/_forcemerge", max_num_segments=1, timeout=PATIENCE)


def _await_release(transport: Transport, index: str, patience: float) -> None:
    """Wait until no shard retains operations."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        told = transport.request("GET", f"/{index}/_stats", level="shards", filter_path="**.seq_no,**.leases")
        shards = [
            shard for entry in told["indices"].values() for copies in entry["shards"].values() for shard in copies
        ]
        if all(
            lease["retaining_seq_no"] > shard["seq_no"]["max_seq_no"]
            for shard in shards
            for lease in shard["retention_leases"]["leases"]
        ):
            return
        time.sleep(1)
