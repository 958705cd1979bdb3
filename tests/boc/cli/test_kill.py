"""kill -9 at random moments: going on ends with what an undisturbed run gives, and nothing
half-made is ever opened.

BOC_KILLS sets the number of kills a command (default 2).
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.helpers import boc, draw_pictures
from tests.processes import start

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("BOC_KILLS", "2"))
BOC = [sys.executable, "-c", "from boc.cli import main; main()"]
TINY = (
    "visual_width=16",
    "joint_width=16",
    "feedforward=16",
    "heads=2",
    "text_layers=1",
    "text_lr=0",
    "held_out=8",
)


def finish(arguments: Sequence[object]) -> None:
    process = start(arguments)
    process.join()
    assert process.exitcode == 0


def disturb(arguments: Sequence[object], begun: Path, check: Callable[[], None]) -> int:
    """Run a command to its end through KILLS kills at random moments; how many hit.

    Each comes after a file appeared that is called ``begun``, of which the name may be a pattern.
    """
    rng = np.random.default_rng(KILLS)
    hits = 0
    for _ in range(KILLS):
        process = start(arguments)
        while not list(begun.parent.glob(begun.name)) and process.is_alive():
            time.sleep(0.01)
        time.sleep(float(rng.uniform(0, 1.0)))
        process.kill()
        process.join()
        hits += process.exitcode == -signal.SIGKILL
        check()
    finish(arguments)
    return hits


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    return draw_pictures(tmp_path_factory.mktemp("many"), 600)


@pytest.fixture(scope="module")
def long_table(tmp_path_factory) -> Path:
    """Enough pictures that a run is busy with them whenever somebody comes to look."""
    return draw_pictures(tmp_path_factory.mktemp("long"), 3000)


@pytest.fixture(scope="module")
def calm(table: Path) -> Path:
    """Regions of all pictures, of a run that nobody disturbed."""
    path = table.parent / "calm.h5"
    assert (
        boc(
            f"extract {table} -o {path} --regions grid",
        ).exit_code
        == 0
    )
    return path


@pytest.mark.parametrize("workers", [0, 2])
def test_extraction(table: Path, calm: Path, tmp_path: Path, workers: int):
    wild = tmp_path / "wild.h5"

    def never_half():
        assert not wild.exists() or wild.read_bytes() == calm.read_bytes()

    arguments = (
        "extract",
        table,
        "-o",
        wild,
        "--regions",
        "grid",
        f"--set=workers={workers}",
    )
    hits = disturb(arguments, tmp_path / "wild.h5.parts", never_half)
    assert hits
    assert wild.read_bytes() == calm.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["wild.h5"]


@dataclass
class Run:
    """An extraction on two workers in a process group of its own, busy at its pictures."""

    process: subprocess.Popen[str]
    workers: list[int]
    others: list[int]

    def end(self) -> tuple[int, str]:
        """Its status and what it said, once none of its processes is left."""
        said = self.process.communicate(timeout=600)[1]
        while any(running(pid) for pid in self.workers + self.others):
            time.sleep(0.05)
        return self.process.returncode, said


def run_busy(table: Path, output: Path) -> Run:
    arguments = (
        "extract",
        table,
        "-o",
        output,
        "--regions",
        "grid",
        "--set=workers=2",
    )
    # Started in the background, this process may ignore interrupts, and so would its children.
    command = [
        *BOC[:-1],
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); " + BOC[-1],
        *(str(a) for a in arguments),
    ]
    pipes = {
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.PIPE,
        "text": True,
    }
    process = subprocess.Popen(command, start_new_session=True, **pipes)
    while not list(output.with_name(f"{output.name}.parts").glob("[0-9]*.h5")):
        assert process.poll() is None
        time.sleep(0.01)
    children = {
        int(pid)
        for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    }
    workers = {
        pid for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    }
    assert len(workers) == 2
    return Run(
        process,
        sorted(workers),
        sorted(children - workers),
    )


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


PROC = pytest.mark.skipif(
    not Path("/proc/self/task").is_dir(),
    reason="processes are found in Linux' /proc only",
)


@PROC
def test_a_killed_run_takes_its_workers_with_it(long_table: Path, tmp_path: Path):
    run = run_busy(long_table, tmp_path / "wild.h5")
    run.process.kill()
    assert run.end()[0] == -signal.SIGKILL


@PROC
def test_ctrl_c_ends_all_processes(long_table: Path, tmp_path: Path):
    """A terminal sends it to the whole group."""
    run = run_busy(long_table, tmp_path / "wild.h5")
    os.killpg(run.process.pid, signal.SIGINT)
    code, said = run.end()
    assert code == 130
    assert said.endswith("Stopped. Run the command again to resume.\n")
    assert "Traceback" not in said


@pytest.mark.usefixtures("left_to_torch")
def test_training(table: Path, tmp_path: Path):
    regions = tmp_path / "regions.h5"
    assert (
        boc(
            f"extract {table} -o {regions} --regions grid",
        ).exit_code
        == 0
    )
    arguments = [
        "train",
        regions,
        "--set=epochs=3",
        "--set=batch_size=16",
        *(f"--set={s}" for s in TINY),
    ]
    calm = tmp_path / "calm"
    wild = tmp_path / "wild"
    assert boc(*arguments, "-o", calm).exit_code == 0
    disturb(
        [*arguments, "-o", wild],
        wild / "training" / "state.safetensors",
        lambda: None,
    )
    for name in ("model.safetensors", "config.json", "tokenizer.json", "history.json"):
        assert (wild / name).read_bytes() == (calm / name).read_bytes(), name
    assert not (wild / "training").exists()


def test_indexing(library: Path, table: Path, tmp_path: Path):
    """From pictures, concept sets and a dictionary: both halves, encoding and building, are hit."""
    encoder = f"tern:{library / 'model'}"
    arguments = [
        "index",
        "many",
        table,
        "--encoder",
        encoder,
        "--code",
        "dictionary",
        "--concepts",
        "int8",
        "--at",
    ]
    finish([*arguments, f"file:{tmp_path / 'calm'}"])

    def never_half():
        result = boc(f"info many --at file:{tmp_path}/wild --json")
        assert result.exit_code == 1 or json.loads(result.stdout)["items"] == {
            "image": 600,
            "text": 1200,
        }

    disturb(
        [*arguments, f"file:{tmp_path / 'wild'}"],
        tmp_path / "wild" / ".many.*.features.h5.parts",
        never_half,
    )
    assert contents(tmp_path / "wild" / "many") == contents(tmp_path / "calm" / "many")


def test_building(library: Path, tmp_path: Path):
    """From a feature file, killed while the arrays are written: an older index of the name stays
    whole."""
    at = f"file:{tmp_path}"
    assert (
        boc(
            f"index photos {library}/photos.h5 --code scalar:3 --at {at}",
        ).exit_code
        == 0
    )
    old = contents(tmp_path / "photos", chosen=False)
    finish(("index", "photos", library / "photos.h5", "--at", f"file:{tmp_path / 'calm'}"))
    new = contents(tmp_path / "calm" / "photos")

    loaded = contents(tmp_path / "calm" / "photos", chosen=False)

    def never_half():
        assert contents(tmp_path / "photos", chosen=False) in (old, loaded)

    arguments = (
        "index",
        "photos",
        library / "photos.h5",
        "--replace",
        "--at",
        at,
    )
    disturb(arguments, tmp_path / "photos" / ".lock", never_half)
    assert contents(tmp_path / "photos") == new
    assert len(list((tmp_path / "photos").glob("segment-*"))) == 1


def contents(index: Path, *, chosen: bool = True) -> dict[str, bytes]:
    """Every file of the index that is there now, and its commit without the time.

    Budgets are chosen after the load, by a commit of their own that a repeated command makes up
    for: without ``chosen`` they are left out.
    """
    commit = json.loads((index / (index / "CURRENT").read_text()).read_text())
    del commit["manifest"]["created"]
    if not chosen:
        commit["manifest"].pop("recall", None)
    return {
        **{name: (index / name).read_bytes() for name in commit["files"]},
        "commit": json.dumps(commit).encode(),
    }
