"""One index loaded by several processes at once: seconds by the clock, and processor seconds by stage.

    python -m bench.speed.many_loaders --server elasticsearch-9 > many-loaders.csv

Starts a server of tests/servers on this machine, and loads a synthetic gallery with ``boc index --shard I/N`` in N
processes, each with one thread of linear algebra; for N = 1 as one process does, without parts.

Columns: ``loaders`` N; ``seconds`` by the clock until the index is published, ``rate`` items per second. Processor
seconds, of all loaders together: ``start`` until the modules are loaded, ``learn`` the code or take it, ``digest`` of
the feature file for the manifest, ``rest``: read, encode, write JSON, send, publish; ``server_s`` are the server's.
``busy`` is the share of all cores that loaders and server used meanwhile: where it is near 1, the machine is the limit.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from bench.race.data import synthetic
from bench.report.rows import Writer

ROOT = Path(__file__).resolve().parents[2]
SCHEMES = {"elasticsearch": "elastic", "opensearch": "opensearch"}
STAGES = ("start", "learn", "digest", "rest")
COLUMNS = ("server", "loaders", "seconds", "rate", *STAGES, "server_s", "busy")
NAME = "loaded"
LOADER = """
import json, sys, time
from boc.indexes import build
spent = {"start": time.process_time()}
def timed(name, function):
    def run(*given, **options):
        begun = time.process_time()
        try:
            return function(*given, **options)
        finally:
            spent[name] = spent.get(name, 0) + time.process_time() - begun
    return run
for name, stage in (("fit_code", "learn"), ("_shared_code", "learn"), ("new_manifest", "digest")):
    if hasattr(build, name) and not (name == "fit_code" and hasattr(build, "_shared_code") and sys.argv[4]):
        setattr(build, name, timed(stage, getattr(build, name)))
build.build_index(sys.argv[1], sys.argv[2], at=sys.argv[3], code="dictionary", shard=sys.argv[4] or None)
spent["rest"] = time.process_time() - sum(spent.values())
print(json.dumps(spent))
"""


def server_seconds(server: Any) -> float:
    """Processor seconds that the server has used."""
    nodes = server.request("GET", "_nodes/stats/process")["nodes"].values()
    return float(sum(node["process"]["cpu"]["total_in_millis"] for node in nodes)) / 1000


def measured(server: Any, kind: str, file: Path, count: int, loaders: int) -> list[object]:
    """The row of one number of loaders."""
    at = f"{SCHEMES[server.kind.engine]}+{server.url}?replicas=0&shards=3"
    parts = [f"{i + 1}/{loaders}" for i in range(loaders)] if loaders > 1 else [""]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    before, begun = server_seconds(server), time.perf_counter()
    commands = [[sys.executable, "-c", LOADER, NAME, str(file), at, part] for part in parts]
    running = [subprocess.Popen(each, stdout=subprocess.PIPE, text=True, env=environment) for each in commands]
    told = [json.loads(process.communicate()[0].splitlines()[-1]) for process in running]
    seconds = time.perf_counter() - begun
    there = server_seconds(server) - before
    spent = [sum(each.get(stage, 0.0) for each in told) for stage in STAGES]
    busy = (sum(spent) + there) / (seconds * len(os.sched_getaffinity(0)))
    server.request("DELETE", next(iter(server.request("GET", NAME))))
    stages = [f"{each:.1f}" for each in spent]
    return [kind, loaders, f"{seconds:.1f}", round(count / seconds), *stages, f"{there:.1f}", f"{busy:.2f}"]


@click.command()
@click.option("--server", "kinds", multiple=True, default=["elasticsearch-9"], show_default=True)
@click.option("--items", default=100_000, show_default=True)
@click.option("--dim", default=384, show_default=True)
@click.option("--loaders", "numbers", multiple=True, type=int, default=[1, 2, 4], show_default=True)
def main(kinds: tuple[str, ...], items: int, dim: int, numbers: tuple[int, ...]) -> None:
    """Load one index by several processes."""
    sys.path.append(str(ROOT))
    servers = import_module("tests.servers")
    settings = {"servers": list(kinds), "items": items, "dim": dim, "code": "dictionary", "shards": 3}
    with Writer(sys.stdout, __file__, settings, COLUMNS, extras=("elasticsearch", "opensearch-py")) as out:
        for kind in kinds:
            with tempfile.TemporaryDirectory() as folder:
                file, _, _ = synthetic(Path(folder), items, dim, 1, 0)
                with servers.Server(kind, Path(folder) / kind, optimise=True).start() as server:
                    measured(server, kind, file, items, 1)  # warms it up
                    for number in numbers:
                        out.write(*measured(server, kind, file, items, number))


if __name__ == "__main__":
    main()
