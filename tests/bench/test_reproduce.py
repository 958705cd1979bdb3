"""The papers are reproduced from files of the published layouts, and a wrong file is named with the next step."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from bench.paper.needs import NEEDS, content
from bench.paper.printed import EQUAL, NEAR, PRINTED, verdict
from bench.paper.reproduce import PAPERS, SECONDS, Plan
from bench.paper.reproduce import main as reproduce
from bench.run import Runner
from bench.stages import BOC, Stage
from boc.cli import main as boc_main
from tests.bench import published
from tests.bench.scripts import ROOT

WRITERS = {
    "tern": ("coco", "bert", "tern"),
    "teran": ("coco", "f30k", "bert", "teran"),
    "vsrn": ("vsrn",),
    "vsrnpp": ("coco", "f30k", "bert"),
    "boc": ("coco", "bert", "tern"),
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


def run(stage: Stage) -> tuple[int, str]:
    """Run a stage in this process: its exit status and the last line of its errors."""
    if stage.command[: len(BOC)] == BOC:
        result = CliRunner().invoke(boc_main, stage.command[len(BOC) :])
    else:
        result = CliRunner().invoke(import_module(stage.command[2]).main, stage.command[3:])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    if stage.prints and not result.exit_code:
        stage.makes.write_text(result.stdout)
    return result.exit_code, result.stderr.strip().rpartition("\n")[2]


def planned(paper: str, data: Path, out: Path) -> Plan:
    plan = Plan(data, out, **TINY)
    PAPERS[paper](plan)
    return plan


@pytest.mark.slow
@pytest.mark.parametrize("paper", PAPERS)
def test_a_paper_is_reproduced_from_published_files(paper: str, tmp_path: Path) -> None:
    if paper == "boc":
        pytest.importorskip("spellchecker")
    data, out = write(tmp_path / "data", paper), tmp_path / "out"
    for need in NEEDS[paper]:
        assert (data / need.path).exists() or need.path == "coco/train2014"
    plan = planned(paper, data, out)
    for group, model, measure, printed, found in planned(paper, data, out).cells():
        assert found is None, (group, model, measure, printed)
    out.mkdir()
    for stage in plan.stages:
        status, said = run(stage)
        assert status == 0, (stage.name, said)
        assert stage.makes.exists(), stage.name
    cells = list(plan.cells())
    known = {(group, model) for group, model, *_ in cells}
    if paper != "boc":
        assert known == {(group, model) for model, group in PRINTED if model.lower().startswith(NAMES[paper])}
    assert all(found is not None and 0 <= found <= 100 for *_, found in cells)
    if paper == "tern":
        images = json.loads((out / "tern-rouge-l.json").read_text())
        assert list(images) == ["all 12 pictures", "mean over folds of 5 pictures"]
        first = next(found for group, _, measure, _, found in cells if (group, measure) == ("MS-COCO 1K", "image R@1"))
        assert first == images["mean over folds of 5 pictures"]["text_to_image"]["r1"]


NAMES = {"tern": "tern", "teran": "teran mrsw", "vsrn": "vsrn (", "vsrnpp": "vsrn++"}


@pytest.mark.slow
def test_the_command_runs_what_it_can_and_goes_on(tmp_path: Path) -> None:
    data, out = write(tmp_path / "data", "vsrn"), tmp_path / "out"
    shutil.move(data / "coco_precomp", tmp_path / "away")
    (data / "pretrain_model" / "flickr" / "model_fliker_2.pth.tar").write_bytes(b"not a checkpoint")
    command = [sys.executable, "-m", "bench.paper.reproduce", "vsrn", str(data), "--out", str(out), "--fold", "5"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 1
    assert f"missing {data / 'coco_precomp' / 'testall_ims.npy'}: SCAN's arrays" in done.stderr
    assert "vsrn-coco-1-model: left out: needs" in done.stderr
    assert "model_fliker_2.pth.tar" in done.stderr.partition("vsrn-f30k-2-model: failed")[2].splitlines()[0]
    rows = list(csv.DictReader(line for line in done.stdout.splitlines() if not line.startswith("# ")))
    assert {row["verdict"] for row in rows} == {"not run"}
    shutil.copy(
        data / "pretrain_model/flickr/model_fliker_1.pth.tar", data / "pretrain_model/flickr/model_fliker_2.pth.tar"
    )
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "vsrn-f30k-1-model: running" not in done.stderr
    rows = list(csv.DictReader(line for line in done.stdout.splitlines() if not line.startswith("# ")))
    here = [row for row in rows if row["set"] == "Flickr30K 1K"]
    assert len(here) == 6
    for row in here:
        assert float(row["difference"]) == pytest.approx(float(row["found"]) - float(row["printed"]), abs=0.11)
        assert row["verdict"] == verdict(row["measure"], float(row["printed"]), float(row["found"]))


def test_the_time_left_follows_from_what_stages_took(tmp_path: Path) -> None:
    plan = planned("tern", tmp_path, tmp_path / "out")
    runner = Runner(plan.out, plan.stages)
    (plan.out / "stages").mkdir(parents=True)
    amounts = {stage.name: stage.cost for stage in plan.stages}
    assert amounts["tern-vectors"] == ("encode", 5000)
    left = runner.seconds_left(SECONDS)
    assert left == pytest.approx(5000 * (SECONDS["encode"] + SECONDS["evaluate"]))
    vectors = next(stage for stage in plan.stages if stage.name == "tern-vectors")
    vectors.makes.write_bytes(b"")
    runner.note(vectors, "done", seconds=100.0)
    assert runner.seconds_left(SECONDS) == pytest.approx(5000 * SECONDS["evaluate"])
    other = Runner(
        plan.out, [*plan.stages, replace(vectors, name="more", makes=plan.out / "more", cost=("encode", 50))]
    )
    assert other.seconds_left(SECONDS) == pytest.approx(5000 * SECONDS["evaluate"] + 1.0)  # 100 s for 5,000


def test_files_are_told_from_the_published_ones(tmp_path: Path) -> None:
    write(tmp_path / "vsrn", "vsrn")
    write(tmp_path / "tern", "tern")
    assert content(tmp_path / "vsrn" / "coco_precomp" / "testall_ims.npy") == "12x5x8"
    assert content(tmp_path / "tern" / "coco" / "dataset_coco.json").endswith(" pictures")
    assert len(content(tmp_path / "tern" / "bert" / "vocab.txt")) == len("sha256 ") + 64
    (tmp_path / "dataset_coco.json").write_text("not JSON")
    assert content(tmp_path / "dataset_coco.json") == ""
    told = CliRunner().invoke(reproduce, ["tern", str(tmp_path / "tern"), "--out", str(tmp_path / "out"), "--needs"])
    assert told.exit_code == 0, told.output
    assert "; published: 123,287 pictures" in told.stderr
    assert "hours left, as far as known" in told.stderr
    assert not (tmp_path / "out" / "stages").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("tern", "--set", "width=8"),
            "--set is for the training of vsrnpp; the models of tern are published, leave it out",
        ),
        (("vsrnpp", "--set", "wdth=8"), "--set: no setting 'wdth'; known: "),
        (("vsrnpp", "--set", "width"), "--set takes NAME=VALUE, got 'width'"),
        (("tern", "--fold", "0"), "0 is not in the range x>=1"),
        (("tern", "--device", "tpu"), "'tpu' is not one of 'auto', 'cpu', 'cuda'"),
    ],
)
def test_a_wrong_command_ends_before_anything_runs(words: tuple[str, ...], message: str, tmp_path: Path) -> None:
    told = CliRunner().invoke(reproduce, [words[0], str(tmp_path), *words[1:], "--out", str(tmp_path / "out")])
    assert told.exit_code == 2
    assert message in " ".join(told.stderr.split())
    assert not (tmp_path / "out").exists()


def test_a_folder_without_any_of_it_is_named(tmp_path: Path) -> None:
    told = CliRunner().invoke(reproduce, ["tern", str(tmp_path), "--out", str(tmp_path / "out")])
    assert told.exit_code == 1
    assert told.stderr.strip().endswith(
        f"no number of the paper was found, since {tmp_path} lacks what is named as missing above"
    )
    assert told.stdout.count("not run") == 20


def test_splits_are_found_where_the_archive_has_them(tmp_path: Path) -> None:
    data = write(tmp_path / "data", "teran")
    annotations = data / "f30k" / "annotations"
    annotations.mkdir()
    shutil.move(data / "f30k" / "dataset_flickr30k.json", annotations)
    stages = {stage.name: stage for stage in planned("teran", data, tmp_path / "out").stages}
    assert stages["f30k-captions"].reads == (annotations / "dataset_flickr30k.json",)
    assert any(f"?index={annotations / 'dataset_flickr30k.json'}" in w for w in stages["teran-f30k-model"].command)
    assert stages["coco-captions"].reads == (data / "coco" / "dataset_coco.json",)
    told = CliRunner().invoke(reproduce, ["teran", str(data), "--out", str(tmp_path / "out"), "--needs"])
    assert f"there   {annotations / 'dataset_flickr30k.json'}: Karpathy's" in told.stderr


WRONG = {
    ("tern", "coco/dataset_coco.json"): ("coco-captions", "broken JSON near .*; fetch it again"),
    ("tern", "model_best_ndcg.pth"): ("tern-model", "not a checkpoint that can be read safely .*; download it again"),
    ("tern", "bert/vocab.txt"): ("tern-model", "not the vocabulary of a BERT"),
    ("tern", "coco/features_36"): (
        "tern-model", r"no bottom-up features \(cocobu_att with cocobu_box, or bu_att with bu_box\)",
    ),
    ("tern", "coco/relevances/coco-test-spice.npy"): (
        "tern-spice", "has a numpy header, a relevance matrix is float32 without",
    ),
    ("teran", "teran/coco.pth"): ("teran-coco-model", "not a checkpoint that can be read safely .*; download it again"),
    ("teran", "f30k/dataset_flickr30k.json"): ("f30k-captions", "broken JSON near .*; fetch it again"),
    ("vsrn", "coco_precomp/testall_ims.npy"): ("vsrn-coco-1-model", "not an array of numpy; fetch it again"),
    ("vsrn", "coco_precomp/testall_caps.txt"): ("vsrn-coco-1-vectors", "1 captions for the 12 pictures .*; give both"),
    ("vsrn", "vocab/coco_precomp_vocab.pkl"): ("vsrn-coco-1-model", "a VSRN .*; fetch it again, or name"),
    ("vsrn", "pretrain_model/coco/model_coco_1.pth.tar"): ("vsrn-coco-1-model", "safely .*; download it again"),
    ("vsrnpp", "bert/config.json"): ("vsrnpp-coco-0", "no BERT that can be read .*; fetch the whole model again"),
    ("vsrnpp", "bert/vocab.txt"): ("vsrnpp-coco-0", "no BERT that can be read .*; fetch the whole model again"),
    ("vsrnpp", "f30k/features_36"): ("f30k-regions", "no bottom-up features"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("paper", "wrong"), WRONG)
def test_a_wrong_file_is_one_line_with_the_next_step(paper: str, wrong: str, tmp_path: Path) -> None:
    data, out = write(tmp_path / "data", paper), tmp_path / "out"
    path, (failing, message) = data / wrong, WRONG[paper, wrong]
    if path.is_dir():
        shutil.rmtree(path)
        path.mkdir()
    elif path.name.endswith("-spice.npy"):
        np.save(path, np.zeros((60, 12), np.float32))
    else:
        path.write_text("not what it should be")
    out.mkdir()
    plan = planned(paper, data, out)
    of = "f30k" if wrong.startswith("f30k") else ""
    for stage in plan.stages:
        if not stage.name.startswith(of):
            continue  # long, and fine
        status, said = run(stage)
        if status:
            break
    assert stage.name == failing
    assert said.startswith("Error: ")
    assert str(path if path.parent.name != "bert" or paper == "tern" else path.parent) in said
    assert re.search(message, said), said
    assert "allow_pickle" not in said
    assert "weights_only" not in said


@given(st.floats(0, 100), st.sampled_from(["image R@1", "sentence SPICE"]), st.floats(-3, 3))
def test_verdicts_follow_the_distance(printed: float, measure: str, apart: float) -> None:
    kind = "R" if "R@" in measure else "N"
    found = printed + apart
    told = verdict(measure, printed, found)
    distance = round(abs(found - printed), 6)
    assert (told == "reproduced") == (distance <= EQUAL[kind])
    assert (told == "differs") == (distance > NEAR[kind])
    assert verdict(measure, printed, None) == "not run"
