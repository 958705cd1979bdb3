"""Force-merge an index on a server after a load, before it is published."""

import time
from contextlib import suppress
from itertools import count

from .transport import Json, RefusedError, Transport

PATIENCE = 24 * 3600.0
"""Timeout of a merge, in seconds."""
PERIOD = "index.soft_deletes.retention_lease.period"


def refresh(transport: Transport, index: str) -> None:
    """Refresh an index, so that searches see all writes."""
    transport.request("POST", f"/{index}/_refresh", timeout=PATIENCE)


def compact(transport: Transport, index: str, alias: str) -> None:
    """Merge an index into one segment per shard, and drop the copies that servers keep for
    recovery.

    A server keeps a copy of every document whose _source is incomplete. These copies take two
    thirds of all bytes. The server drops the copies in the next merge that has something to
    rewrite, once no replica can need the copies. Therefore the index is merged twice. For the
    second merge, a dummy document is written to each shard and deleted; this happens twice, since
    Elasticsearch 9 and OpenSearch kept all copies in a shard in which nothing was replaced. After a
    load of less than half a minute, closing the index between the merges usually releases the
    copies at once, but not on Elasticsearch 8; in other cases, ``await_release`` waits for the
    release. Documents are written through ``alias``, because writing by name would recreate a
    removed index.
    """
    dummies = [f"/{alias}/_doc/{id}" for id in one_per_shard(transport, index)]
    merge(transport, index)
    for dummy in (*dummies, *dummies):
        transport.request("PUT", dummy, {}, require_alias="true")
    transport.request("POST", f"/{index}/_flush", timeout=PATIENCE)
    # A managed service may forbid both steps; later merges then drop the copies.
    with suppress(RefusedError):
        await_release(transport, index)
    with suppress(RefusedError):
        transport.request("POST", f"/{index}/_close", timeout=PATIENCE)
    reopen(transport, index)
    for dummy in dummies:
        transport.request("DELETE", dummy)
    merge(transport, index)
    refresh(transport, index)
    transport.request("POST", f"/{index}/_flush", force="true", timeout=PATIENCE)


def one_per_shard(transport: Transport, index: str) -> list[str]:
    """Return the ids of dummy documents, one per shard."""
    path = f"/{index}/_search_shards"
    ids: dict[int, str] = {}
    total = len(transport.request("GET", path)["shards"])
    numbers = count()
    while len(ids) < total:
        id = f"boc:dummy:{next(numbers)}"
        ((copy, *_),) = transport.request("GET", path, routing=id)["shards"]
        ids.setdefault(copy["shard"], id)
    return list(ids.values())


def await_release(
    transport: Transport,
    index: str,
    *,
    release: float = 45.0,
    pause: float = 1.0,
) -> None:
    """Wait until no shard retains operations of a long load for a replica, at most ``release``
    seconds.

    A server updates its retained operations every half minute, but if only a tenth was added since,
    it first waits for half of ``PERIOD``. The period is reset in any case, since an earlier load
    may have been killed while it waited.
    """
    if _retains(transport, index):
        transport.request("PUT", f"/{index}/_settings", {PERIOD: "1s"})
        deadline = time.monotonic() + release
        while _retains(transport, index) and time.monotonic() < deadline:
            time.sleep(pause)
    transport.request("PUT", f"/{index}/_settings", {PERIOD: None})


def _retains(transport: Transport, index: str) -> bool:
    """Return whether a shard retains operations from an operation after the first."""
    answer = transport.request("GET", f"/{index}/_stats/store", level="shards")
    return any(
        0 < lease["retaining_seq_no"] <= copy["seq_no"]["max_seq_no"]
        for copies in answer["indices"][index]["shards"].values()
        for copy in copies
        for lease in copy.get("retention_leases", {}).get("leases", ())
    )


def reopen(transport: Transport, index: str) -> Json:
    """Open an index if it is closed, and wait for its shards."""
    return transport.request("POST", f"/{index}/_open", wait_for_active_shards=1, timeout=PATIENCE)


def merge(transport: Transport, index: str) -> None:
    """Merge an index into one segment per shard while it continues to answer searches."""
    refresh(transport, index)
    transport.request("POST", f"/{index}/_forcemerge", max_num_segments=1, timeout=PATIENCE)
