"""Engines in the race that run in one process, by name.

Examples of names are ``boc bits:32``, ``boc bits:32 int8`` and ``hnsw32``. Each index is built
once, in its own folder.
"""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress
from importlib import import_module

import click
import numpy as np

from bench.race.codes import Ours, code_of, fit, is_raced
from bench.race.data import Data
from bench.race.engine import (
    Engine,
    Facts,
    Local,
    Setting,
    child,
    folder_of,
    once,
    status,
    use_threads,
)
from bench.race.vectors import Flat, Hnsw, Ivf, IvfPq, Scann, Symphony, Usearch
from boc.codecs import parse_code

QUERIES = 100  # number of queries run before memory is measured
CODES = ("dictionary:2", "dictionary:2 int8")
ENGINES: dict[str, type[Local]] = {
    "boc": Ours,
    "flat": Flat,
    "hnsw32": Hnsw,
    "ivf-sq8": Ivf,
    "ivf-pq4": IvfPq,
    "usearch-f16": Usearch,
    "scann": Scann,
    "symphonyqg": Symphony,
}


def all_names() -> list[str]:
    """Return the names of the indexes that a race includes by default."""
    return [f"boc {code}" for code in CODES] + [name for name in ENGINES if name != "boc"]


def check_name(name: str) -> None:
    """Raise UsageError if ``name`` is not the name of an index."""
    engine, _, code = name.partition(" ")
    if engine not in ENGINES or (not is_raced(code_of(code)) if engine == "boc" else bool(code)):
        others = "other terms and scalar:64 too, with int8 behind it"
        raise click.UsageError(f"no index {name!r}; known: {', '.join(all_names())}, {others}")


def open_engine(data: Data, name: str) -> Engine:
    engine, _, code = name.partition(" ")
    return ENGINES[engine](data, folder_of(data, name), code)


def build(data: Data, name: str, threads: int) -> Facts:
    """Fit and build an index, unless it exists, and return its cost."""
    engine, _, code = name.partition(" ")
    folder = folder_of(data, name)
    fitting = {"seconds": 0.0, "cpu": 0.0, "peak": 0.0}
    if code:
        kind = parse_code(code_of(code)).name
        fitting = once(folder_of(data, f"codec {kind}"), threads, fit, data, kind)
    costs = once(folder, threads, ENGINES[engine].build, data, folder, code, threads)
    cpu = fitting["cpu"] + costs["cpu"]
    peak = max(fitting["peak"], costs["peak"])
    sizes = ENGINES[engine].sizes(data, folder, code)
    return Facts(fitting["seconds"], 0.0, costs["seconds"], cpu, int(peak), sizes)


def memory(data: Data, name: str, setting: Setting) -> tuple[int, int]:
    """Return the memory that a fresh process uses to open and query an index, as private bytes and
    touched mapped bytes."""
    added: tuple[int, int] = child(_resident, data, name, setting)
    return added


def _resident(data: Data, name: str, setting: Setting) -> tuple[int, int]:
    use_threads(1)
    for module in ("faiss", "indexing.embedded.engine", "usearch.index", "scann", "rabitqlib"):
        with suppress(ImportError):
            import_module(module)
    # Read the queries and the modality first, so that they are not counted.
    queries = np.ascontiguousarray(data.query_sets[1][:QUERIES])
    _ = data.modality
    _give_back()  # otherwise the index would reuse freed memory without being charged for it
    before = status("RssAnon"), status("RssFile")
    engine = open_engine(data, name)
    engine.choose(setting)
    for i in range(len(queries)):
        engine.ask(queries[i : i + 1])
    _give_back()
    return max(0, status("RssAnon") - before[0]), max(0, status("RssFile") - before[1])


def _give_back() -> None:
    """Return freed memory to the operating system."""
    gc.collect()
    with suppress(AttributeError):  # the C library is not the GNU C library
        ctypes.CDLL(None).malloc_trim(0)
