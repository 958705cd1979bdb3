"""Making an index small after a load, before anybody searches it."""

from __future__ import annotations

from contextlib import suppress

from .transport import RefusedError, Transport

PATIENCE = 24 * 3600.0  # seconds that a merge may take


def refresh(transport: Transport, index: str) -> None:
    """Let searches see all that was written."""
    transport.request("POST", f"/{index}/_refresh", timeout=PATIENCE)


def compact(transport: Transport, index: str, alias: str) -> None:
    """One segment a shard, without what servers keep for recovery.

    Of documents whose _source is not whole a server keeps a copy, two thirds of all bytes, until a merge that has
    something to rewrite after no copy of the shard can need it. So there are two merges, the second of a document that
    is only there to be deleted; closing the index between them lets go of the copies at once, which servers otherwise
    do within half a minute. The segments from before stay on the disk until nothing searches them and no commit names
    them. Documents are written by ``alias``: a removed index would be made anew by its name.
    """
    dummy = f"/{alias}/_doc/boc:dummy"
    merge(transport, index)
    transport.request("PUT", dummy, {}, require_alias="true")
    transport.request("POST", f"/{index}/_flush", timeout=PATIENCE)
    with suppress(RefusedError):  # a managed service may not let an index be closed; it gets small by later merges
        transport.request("POST", f"/{index}/_close", timeout=PATIENCE)
    reopen(transport, index)
    transport.request("DELETE", dummy)
    merge(transport, index)
    refresh(transport, index)
    transport.request("POST", f"/{index}/_flush", force="true", timeout=PATIENCE)


def reopen(transport: Transport, index: str) -> None:
    """Open an index that was closed; an open one stays so."""
    transport.request("POST", f"/{index}/_open", wait_for_active_shards=1, timeout=PATIENCE)


def merge(transport: Transport, index: str) -> None:
    """One segment a shard, while the index goes on answering."""
    refresh(transport, index)
    transport.request("POST", f"/{index}/_forcemerge", max_num_segments=1, timeout=PATIENCE)
