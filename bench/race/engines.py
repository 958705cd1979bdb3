"""The engines of one process that are raced, by name: of the engine, and of the code if it is over one.

``boc bits:32``, ``boc bits:32 int8``, ``scipy dictionary:2``, ``hnsw32``. Each is built once, in a folder of its own.
"""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress
from importlib import import_module

import click
import numpy as np

from bench.race.codes import Coded, Ours, Scipy, code_of, fit, is_raced
from bench.race.data import Data
from bench.race.engine import Engine, Facts, Local, Setting, child, folder_of, once, status, use_threads
from bench.race.vectors import Brute, Flat, Hnsw, Ivf, IvfPq, Usearch
from boc.codecs import parse_code

ASKED = 100  # queries before memory is looked at
CODES = ("bits:32", "dictionary:2")
ENGINES: dict[str, type[Local]] = {
    "boc": Ours, "scipy": Scipy, "brute": Brute, "flat": Flat, "hnsw32": Hnsw, "ivf-sq8": Ivf, "ivf-pq4": IvfPq,
    "usearch-f16": Usearch,
}  # fmt: skip


def all_names() -> list[str]:
    """The names of the indexes that are compared by default."""
    coded = [f"{engine} {code}" for engine in ("boc", "scipy") for code in CODES]
    return coded + [name for name in ENGINES if name not in ("boc", "scipy")]


def check_name(name: str) -> None:
    """UsageError unless it names an index."""
    engine, _, code = name.partition(" ")
    coded = engine in ENGINES and issubclass(ENGINES[engine], Coded)
    plain = code_of(code) if engine == Ours.library else code
    if engine not in ENGINES or bool(code) != coded or (coded and not is_raced(plain)):
        others = "other terms and scalar:64 too; boc with int8 behind it"
        raise click.UsageError(f"no index {name!r}; known: {', '.join(all_names())}, {others}")


def opened(data: Data, name: str) -> Engine:
    engine, _, code = name.partition(" ")
    return ENGINES[engine](data, folder_of(data, name), code)


def built(data: Data, name: str, threads: int) -> Facts:
    """Fit and build what is not there yet."""
    engine, _, code = name.partition(" ")
    folder, kind = folder_of(data, name), parse_code(code_of(code)).name if code else ""
    fitting = {"build": 0.0, "cpu": 0.0, "peak": 0.0}
    if kind:
        fitting = once(folder_of(data, f"codec {kind}"), threads, fit, data, kind)
    found = once(folder, threads, ENGINES[engine].build, data, folder, code, threads)
    sizes = ENGINES[engine].sizes(data, folder, code)
    cpu, peak = fitting["cpu"] + found["cpu"], max(fitting["peak"], found["peak"])
    return Facts(fitting["build"], found["encode"], found["build"], cpu, int(peak), sizes)


def memory(data: Data, name: str, setting: Setting) -> tuple[int, int]:
    """Bytes that opening an index and asking it add to a fresh process: its own, and mapped of files and touched."""
    found: tuple[int, int] = child(_resident, data, name, setting)
    return found


def _resident(data: Data, name: str, setting: Setting) -> tuple[int, int]:
    use_threads(1)
    for module in ("faiss", "scipy.sparse", "indexing.embedded.index", "usearch.index"):
        with suppress(ImportError):
            import_module(module)
    queries, _ = np.ascontiguousarray(data.asked[1][:ASKED]), data.modality  # read before, not counted
    _give_back()  # or the index would lie in what was freed before, and count as nothing
    before = status("RssAnon"), status("RssFile")
    engine = opened(data, name)
    engine.choose(setting)
    for i in range(len(queries)):
        engine.ask(queries[i : i + 1])
    _give_back()
    return max(0, status("RssAnon") - before[0]), max(0, status("RssFile") - before[1])


def _give_back() -> None:
    """Return memory that was freed to the system."""
    gc.collect()
    with suppress(AttributeError):  # another C library than GNU's
        ctypes.CDLL(None).malloc_trim(0)
