"""Stages run in order, once, and again where something changed; what is killed goes on; what fails stops no other."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest

from bench import run
from bench.stages import EYES, SCENE_EYES
from tests.bench.scripts import ROOT

HEAD = "# script: some.py\n# settings: {}\n# seed: 0\n# versions: {}\n# machine: {}\n# time: now\na\n1\n"


@pytest.fixture
def of_run(tmp_path: Path) -> ModuleType:
    """The module, with a folder for results."""
    (tmp_path / "stages").mkdir()
    return run


def stage(of_run: ModuleType, folder: Path, name: str, code: str, *reads: Path, **more: Any) -> Any:
    """One that runs ``code``, notes that it did, and makes what it prints."""
    noted = f"open({str(folder / 'ran')!r}, 'a').write({name + ' '!r}); {code}"
    made = more.pop("makes", folder / f"{name}.txt")
    return of_run.Stage(name, (sys.executable, "-c", noted), reads, made, True, **more)


def go(of_run: ModuleType, folder: Path, *stages: Any) -> tuple[dict[str, str], list[str]]:
    """Run them: how each ended, and which of them ran."""
    (folder / "ran").write_text("")
    runner = of_run.Runner(folder, list(stages))
    fine = runner.run(runner.needed([each.name for each in stages]))
    assert fine == ("failed" not in runner.state.values())
    return runner.state, (folder / "ran").read_text().split()


def test_the_regions_are_those_that_make_takes() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    told = dict(re.findall(r"^(SCENE_EYES|EYES) [:?]= (\S+)$", makefile, re.MULTILINE))
    assert told == {"SCENE_EYES": SCENE_EYES, "EYES": EYES}


def test_stages_run_after_what_they_read_and_only_once(of_run: ModuleType, tmp_path: Path) -> None:
    one, two = tmp_path / "one.txt", tmp_path / "two.txt"
    stages = [
        stage(of_run, tmp_path, "three", f"print(open({str(two)!r}).read() + '3')", two),
        stage(of_run, tmp_path, "two", f"print(open({str(one)!r}).read() + '2')", one),
        stage(of_run, tmp_path, "one", "print(1)"),
    ]
    done = dict.fromkeys(("one", "two", "three"), "done")
    assert go(of_run, tmp_path, *stages) == (done, ["one", "two", "three"])
    assert (tmp_path / "three.txt").read_text().split() == ["1", "2", "3"]
    assert go(of_run, tmp_path, *stages) == (done, [])


@pytest.mark.slow
def test_what_changed_is_run_anew_with_all_that_follows(of_run: ModuleType, tmp_path: Path) -> None:
    source, one = tmp_path / "source", tmp_path / "one.txt"
    source.write_text("a")

    def stages(word: str) -> list[Any]:
        work = tmp_path / "work"
        return [
            stage(of_run, tmp_path, "one", f"print({word!r})", source, work=work),
            stage(of_run, tmp_path, "two", f"print(open({str(one)!r}).read())", one),
            stage(of_run, tmp_path, "other", "print()"),
        ]

    assert go(of_run, tmp_path, *stages("x"))[1] == ["one", "other", "two"]
    (tmp_path / "work").mkdir()
    assert go(of_run, tmp_path, *stages("y"))[1] == ["one", "two"]
    assert not (tmp_path / "work").exists()
    source.write_text("changed")
    assert go(of_run, tmp_path, *stages("y"))[1] == ["one", "two"]
    assert (tmp_path / "two.txt").read_text().split() == ["y"]


def test_what_is_there_without_a_record_is_taken_if_whole(of_run: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "made.txt").write_text("by hand")
    (tmp_path / "whole.csv").write_text(HEAD + "# done: 1.0\n")
    (tmp_path / "cut.csv").write_text(HEAD)
    (tmp_path / "model").mkdir()
    rows = f"print({HEAD + '# done: 2.0'!r})"
    stages = [
        stage(of_run, tmp_path, "made", "print()"),
        *(stage(of_run, tmp_path, name, rows, makes=tmp_path / f"{name}.csv") for name in ("whole", "cut")),
    ]
    state, ran = go(of_run, tmp_path, *stages)
    assert (set(state.values()), ran) == ({"done"}, ["cut"])
    assert json.loads((tmp_path / "stages" / "made.json").read_text())["taken"]
    assert not of_run.made(tmp_path / "model")
    (tmp_path / "model" / "history.json").write_text("{}")
    assert of_run.made(tmp_path / "model")


@pytest.mark.slow
def test_a_failure_is_told_in_a_line_and_stops_only_what_follows(
    of_run: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.txt"
    stages = [
        stage(of_run, tmp_path, "bad", "print(1 / 0)"),
        stage(of_run, tmp_path, "follows", "print()", bad),
        stage(of_run, tmp_path, "misses", "print()", tmp_path / "nowhere"),
        stage(of_run, tmp_path, "cut", f"print({HEAD!r}, end='')", makes=tmp_path / "cut.csv"),
        stage(of_run, tmp_path, "wants", "print()", follows=(bad,)),
        stage(of_run, tmp_path, "fine", "print()"),
    ]
    state = go(of_run, tmp_path, *stages)[0]
    told = {
        "bad": "failed",
        "follows": "left out",
        "misses": "left out",
        "cut": "failed",
        "wants": "done",
        "fine": "done",
    }
    assert state == told
    assert not (tmp_path / "cut.csv").exists()
    lines = capsys.readouterr().err.splitlines()
    assert sum("bad: failed: exit status 1: ZeroDivisionError: division by zero" in line for line in lines) == 1
    assert any("misses: left out: needs" in line and "which is not there" in line for line in lines)
    assert sorted(go(of_run, tmp_path, *stages)[1]) == ["bad", "cut"]  # tried again, and nothing else


@pytest.mark.slow
def test_what_is_timed_runs_alone_and_never_more_than_two_at_once(of_run: ModuleType, tmp_path: Path) -> None:
    nap = "import time; print(time.monotonic()); time.sleep(0.5); print(time.monotonic())"
    names = ["a", "timed", "b", "c", "clocked"]
    stages = [stage(of_run, tmp_path, name, nap, alone=name in ("timed", "clocked")) for name in names]
    go(of_run, tmp_path, *stages)
    spans = {name: [float(t) for t in (tmp_path / f"{name}.txt").read_text().split()] for name in names}
    for name, (begin, end) in spans.items():
        beside = [other for other, (b, e) in spans.items() if other != name and b < end and begin < e]
        assert len(beside) == 0 if name in ("timed", "clocked") else len(beside) <= 2


@pytest.mark.slow
def test_killed_at_any_moment_the_same_command_goes_on(of_run: ModuleType, tmp_path: Path) -> None:
    slow = (
        f"import os, sys, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); "
        f"print({HEAD!r}, end='', flush=True); time.sleep(0 if os.path.exists({str(tmp_path / 'again')!r}) else 60); "
        "print('# done: 1.0')"
    )
    made = tmp_path / "slow.csv"
    script = (
        "import sys; from pathlib import Path; from bench.run import Runner, Stage\n"
        f"slow = Stage('slow', (sys.executable, '-c', {slow!r}), (), Path({str(made)!r}), True)\n"
        f"Runner(Path({str(tmp_path)!r}), [slow]).run([slow])"
    )
    runner = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL, cwd=ROOT)
    part = tmp_path / "slow.csv.part"
    while not (part.exists() and part.read_text() == HEAD):
        time.sleep(0.02)
    runner.send_signal(signal.SIGKILL)
    runner.wait()
    child = int((tmp_path / "pid").read_text())
    for _ in range(100):  # it dies with its parent, where the system can do that
        try:
            os.kill(child, 0)
            time.sleep(0.05)
        except ProcessLookupError:
            break
    if sys.platform == "linux":
        with pytest.raises(ProcessLookupError):
            os.kill(child, 0)
    assert not made.exists()
    (tmp_path / "again").touch()
    subprocess.run([sys.executable, "-c", script], check=True, stderr=subprocess.DEVNULL)
    assert made.read_text() == HEAD + "# done: 1.0\n"


def test_two_runs_do_not_share_a_folder(of_run: ModuleType, tmp_path: Path) -> None:
    with of_run.locked(tmp_path), pytest.raises(click.ClickException, match="another run"), of_run.locked(tmp_path):
        pass


@pytest.mark.parametrize("tiny", [True, False])
def test_the_plan_holds_together(of_run: ModuleType, tmp_path: Path, tiny: bool) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    stages = of_run.Plan(data, out, tiny).stages()
    assert len({each.name for each in stages}) == len(stages) == len({each.makes for each in stages})
    made: set[Path] = set()
    for each in stages:
        for path in (*each.reads, *each.follows):
            assert path in made or path.is_relative_to(data), f"{each.name} reads {path}, which comes later or never"
        made.add(each.makes)
        scripts = [Path(part) for part in each.command if part.endswith(".py")]
        assert all(script.is_file() for script in scripts)
        assert all(each.makes == out / f"{each.name}.csv" for script in scripts if each.prints)


def test_asking_for_a_stage_asks_for_what_it_needs(of_run: ModuleType, tmp_path: Path) -> None:
    runner = of_run.Runner(tmp_path, of_run.Plan(tmp_path / "data", tmp_path).stages())

    def needed() -> list[str]:
        return [each.name for each in runner.needed(["context"])]

    assert needed() == ["regions", "photos", "photos-vectors", "alone-dev-vectors", "context"]
    (tmp_path / "flickr8k").mkdir()
    for name in ("photos.h5", "alone-dev.h5"):
        (tmp_path / "flickr8k" / name).touch()
    assert needed() == ["context"]  # what is there needs no model


def test_what_nothing_needs_any_more_is_not_made(of_run: ModuleType, tmp_path: Path) -> None:
    model, vectors = tmp_path / "model.txt", tmp_path / "vectors.txt"
    stages = [
        stage(of_run, tmp_path, "model", "print()"),
        stage(of_run, tmp_path, "vectors", "print()", model),
        stage(of_run, tmp_path, "rows", "print()", vectors),
    ]
    vectors.write_text("by hand")
    runner = of_run.Runner(tmp_path, stages)
    runner.run(runner.needed(["rows"]))
    assert (tmp_path / "ran").read_text().split() == ["rows"]
    model.write_text("made later")  # so the vectors may be of another
    again = of_run.Runner(tmp_path, stages)
    assert [each.name for each in again.needed(["rows"])] == ["vectors", "rows"]
    model.unlink()
    assert again.needed(["rows"]) == []
