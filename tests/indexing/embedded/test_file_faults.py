"""Any system call of the writers may fail: the index is the old or the new one, and the error is
one line.

BOC_FAULTS sets how many calls are tried for each command and fault (default 1; 0 is all).
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from boc.types import Batch, Embeddings
from tests.oracles import picture, random_units, write_features

pytestmark = pytest.mark.slow

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
COUNT = os.environ.get("BOC_FAULTS", "1")


def write_inputs(folder: Path) -> None:
    """half.h5 and rest.h5, which share some ids."""
    for name, numbers in (("half", range(70)), ("rest", range(60, 120))):
        items = [picture(f"{i:04}.jpg") for i in numbers]
        write_features(
            folder / f"{name}.h5",
            Batch(items, Embeddings("image", random_units(0, len(items), 64))),
        )


def draw_pictures(folder: Path) -> None:
    """before/ and after/, between which pictures are added, changed, moved and removed."""
    names = {"before": "abcdefgh", "after": "abcdefijk"}
    for at, letters in names.items():
        (folder / at).mkdir()
        for letter in letters:
            (folder / at / f"{letter}.png").write_text(
                {"i": "g", "a": f"a {at}"}.get(letter, letter),
            )


def test_any_call_of_the_writers_may_fail(tmp_path: Path):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs a compiler on Linux")
    shim = tmp_path / "faults.so"
    home = tmp_path / "home"
    subprocess.run(
        [
            compiler,
            "-O1",
            "-shared",
            "-fPIC",
            "-o",
            shim,
            HERE / "faults.c",
            "-ldl",
        ],
        check=True,
    )
    write_inputs(tmp_path)
    draw_pictures(tmp_path)
    command = [
        sys.executable,
        HERE / "fault_cases.py",
        home,
        tmp_path,
        COUNT,
    ]
    environment = {
        "LD_PRELOAD": str(shim),
        "FAULTS_ROOT": str(home),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert len(found["outcomes"]) > 35
    assert not found["wrong"], "\n".join(found["wrong"])


FULL = """
import resource, sys
from pathlib import Path
from boc.types import Batch, Embeddings
from tests.oracles import picture, random_units, write_features
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
items = [picture(str(i)) for i in range(1000)]
write_features(Path("mine.h5"), Batch(items, Embeddings("image", random_units(0, 1000, 64))))
"""


@pytest.mark.parametrize("size", [3_000, 20_000, 60_000])
def test_a_feature_file_that_cannot_be_written_ends_nothing_but_the_command(
    tmp_path: Path,
    size: int,
):
    """HDF5 cannot close what it failed to write, and would end the process."""
    command = [sys.executable, "-c", FULL, str(size)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=environment,
    )
    assert done.returncode == 1, (done.returncode, done.stderr[-2000:])
    assert "BocError" in done.stderr.splitlines()[-1]
    assert "File too large" in done.stderr.splitlines()[-1]
    assert "ObjectID" not in done.stderr
    assert not list(tmp_path.glob("*.h5"))
