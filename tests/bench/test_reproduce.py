"""The papers are reproduced from files of the published layouts, and a wrong file is named with the
next step."""

import json
import re
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, strategies as st

from bench.paper.printed import EQUAL, NEAR, PRINTED, verdict
from bench.paper.reproduce import BOC, PAPERS, Plan, Step, main as reproduce
from boc.cli import main as boc_main
from tests.bench import published
from tests.bench.scripts import read_rows

pytestmark = pytest.mark.usefixtures("left_to_torch")
WRITERS = {
    "tern": ("coco", "bert", "tern"),
    "teran": ("coco", "f30k", "bert", "teran"),
    "vsrn": ("vsrn",),
    "vsrnpp": ("coco", "f30k", "bert"),
    "boc": ("coco", "bert", "tern"),
}
NAMES = {
    "tern": "tern",
    "teran": "teran mrsw",
    "vsrn": "vsrn (",
    "vsrnpp": "vsrn++",
}
TINY: dict[str, Any] = {
    "fold": 5,
    "clusters": 9,
    "device": "cpu",
    "sample": "1/1",
    "alone": "1/1",
    "points": ("--terms", 9, "--sparsity", 0.99),
    "settings": ("width=8", "text_layers=1", "epochs=1", "batch_size=4", "generation_hidden=8"),
}


def write(data: Path, paper: str) -> Path:
    data.mkdir()
    for name in WRITERS[paper]:
        getattr(published, f"write_{name}")(data)
    return data


def run(step: Step) -> tuple[int, str]:
    """Run a step in this process: its exit status and the last line of its errors."""
    if step.command[: len(BOC)] == BOC:
        result = CliRunner().invoke(
            boc_main,
            step.command[len(BOC) :],
        )
    else:
        result = CliRunner().invoke(
            import_module(step.command[2]).main,
            step.command[3:],
        )
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    if step.prints and not result.exit_code:
        step.makes.write_text(result.stdout)
    return result.exit_code, result.stderr.strip().rpartition("\n")[2]


def make_plan(paper: str, data: Path, out: Path) -> Plan:
    plan = Plan(data, out, **TINY)
    PAPERS[paper](plan)
    return plan


@pytest.mark.slow
@pytest.mark.parametrize("paper", PAPERS)
def test_reproduce_paper(paper: str, tmp_path: Path):
    if paper == "boc":
        pytest.importorskip("spellchecker")
    data = write(tmp_path / "data", paper)
    out = tmp_path / "out"
    plan = make_plan(paper, data, out)
    assert all(path.exists() for path in plan.sources())
    assert all(value is None for *_, value in plan.cells())
    out.mkdir()
    for step in plan.steps.values():
        status, last = run(step)
        assert status == 0, (step.name, last)
        assert step.makes.exists(), step.name
    cells = list(plan.cells())
    assert all(value is not None and 0 <= value <= 100 for *_, value in cells)
    if paper != "boc":
        pairs = {(model, group) for group, model, *_ in cells}
        assert pairs == {pair for pair in PRINTED if pair[0].lower().startswith(NAMES[paper])}
    if paper == "tern":
        images = json.loads((out / "tern-rouge-l.json").read_text())
        assert list(images) == ["all 12 pictures", "mean over folds of 5 pictures"]
        first = next(
            value
            for group, _, measure, _, value in cells
            if (group, measure) == ("MS-COCO 1K", "image R@1")
        )
        assert first == images["mean over folds of 5 pictures"]["text_to_image"]["r1"]


@pytest.mark.slow
def test_command_skips_and_continues(tmp_path: Path, monkeypatch):
    quick = (
        "from boc.cli import main, options; options.write_onnx = lambda folder, **_: None; main()"
    )
    monkeypatch.setattr(
        "bench.paper.reproduce.BOC",
        (*BOC[:-1], quick),
    )  # as left_to_torch, in processes of its own
    data = write(tmp_path / "data", "vsrn")
    out = tmp_path / "out"
    shutil.move(
        data / "coco_precomp",
        tmp_path / "away",
    )
    checkpoints = [
        data / f"pretrain_model/flickr/model_fliker_{number}.pth.tar" for number in (1, 2)
    ]
    checkpoints[1].write_bytes(b"not a checkpoint")
    arguments = f"vsrn {data} --out {out} --fold 5"
    done = CliRunner().invoke(reproduce, arguments)
    assert done.exit_code == 1
    assert f"missing {data / 'coco_precomp' / 'testall_ims.npy'}: SCAN's arrays" in done.stderr
    assert "vsrn-coco-1-model: skipped: needs" in done.stderr
    assert (
        "model_fliker_2.pth.tar"
        in done.stderr.partition("vsrn-f30k-2-model: failed")[2].splitlines()[0]
    )
    assert {row["verdict"] for row in read_rows(done.stdout)} == {"not run"}
    shutil.copy(*checkpoints)
    done = CliRunner().invoke(reproduce, arguments)
    assert done.exit_code == 0, done.stderr
    assert "vsrn-f30k-1-model: running" not in done.stderr
    here = [row for row in read_rows(done.stdout) if row["set"] == "Flickr30K 1K"]
    assert len(here) == 6
    for row in here:
        assert float(row["difference"]) == pytest.approx(
            float(row["found"]) - float(row["printed"]),
            abs=0.11,
        )
        assert row["verdict"] == verdict(
            row["measure"],
            float(row["printed"]),
            float(row["found"]),
        )


def test_empty_folder(tmp_path: Path):
    for paper in PAPERS:
        done = CliRunner().invoke(
            reproduce,
            f"{paper} {tmp_path} --out {tmp_path}/out --needs",
        )
        assert done.exit_code == 0, done.output
        assert all(
            line.startswith("missing ") and ": " in line for line in done.stderr.splitlines()
        )
    done = CliRunner().invoke(
        reproduce,
        f"tern {tmp_path} --out {tmp_path}/out",
    )
    assert done.exit_code == 1
    assert f"no number of the paper was found: {tmp_path} lacks" in done.stderr
    assert done.stdout.count("not run") == 20


WRONG = {
    ("tern", "model_best_ndcg.pth"): (
        "tern-model",
        "not a checkpoint that can be read safely .*; download it again",
    ),
    ("vsrn", "vocab/coco_precomp_vocab.pkl"): (
        "vsrn-coco-1-model",
        "a VSRN .*; download it again, or use",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("paper", "wrong"),
    WRONG,
)
def test_wrong_file(paper: str, wrong: str, tmp_path: Path):
    data = write(tmp_path / "data", paper)
    out = tmp_path / "out"
    (data / wrong).write_text("not what it should be")
    out.mkdir()
    for step in make_plan(paper, data, out).steps.values():
        status, last = run(step)
        if status:
            break
    failing, message = WRONG[paper, wrong]
    assert step.name == failing
    assert last.startswith("Error: ")
    assert str(data / wrong) in last
    assert re.search(message, last), last


@given(
    st.floats(0, 100),
    st.sampled_from(["image R@1", "sentence SPICE"]),
    st.floats(-3, 3),
)
def test_verdict_distance(printed: float, measure: str, apart: float):
    kind = "R" if "R@" in measure else "N"
    result = verdict(measure, printed, printed + apart)
    distance = round(abs(printed + apart - printed), 6)
    assert (result == "reproduced") == (distance <= EQUAL[kind])
    assert (result == "differs") == (distance > NEAR[kind])
    assert verdict(measure, printed, None) == "not run"
