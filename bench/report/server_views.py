"""Views of what was measured on servers: with less memory than the vectors take, and with many items."""

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


PLAN = ["items", "GB on disk, one copy", "shards", f"nodes with {NODE_GB} GB for all files", "for a quarter of the vectors"]  # fmt: skip  # noqa: E501


def planned(rows: Rows) -> Table:
    """By formula: an index of many items, in proportion to the one that was measured."""
    n, dim = (float(rows.head["settings"][name]) for name in ("n", "dim"))
    once = {row["index"]: row for row in rows.table}
    lines = [[name, *plan(items, float(row["disk_mb"]) / 1e3 * items / n, dim)]
             for name, row in once.items() for items in PLANNED]  # fmt: skip
    return Table(["index", *PLAN], lines)


def plan(items: int, size: float, dim: float) -> list[str]:
    """The cells of ``PLAN`` for so many items of ``size`` GB."""
    shards = max(math.ceil(size / SHARD_GB), math.ceil(items / SHARD_ITEMS))
    nodes = [str(math.ceil(memory / NODE_GB)) for memory in (size, items * dim / 1e9)]
    return [f"{items:,}", number(str(size), 0), str(shards), *nodes]


def growing(rows: Rows) -> Table:
    """What loads of more and more items took, and their searches."""
    return listed(rows.table, {
        "items": of("items", 0), "load s, with a kill": of("seconds", 0), "of it resuming": of("resume_s", 0),
        "of it after the last item": of("merge_s", 0), "items per s": of("items_per_s", 0),
        "processor s of the server": of("server_s", 0), "loader MB": of("loader_mb", 0),
        "setting": of("setting"), "recall": of("recall", 3), "p50 ms": of("p50_ms", 1), "p95": of("p95_ms", 1),
        "p99": of("p99_ms", 1),
    })  # fmt: skip


def beside(rows: Rows) -> Table:
    """What was measured beside what ``boc estimate`` said of it before."""
    measures = {
        "learn, s": "learn_s", "load, s": "seconds", "bytes in all": "bytes",
        "bytes per item: postings": "postings_each", "vectors": "vectors_each", "other": "other_each",
    }  # fmt: skip
    head, lines = ["items", "", "estimated", "measured", "measured / estimated"], []
    for count, row in {row["items"]: row for row in rows.table}.items():
        for name, column in measures.items():
            said, found = float(row[f"estimated_{column}"]), float(row[column])
            digits = 1 if column.endswith("_each") else 0
            lines.append([number(count, 0), name, f"{said:,.{digits}f}", f"{found:,.{digits}f}", f"{found / said:.2f}"])
    return Table(head, lines)


def extrapolated(rows: Rows) -> Table:
    """By formula: more items, by the bytes and the rate of the largest load."""
    row = max(rows.table, key=lambda row: float(row["items"]))
    each = float(row["bytes"]) / float(row["items"])
    lines = [[*plan(items, each * items / 1e9, float(rows.head["settings"]["dim"])),
              f"{items / float(row['items_per_s']) / 3600:,.0f}"] for items in PLANNED[1:]]  # fmt: skip
    return Table([*PLAN, "hours to load, on one such node"], lines)
