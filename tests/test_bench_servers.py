"""The comparison of codes with a server's own HNSW runs on the tiny library, and leaves nothing behind."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from boc import registry
from tests.servers.fixtures import kinds

SCRIPT = Path(__file__).resolve().parent.parent / "bench" / "server_vs_hnsw.py"
SCHEMES = {"elasticsearch": "elastic", "opensearch": "opensearch"}


@pytest.mark.servers
@pytest.mark.parametrize("server", kinds("opensearch-3", "elasticsearch-9"), indirect=True)
def test_every_code_is_measured_in_every_way_that_the_server_has(server: Any, library: Path) -> None:
    at = f"{SCHEMES[server.kind.engine]}+{server.url}"
    photos = str(library / "photos.h5")
    command = [sys.executable, str(SCRIPT), photos, photos, "--at", at, "--rounds", "1", "--ef", "100"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader(line for line in done.stdout.splitlines() if not line.startswith("#")))
    backend = registry.backend(at)
    has = {name for name, told in backend.about().items() if told.startswith("exact")}
    assert {(row["index"], row["stored"]) for row in rows if row["index"] != "hnsw"} == {
        (code, field) for code in ("dictionary", "scalar", "bits") for field in has
    }
    scores_all = [row for row in rows if row["index"] == "scalar" and row["setting"] == "48/64 R=300"]
    assert scores_all
    assert all(float(row["recall"]) > 0.999 for row in scores_all)  # more candidates than sentences
    if server.kind.engine == "elasticsearch":
        assert {row["stored"] for row in rows if row["index"] == "hnsw"} >= {"hnsw", "int8_hnsw"}
        assert any(" against hnsw " in line for line in done.stdout.splitlines() if line.startswith("#"))
    assert not any(name.startswith("boc-bench") for name in backend.names())
