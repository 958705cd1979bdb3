"""Checks of the machine: threads, memory, Java."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from ._finding import Finding

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
LITTLE = 2 << 30  # bytes of memory; torch and a text tower take half of them


def machine() -> Iterator[Finding]:
    """Findings on the machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limits = [f"{name}={os.environ[name]}" for name in THREADS if os.environ.get(name)]
    yield Finding("ok", "threads", f"{cores} cores" + (f", limited by {', '.join(limits)}" if limits else ""))
    memory = available_memory()
    if memory is None:
        yield Finding("ok", "memory", "not told by this system")
    elif memory < LITTLE:
        todo = "stop what else runs before training or encoding; searching needs little"
        yield Finding("note", "memory", f"{shown(memory)} available", todo)
    else:
        yield Finding("ok", "memory", f"{shown(memory)} available")
    java = shutil.which("java")
    only = "only boc evaluate --spice would start it, to measure SPICE"
    yield Finding("ok", "java", f"{java}; {only}" if java else f"not there, and not needed: {only}")


def available_memory() -> int | None:
    """Bytes of available memory, within the limit of a container; None if unknown."""
    try:
        match = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(encoding="ascii"), re.M)
    except OSError:
        return None
    if match is None:
        return None
    return min([int(match[1]) << 10, *(limit for path in LIMITS if (limit := _limit(Path(path))) is not None)])


def shown(size: float) -> str:
    """A number of bytes as text."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def _limit(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):  # missing, or "max"
        return None
