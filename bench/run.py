"""All benchmarks, from data to rows: ``python -m bench.run DATA --out OUT``, then ``report.py OUT``.

DATA holds ``flickr8k/`` (images/, captions.csv, train.ids.txt, dev.ids.txt) and ``multi30k/captions.en.tsv.gz``; a
stage that lacks some of it is left out. Stages are those of `stages.py`, each a process. Results are atomic: rows are
written to OUT/NAME.csv.part and renamed. After a kill at any moment the same command continues: a finished stage is not
repeated, unless its command or its inputs have changed. Files without a record, made by hand or by ``make encoders``,
count as finished.

Timed stages run alone; of the others two run at a time, with one thread each. The record and the log of a stage are
OUT/stages/NAME.json and NAME.log.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from bench.report.rows import read
from bench.stages import Plan, Stage

TOGETHER = min(2, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)
PAUSE_S = 0.1
DEATH = 1  # prctl: the signal that a process gets when its parent dies


def made(path: Path) -> bool:
    """Whether a file, a file of rows, or a model is there, and whole."""
    if path.is_dir():
        return (path / "history.json").is_file()
    return path.is_file() and (path.suffix != ".csv" or not _is_rows(path) or read(path).done)


def _is_rows(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"# "


def version_of(path: Path) -> list[int]:
    """Changes when a file does, or any file of a folder: count, bytes, last change."""
    files = [path] if path.is_file() else [f for f in path.rglob("*") if f.is_file() and not f.name.startswith(".")]
    stats = [file.stat() for file in files]
    return [len(stats), sum(s.st_size for s in stats), max((s.st_mtime_ns for s in stats), default=0)]


@dataclass
class Runner:
    """Runs stages, and keeps a record of each in OUT/stages."""

    out: Path
    stages: list[Stage]
    after: Callable[[], None] = lambda: None  # called when a stage has ended
    state: dict[str, str] = field(default_factory=dict)  # done, failed or left out
    running: dict[str, tuple[Stage, subprocess.Popen[bytes], float]] = field(default_factory=dict)

    def record(self, stage: Stage) -> Path:
        return self.out / "stages" / f"{stage.name}.json"

    def now(self, stage: Stage) -> dict[str, Any]:
        """What decides whether a stage is to be run again."""
        return {"command": self.told(stage), "reads": {str(p): version_of(p) for p in (*stage.reads, *stage.follows)}}

    def told(self, stage: Stage) -> list[str]:
        return ["python" if part == sys.executable else part for part in stage.command]

    def kept(self, stage: Stage) -> dict[str, Any]:
        """The record of the stage; empty if there is none."""
        try:
            found: dict[str, Any] = json.loads(self.record(stage).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        return found

    def look(self, stage: Stage) -> str:
        """Done, changed, or to do."""
        kept = self.kept(stage)
        state = kept.get("state", "left out")
        if state != "left out" and (kept["command"] != self.told(stage) or self._moved(stage, kept["reads"])):
            return "changed"
        return "done" if state in ("done", "left out") and made(stage.makes) else "to do"

    def _moved(self, stage: Stage, known: dict[str, list[int]]) -> bool:
        """Whether a file is another than it was. What was removed since is not looked for."""
        there = [path for path in (*stage.reads, *stage.follows) if path.exists()]
        return any(known.get(str(path)) != version_of(path) for path in there)

    def stale(self, stage: Stage) -> bool:
        """Whether a stage is to be run: it is not done, or something that it reads is to be made again."""
        return self.look(stage) != "done" or any(made(m.makes) and self.stale(m) for m in self.makers(stage))

    def makers(self, stage: Stage) -> list[Stage]:
        """The stages that make what ``stage`` reads."""
        paths = (*stage.reads, *stage.follows)
        return [other for other in self.stages if other.makes in paths]

    def needed(self, names: Sequence[str]) -> list[Stage]:
        """Of these stages those that are to be run, with all that they still need, in order."""
        chosen: set[str] = set()
        ahead = [stage for stage in self.stages if stage.name in names]
        while ahead:
            stage = ahead.pop()
            if stage.name not in chosen and self.stale(stage):
                chosen.add(stage.name)
                ahead += self.makers(stage)
        return [stage for stage in self.stages if stage.name in chosen]

    def lacking(self, stage: Stage) -> str:
        """Why the stage is left out, or nothing."""
        makers = {other.makes: other.name for other in self.stages}
        for path in stage.reads:
            maker = makers.get(path)
            if not path.exists() and (maker is None or maker in self.state):
                return f"needs {path}, which " + (f"{maker} should have made" if maker else "is not there")
        return ""

    def note(self, stage: Stage, state: str, **more: object) -> None:
        """Write the record atomically."""
        text = json.dumps({"name": stage.name, "state": state, **self.now(stage), **more}, indent=1)
        temporary = self.record(stage).with_suffix(".part")
        temporary.write_text(text + "\n", encoding="utf-8")
        temporary.replace(self.record(stage))

    def seconds_left(self, defaults: Mapping[str, float]) -> float:
        """Seconds until all stages are done, one after the other: for each kind of work by what this run measured, and
        until it has by ``defaults``, seconds per unit."""
        took: dict[str, list[float]] = {}
        for stage in self.stages:
            kind, amount = stage.cost
            seconds = self.kept(stage).get("seconds")
            if seconds is not None and amount and self.state.get(stage.name, self.look(stage)) == "done":
                took.setdefault(kind, []).append(seconds / amount)
        rates = {**defaults, **{kind: sum(rates) / len(rates) for kind, rates in took.items()}}
        ahead = [stage for stage in self.stages if stage.name not in self.state and self.look(stage) != "done"]
        return sum(rates.get(kind, 0.0) * amount for kind, amount in (stage.cost for stage in ahead))

    def waits(self, stage: Stage) -> bool:
        """Whether something that the stage reads is still to be made."""
        results = {other.makes for other in self.stages if other.name not in self.state}
        return bool(results.intersection((*stage.reads, *stage.follows)))

    def run(self, needed: Sequence[Stage]) -> bool:
        """These stages; whether none failed. The others are done, or nothing is to be made of them."""
        for stage in self.stages:
            if stage not in needed:
                self.state[stage.name] = "done"
                if made(stage.makes) and not self.kept(stage):
                    self.note(stage, "done", taken=True)
        try:
            while len(self.state) < len(self.stages):
                self._start()
                self._reap()
        finally:
            for _, process, _ in self.running.values():
                process.kill()
                process.wait()
        return "failed" not in self.state.values()

    def _start(self) -> None:
        for stage in self.stages:
            if stage.name in self.state or stage.name in self.running or self.waits(stage):
                continue
            why = self.lacking(stage)
            if why:
                self._end(stage, "left out", why=why)
                continue
            found = self.look(stage)
            if found == "done":
                self.state[stage.name] = "done"
            elif not self._blocked(stage):
                self._begin(stage, again=found == "changed")

    def _blocked(self, stage: Stage) -> bool:
        others = [other for other, _, _ in self.running.values()]
        return bool(others) if stage.alone else len(others) >= TOGETHER or any(other.alone for other in others)

    def _begin(self, stage: Stage, again: bool) -> None:
        result = stage.makes
        if again:
            remove(*(result.with_name(result.name + end) for end in ("", ".part", ".parts")))
            remove(*([stage.work] if stage.work else []))
        result.parent.mkdir(parents=True, exist_ok=True)
        self.note(stage, "started")
        told(f"{stage.name}: running{' again, as something it follows from has changed' if again else ''}")
        environment = dict(os.environ) if stage.alone else {**os.environ, "OMP_NUM_THREADS": "1"}
        with self._log(stage).open("wb") as log, self._stdout(stage).open("wb") as stdout:
            process = subprocess.Popen(
                stage.command, stdout=stdout, stderr=log, env=environment, preexec_fn=die_with_parent
            )
        self.running[stage.name] = stage, process, time.monotonic()

    def _stdout(self, stage: Stage) -> Path:
        if stage.prints:
            return stage.makes.with_name(stage.makes.name + ".part")
        return self.out / "stages" / f"{stage.name}.out"

    def _log(self, stage: Stage) -> Path:
        return self.out / "stages" / f"{stage.name}.log"

    def _reap(self) -> None:
        time.sleep(PAUSE_S if self.running else 0)
        for name, (stage, process, begun) in list(self.running.items()):
            if process.poll() is not None:
                del self.running[name]
                seconds = round(time.monotonic() - begun, 1)
                why = self._failure(stage, process.returncode)
                self._end(stage, "failed" if why else "done", seconds=seconds, **({"why": why} if why else {}))

    def _failure(self, stage: Stage, status: int) -> str:
        """Why the stage failed, in one line; nothing if it did not. Rows that are whole get their name."""
        if status:
            lines = self._log(stage).read_text(encoding="utf-8", errors="replace").split("\n")
            last = next((line.split("\r")[-1].strip() for line in reversed(lines) if line.strip()), "")
            return f"exit status {status}: {last[:300]} ({self._log(stage)})"
        if stage.prints:
            part = self._stdout(stage)
            if stage.makes.suffix == ".csv" and not (_is_rows(part) and read(part).done):
                return f"its rows do not end with '# done' ({part})"
            part.replace(stage.makes)
        return "" if made(stage.makes) else f"it did not make {stage.makes}"

    def _end(self, stage: Stage, state: str, **more: object) -> None:
        self.note(stage, state, **more)
        self.state[stage.name] = state
        told(f"{stage.name}: {state}" + (f" in {more['seconds']} s" if state == "done" else f": {more['why']}"))
        self.after()


def remove(*paths: Path) -> None:
    """Files and folders that are there."""
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def die_with_parent() -> None:
    """In a child: no stage outlives this process, so that none is ever run twice at once."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(DEATH, signal.SIGKILL)


