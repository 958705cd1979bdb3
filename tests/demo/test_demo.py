"""The demo as the Makefile makes it, and what its eyes learn."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from boc import plugins

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
SMALL = (
    "--set visual_width=16 --set joint_width=16 --set feedforward=16 --set epochs=1 --set "
    "batch_size=8 --set held_out=8"
)


def make(target: str, **settings: object) -> str:
    """Return what a target of the Makefile prints; nothing is installed."""
    installed = [
        argument for name in ("installed", "searching") for argument in ("-o", f".venv/{name}")
    ]
    command = [
        "make",
        *installed,
        target,
        *(f"{name}={value}" for name, value in settings.items()),
    ]
    command.append(f"BIN={Path(sys.executable).parent}")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_demo_finds_what_sentences_say(tmp_path: Path):
    printed = make("demo", DEMO=tmp_path, SCENES=60, SHOW="true")
    right = re.search(r"first hit right: everything (\d+) %", printed)
    assert right, printed
    assert int(right[1]) >= 85
    assert "red rocket" in (tmp_path / "hits.html").read_text(encoding="utf-8")


def test_the_model_of_the_demo_can_be_made_again(tmp_path: Path):
    settings = {"LESSONS": 4, "CAPTIONED": 30, "EYES_OPTIONS": "--epochs 1", "MODEL_OPTIONS": SMALL}
    make("demo-model", DEMO=tmp_path, MODEL=tmp_path / "made", **settings)
    (tmp_path / "made").rename(tmp_path / "moved")
    (tmp_path / "eyes.onnx").unlink()
    encoder = plugins.encoder(f"teran:{tmp_path / 'moved'}")
    assert encoder.encode_texts(["a red rocket"]).vectors.shape == (1, 16)
    assert "/" not in (tmp_path / "moved" / "config.json").read_text(encoding="utf-8")
