"""A short soak of `boc serve`: what is asked while the index changes is counted, and nothing fails."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_a_soak_counts_the_requests_while_the_index_changes(library: Path) -> None:
    pytest.importorskip("fastapi")
    options = ["--encoder", f"tern:{library / 'model'}", "--minutes", "0.2", "--rate", "20", "--clients", "10"]
    command = [sys.executable, "-m", "tests.servers.soak", str(library / "captions.csv"), *options, "--change", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = list(csv.DictReader(line for line in done.stdout.splitlines() if not line.startswith("# ")))
    assert {row["errors"] for row in rows} == {"0"}
    requests = {row["kind"]: int(row["requests"]) for row in rows if row["minutes"] == "0-0.2"}
    assert requests["all"] == sum(requests.values()) - requests["all"] - requests["slow"] > 0
