"""Force-merging an index on a server after a load, before it is published."""

from __future__ import annotations

from contextlib import suppress

from .transport import RefusedError, Transport

PATIENCE = 24 * 3600.0  # timeout of a merge, in seconds


def refresh(transport: Transport, index: str) -> None:
    """Make all writes visible to searches."""
    transport.request("POST", f"/{index}/_refresh", timeout=PATIENCE)


def compact(transport: Transport, index: str, alias: str) -> None:
    """Merge an index into one segment per shard, without the copies that servers keep for recovery.

    A server keeps a copy of every document whose _source is incomplete, two thirds of all bytes. It drops the copies in
    the next merge that has something to rewrite, once no replica can need them. So there are two merges, and a dummy
    document is written and deleted for the second. Closing the index between them releases the copies at once; servers
    otherwise do so within half a minute. The old segments stay on disk until no search and no commit uses them.
    Documents are written through ``alias``, because writing by name would create a removed index again.
    """
    dummy = f"/{alias}/_doc/boc:dummy"
    merge(transport, index)
    transport.request("PUT", dummy, {}, require_alias="true")
    transport.request("POST", f"/{index}/_flush", timeout=PATIENCE)
    with suppress(RefusedError):  # a managed service may forbid closing an index; later merges drop the copies
        transport.request("POST", f"/{index}/_close", timeout=PATIENCE)
    reopen(transport, index)
    transport.request("DELETE", dummy)
    merge(transport, index)
    refresh(transport, index)
    transport.request("POST", f"/{index}/_flush", force="true", timeout=PATIENCE)


def reopen(transport: Transport, index: str) -> None:
    """Open a closed index; an open one stays open."""
    transport.request("POST", f"/{index}/_open", wait_for_active_shards=1, timeout=PATIENCE)


def merge(transport: Transport, index: str) -> None:
    """Merge an index into one segment per shard, while it answers searches."""
    refresh(transport, index)
    transport.request("POST", f"/{index}/_forcemerge", max_num_segments=1, timeout=PATIENCE)
