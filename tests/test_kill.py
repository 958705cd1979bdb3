"""kill -9 at random moments: going on ends with what an undisturbed run gives, and nothing half-made is ever opened.

BOC_KILLS sets the number of kills a command (default 2).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from conftest import boc, draw_pictures

KILLS = int(os.environ.get("BOC_KILLS", "2"))
BOC = [sys.executable, "-c", "from boc.cli import main; main()"]
TINY = ("visual_width=16", "joint_width=16", "feedforward=16", "heads=2", "text_layers=1", "text_lr=0", "held_out=8")


def start(arguments: Sequence[object]) -> subprocess.Popen[bytes]:
    command = [*BOC, *(str(a) for a in arguments)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def disturb(arguments: Sequence[object], begun: Path, check: Callable[[], None]) -> int:
    """Run a command to its end through KILLS kills at random moments after ``begun`` appeared; how many hit."""
    rng = np.random.default_rng(KILLS)
    hits = 0
    for _ in range(KILLS):
        process = start(arguments)
        while not begun.exists() and process.poll() is None:
            time.sleep(0.01)
        time.sleep(float(rng.uniform(0, 1.0)))
        process.send_signal(signal.SIGKILL)
        hits += process.wait() == -signal.SIGKILL
        check()
    assert start(arguments).wait() == 0
    return hits


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_pictures(tmp_path_factory.mktemp("many"), 600)


@pytest.mark.slow
def test_extraction(table: Path, tmp_path: Path) -> None:
    calm, wild = tmp_path / "calm.h5", tmp_path / "wild.h5"
    assert boc("extract", table, "-o", calm, "--regions", "grid").exit_code == 0

    def never_half() -> None:
        assert not wild.exists() or wild.read_bytes() == calm.read_bytes()

    hits = disturb(("extract", table, "-o", wild, "--regions", "grid"), tmp_path / "wild.h5.parts", never_half)
    assert hits
    assert wild.read_bytes() == calm.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["calm.h5", "wild.h5"]


@pytest.mark.slow
def test_training(table: Path, tmp_path: Path) -> None:
    regions = tmp_path / "regions.h5"
    assert boc("extract", table, "-o", regions, "--regions", "grid").exit_code == 0
    arguments = ["train", regions, "--epochs", 3, "--batch-size", 16, *(f"--set={s}" for s in TINY)]
    calm, wild = tmp_path / "calm", tmp_path / "wild"
    assert start([*arguments, "-o", calm]).wait() == 0
    disturb([*arguments, "-o", wild], wild / "training" / "state.safetensors", lambda: None)
    for name in ("model.safetensors", "config.json", "tokenizer.json", "history.json"):
        assert (wild / name).read_bytes() == (calm / name).read_bytes(), name
    assert not (wild / "training").exists()


@pytest.mark.slow
def test_indexing(library: Path, table: Path, tmp_path: Path) -> None:
    """From pictures, concept sets and a dictionary: both halves, encoding and building, are hit."""
    encoder = f"tern:{library / 'model'}"
    arguments = ["index", "many", table, "--encoder", encoder, "--code", "dictionary", "--concepts", "int8", "--at"]
    assert start([*arguments, f"file:{tmp_path / 'calm'}"]).wait() == 0

    def never_half() -> None:
        result = boc("info", "many", "--at", f"file:{tmp_path / 'wild'}", "--json")
        assert result.exit_code == 1 or json.loads(result.stdout)["items"] == {"image": 600, "text": 1200}

    disturb([*arguments, f"file:{tmp_path / 'wild'}"], tmp_path / "wild" / "many.concepts.h5.parts", never_half)
    assert contents(tmp_path / "wild" / "many") == contents(tmp_path / "calm" / "many")


@pytest.mark.slow
def test_building(library: Path, tmp_path: Path) -> None:
    """From a feature file, killed while the arrays are written: an older index of the name stays whole."""
    at = f"file:{tmp_path}"
    assert boc("index", "photos", library / "photos.h5", "--z", 3, "--at", at).exit_code == 0
    old = contents(tmp_path / "photos")
    new = contents(library / "index" / "photos")

    def never_half() -> None:
        assert contents(tmp_path / "photos") in (old, new)

    arguments = ("index", "photos", library / "photos.h5", "--replace", "--at", at)
    disturb(arguments, tmp_path / "photos" / ".lock", never_half)
    assert contents(tmp_path / "photos") == new
    assert len(list((tmp_path / "photos").glob("*-*"))) == 1


def contents(index: Path) -> dict[str, bytes]:
    """Every file of the current generation, and its manifest without the time."""
    generation = index / (index / "CURRENT").read_text()
    files = {str(p.relative_to(generation)): p.read_bytes() for p in sorted(generation.rglob("*")) if p.is_file()}
    manifest = json.loads(files.pop("manifest.json"))
    del manifest["created"], files["files.json"]
    return {**files, "manifest": json.dumps(manifest, sort_keys=True).encode()}
