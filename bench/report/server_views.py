"""Views of what was measured on servers with less memory than the vectors take."""

from __future__ import annotations

import math

from bench.report.rows import Rows
from bench.report.tables import Table, listed, number, of

PLANNED = (10_000_000, 100_000_000, 1_000_000_000)
SHARD_GB, SHARD_ITEMS = 30, 10_000_000  # rules of boc/evaluate/capacity.py
NODE_GB = 48
"""Page cache of a node with 64 GB of memory, beside its heap and the system."""


def beyond(rows: Rows, state: str) -> Table:
    """A server's indexes with less and less memory, cold or warm."""
    found = [row for row in rows.table if row["state"] == state]
    return listed(found, {
        "index": of("index"), "memory": of("memory"), "setting": of("setting"), "recall": of("recall", 3),
        "p50 ms": of("p50_ms", 1), "p95": of("p95_ms", 1), "p99": of("p99_ms", 1), "disk reads": of("reads", 1),
        "kB read": of("read_kb", 0), "files in memory, MB": of("cached_mb", 0),
    })  # fmt: skip


def server_loads(rows: Rows) -> Table:
    """What loading each index took."""
    once = {row["index"]: row for row in rows.table}
    return listed(list(once.values()), {
        "index": of("index"), "processor s to learn, load and merge": of("cpu_s", 0), "disk MB": of("disk_mb", 0),
        "vectors among it": of("vectors_mb", 0),
    })  # fmt: skip


def planned(rows: Rows) -> Table:
    """By formula: an index of many items, in proportion to the one that was measured."""
    head = ["index", "items", "GB on disk, one copy", "shards", f"nodes with {NODE_GB} GB for all files", "for a quarter of the vectors"]  # fmt: skip  # noqa: E501
    n, dim = (float(rows.head["settings"][name]) for name in ("n", "dim"))
    lines = []
    for name, row in {row["index"]: row for row in rows.table}.items():
        for items in PLANNED:
            size, quarter = float(row["disk_mb"]) / 1e3 * items / n, items * dim / 1e9
            shards = max(math.ceil(size / SHARD_GB), math.ceil(items / SHARD_ITEMS))
            nodes = [str(math.ceil(memory / NODE_GB)) for memory in (size, quarter)]
            lines.append([name, f"{items:,}", number(str(size), 0), str(shards), *nodes])
    return Table(head, lines)