def told(line: str) -> None:
    click.echo(f"{time.strftime('%H:%M:%S')} {line}", err=True)


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """One run at a time in a folder."""
    with (out / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise click.ClickException(f"another run is at work in {out}; wait for it, or stop it") from None
        yield


def listing(runner: Runner, needed: Sequence[Stage]) -> None:
    """How each stage stands, what it took, and why it is left out."""
    for stage in runner.stages:
        why = runner.lacking(stage) if stage in needed else ""
        state = "left out" if why else runner.look(stage) if stage in needed else "done"
        if stage in needed and state == "done":
            state = "changed"
        if state == "done" and not made(stage.makes):
            state = "spared"  # all that is made of it is there
        if why:
            runner.state[stage.name] = state
        click.echo(f"{stage.name:24} {state:9} {runner.kept(stage).get('seconds', ''):>7}  {why}".rstrip())


@click.command()
@click.argument("data", required=False, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--out", default="bench-out", show_default=True, type=click.Path(file_okay=False, path_type=Path))
@click.option("--tiny", is_flag=True, help="On a few painted scenes, in place of DATA: do all scripts run?")
@click.option("--big", is_flag=True, help="Race over a million items too, and let the gallery grow to 3; hours.")
@click.option("--only", multiple=True, metavar="STAGE", help="This stage, and those that it needs; may be repeated.")
@click.option("--list", "listed", is_flag=True, help="Tell the stages and how they stand; run nothing.")
def main(data: Path | None, out: Path, tiny: bool, big: bool, only: tuple[str, ...], listed: bool) -> None:
    """Run all benchmarks over DATA, or continue a stopped run."""
    if (data is None) == (not tiny):
        raise click.UsageError("give either DATA or --tiny")
    plan = Plan(data or out / "data", out, tiny, big)
    runner = Runner(out, plan.stages())
    known = [stage.name for stage in runner.stages]
    unknown = sorted(set(only).difference(known))
    if unknown:
        raise click.UsageError(f"no stage {unknown[0]!r}; known: {', '.join(known)}")
    needed = runner.needed(only or [stage.name for stage in runner.stages if stage.makes.suffix == ".csv"])
    if listed:
        listing(runner, needed)
        return
    (out / "stages").mkdir(parents=True, exist_ok=True)
    if tiny:
        plan.draw()
    begun = time.monotonic()
    with locked(out):
        fine = runner.run(needed)
    for state in ("left out", "failed"):
        for stage in runner.stages:
            if runner.state[stage.name] == state:
                told(f"{state}: {stage.name}: {runner.kept(stage)['why']}")
    count = sum(runner.state[stage.name] == "done" for stage in needed)
    told(f"{count} of {len(needed)} stages run, {time.monotonic() - begun:.0f} s; rows in {out}")
    if not fine:
        sys.exit(1)


if __name__ == "__main__":
    main()
