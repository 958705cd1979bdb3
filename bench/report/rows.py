"""Write and read rows of measurements as CSV, with the settings, seed, versions, machine and time.

    settings = {"features": features, "rounds": 3}
    with Writer(sys.stdout, __file__, settings, ["code", "recall"]) as out:
        out.write("scalar", 0.98)

gives

    # script: sparsity_recall.py
    # settings: {"features": "dev.h5", "rounds": 3}
    # seed: 0
    # versions: {"boc": "0.1.0", "python": "3.11.7", ...}
    # machine: {"processor": "...", "cores": 2, "GiB": 24, "system": "Linux 6.18"}
    # time: 2026-01-31T12:00:00Z
    code,recall
    scalar,0.98
    # done: 3.2

Each row is flushed immediately. The last line contains the total time in seconds. If this line is
missing, the script was interrupted or failed, and the rows are incomplete.
"""

from __future__ import annotations

import csv
import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

LIBRARIES = ("boc", "numpy", "scipy", "faiss-cpu")
MARK = "# "
DONE = "# done: "
PLAIN = ("script", "time")  # header entries in plain text; all other entries are JSON
Row = Mapping[str, str]  # maps columns to cells


class Writer:
    """Context manager that writes a header, and rows under ``columns``, to a stream. If the context
        ends without an error, it also writes the last line.

    ``script`` is the name of the script, and ``settings`` contains all settings that determine the
    measurement. Paths are shortened to file names. ``extras`` lists the distributions whose
    versions are recorded in addition to `LIBRARIES`; distributions that are not installed are
    skipped.
    """

    def __init__(
        self,
        stdout: TextIO,
        script: str | Path,
        settings: Mapping[str, Any],
        columns: Sequence[str],
        *,
        seed: int = 0,
        extras: Sequence[str] = (),
    ) -> None:
        if len(set(columns)) != len(columns) or not all(columns):
            raise ValueError(f"columns must have different names, got {list(columns)}")
        if columns[0].startswith("#"):
            raise ValueError(f"the first column must not start with #, got {columns[0]!r}")
        self.stdout = stdout
        self.columns = tuple(columns)
        self.head = {
            "script": Path(script).name,
            "settings": dict(settings),
            "seed": seed,
            "versions": versions(extras),
            "machine": machine(),
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        self._csv = csv.writer(stdout, lineterminator="\n")

    def __enter__(self) -> Writer:
        for name, value in self.head.items():
            text = (
                value
                if name in PLAIN
                else json.dumps(value, default=_json_value, ensure_ascii=False)
            )
            self.stdout.write(f"{MARK}{name}: {text}\n")
        self._csv.writerow(self.columns)
        self.stdout.flush()
        self._start = time.perf_counter()
        return self

    def write(self, *cells: object) -> None:
        """Write one row, with one cell per column. None becomes an empty cell."""
        if len(cells) != len(self.columns):
            raise ValueError(f"{len(self.columns)} columns, but {len(cells)} cells: {cells}")
        line = ["" if cell is None else str(cell) for cell in cells]
        if line[0].startswith("#") or len("".join(line).splitlines()) > 1:
            raise ValueError(f"a row must be one line and not start with #, got {cells}")
        self._csv.writerow(line)
        self.stdout.flush()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        _: TracebackType | None,
    ) -> None:
        if kind is None:
            self.stdout.write(f"{DONE}{time.perf_counter() - self._start:.1f}\n")
            self.stdout.flush()


@dataclass(frozen=True)
class Rows:
    """Contents of a file of rows.

    ``head`` contains the script, settings, seed, versions, machine and time. ``table`` contains a
    mapping from columns to cells for each row. ``seconds`` is the total time, or None if the script
    was interrupted (see ``done``).
    """

    head: Mapping[str, Any]
    table: list[dict[str, str]]
    columns: tuple[str, ...] = ()
    seconds: float | None = None
    name: str = field(default="", compare=False)

    @property
    def is_complete(self) -> bool:
        return self.seconds is not None


def read(path: str | Path) -> Rows:
    """Read a file of rows. An incomplete last row is skipped. Raises ValueError for a file without
    a header."""
    text = Path(path).read_text(encoding="utf-8")
    head: dict[str, Any] = {}
    rest = text
    while rest.startswith(MARK):
        line, _, rest = rest.partition("\n")
        name, colon, value = line[len(MARK) :].partition(": ")
        with suppress(json.JSONDecodeError):  # the header is incomplete
            head[name] = value if name in PLAIN or not colon else json.loads(value)
    if "script" not in head:
        raise ValueError(
            f"{path}: does not begin with '# script: NAME', so it is not a file of rows; make it "
            "again",
        )
    lines = rest.split("\n")[:-1]
    seconds = None
    if lines and lines[-1].startswith(DONE):
        seconds = float(lines.pop().removeprefix(DONE))
    reader = csv.DictReader(lines)
    return Rows(
        head,
        list(reader),
        tuple(reader.fieldnames or ()),
        seconds,
        Path(path).name.partition(".")[0],
    )


def versions(extras: Sequence[str] = ()) -> dict[str, str]:
    """Return the versions of Python and of the installed distributions."""
    numbers = {"python": platform.python_version()}
    for name in (*LIBRARIES, *extras):
        with suppress(PackageNotFoundError):
            numbers[name] = version(name)
    return numbers


def machine() -> dict[str, Any]:
    """Return the processor, the number of usable processors, the memory in GiB, and the system."""
    model = platform.processor() or platform.machine()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next(
            (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
            model,
        )
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "processor": model,
        "cores": cores,
        "GiB": round(memory),
        "system": f"{platform.system()} {platform.release()}",
    }


def _json_value(value: object) -> object:
    return value.name if isinstance(value, Path) else str(value)
