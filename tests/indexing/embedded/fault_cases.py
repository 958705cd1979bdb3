"""Commands whose file system calls fail, one at a time: what they leave and what they say. Run by
test_file_faults.py.

    LD_PRELOAD=faults.so FAULTS_ROOT=FOLDER python fault_cases.py FOLDER INPUTS COUNT [COMMAND...]

FOLDER holds what the commands write. INPUTS has feature files with the ids 0000.jpg and following,
half.h5 and rest.h5, and the folders of pictures before/ and after/. COUNT cases are tried for each
command and fault, spread evenly over its calls; 0 tries all. Prints one JSON object.
"""

import ctypes
import errno
import json
import os
import shutil
import sys
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import boc.manage.build
import boc.manage.copy
import boc.manage.sync
import indexing.file
from boc import plugins
from boc.cli import main
from boc.errors import BocError
from indexing.embedded import commits
from indexing.embedded.backend import EmbeddedBackend
from tests.boc.manage.collections_of_files import Counting

# Imported here once, as each trial would import them.
IMPORTED = (boc.manage.build, boc.manage.copy, boc.manage.sync, indexing.file)
OPEN, CREATE, WRITE, SYNC, NAME, REMOVE = (1 << i for i in range(6))
FAULTS = {
    "EIO": (errno.EIO, OPEN | CREATE | WRITE | SYNC | NAME | REMOVE, False),
    "ENOSPC": (errno.ENOSPC, CREATE | WRITE | SYNC | NAME, True),
    "EMFILE": (errno.EMFILE, OPEN | CREATE, False),
    "EINTR": (errno.EINTR, OPEN | CREATE | WRITE, False),
    "short": (0, WRITE, False),
}
SHIM = ctypes.CDLL(None)
State: TypeAlias = "frozenset[str] | None"


def commands(inputs: Path) -> dict[str, tuple[list[list[str]], list[str]]]:
    """What is done before, and what meets the fault."""
    half, rest, before, after = (
        str(inputs / name) for name in ("half.h5", "rest.h5", "before", "after")
    )
    made = ["index", "x", half]
    more = ["add", "x", rest]
    gone = ["delete", "x", *(f"{i:04}.jpg" for i in range(5))]
    return {
        "index": ([], made),
        "replace": ([made], ["index", "x", rest, "--replace"]),
        "add": ([made], more),
        "delete": ([made], gone),
        "compact": ([made, more, gone], ["compact", "x"]),
        "copy": ([made], ["copy", "x", "y"]),
        "sync": (
            [
                [
                    "index",
                    "x",
                    before,
                    "--encoder",
                    "test:counting",
                ],
            ],
            ["sync", "x", after],
        ),
        "delete --all": ([made], ["delete", "x", "--all"]),
    }


def run(at: Path, words: list[str]) -> tuple[int, str]:
    """Exit status of a command, and what it said on stderr."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(write, 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        status = 70
        try:
            main([*words, "--at", f"file:{at}"], standalone_mode=True)
        except SystemExit as end:
            status = int(end.code or 0)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os.write(write, b"\0%d %d" % (SHIM.faults_seen(), SHIM.faults_hit()))
            os._exit(status)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), said.decode(errors="replace")


def state(at: Path, name: str) -> State:
    """The ids of an index, every file of which is whole; None if there is none."""
    backend = EmbeddedBackend(at)
    if not backend.exists(name):
        return None
    assert not commits.damage(at / name, commits.read_current(at / name)[1].files), "damaged"
    return frozenset(item.id for item in backend.open(name).items())


def strays(at: Path) -> list[str]:
    """What lies about that no index needs."""
    homes = [home for home in at.iterdir() if home.name != ".removed"]
    found = [home.name for home in homes if not (home / "CURRENT").is_file()]
    if len(homes) < len([*at.iterdir()]):
        found += strays(at / ".removed")
    for home in homes:
        if (home / "CURRENT").is_file():
            name, commit = commits.read_current(home)
            kept = {
                ".lock",
                ".checked",
                "CURRENT",
                name,
                commit.codec,
            } | {file.partition("/")[0] for file in commit.files}
            found += [
                f"{home.name}/{path.name}" for path in home.iterdir() if path.name not in kept
            ]
    return found


class Trial:
    """One command from one beginning."""

    def __init__(self, home: Path, before: list[list[str]], words: list[str]) -> None:
        self.home = home
        self.words = words
        self.at = home / "at"
        self.name = "y" if words[0] == "copy" else "x"
        self.base = home / "base"
        for path in (self.at, self.base):
            shutil.rmtree(path, ignore_errors=True)
        self.at.mkdir(parents=True)
        for each in before:
            status, said = run(self.at, each)
            assert status == 0, said
        shutil.copytree(self.at, self.base)
        self.old = state(self.at, self.name)
        status, said = run(self.at, words)
        assert status == 0, (words, said)
        self.new = state(self.at, self.name)

    def fresh(self) -> None:
        shutil.rmtree(self.at)
        shutil.copytree(self.base, self.at)

    def calls(self, mask: int) -> int:
        self.fresh()
        SHIM.faults_arm(
            ctypes.c_long(-1),
            0,
            mask,
            0,
        )
        said = run(self.at, self.words)[1]
        SHIM.faults_arm(
            ctypes.c_long(-1),
            0,
            0,
            0,
        )
        return int(said.rpartition("\0")[2].split()[0])

    def meets(self, call: int, number: int, mask: int, sticky: bool) -> tuple[str, str]:
        """What came of a fault at a call, and what was wrong with that, if anything was."""
        self.fresh()
        SHIM.faults_arm(
            ctypes.c_long(call),
            number,
            mask,
            int(sticky),
        )
        status, said = run(self.at, self.words)
        SHIM.faults_arm(
            ctypes.c_long(-1),
            0,
            0,
            0,
        )
        said, _, told = said.rpartition("\0")
        removing = bool(int(told.split()[1]) & REMOVE) if told else False
        lines = [line for line in said.splitlines() if line.startswith("Error: ")]
        if "Traceback" in said or status not in (0, 1) or (status == 1 and len(lines) != 1):
            return "fault", f"rc {status}: {said[-1500:]}"
        try:
            found = state(self.at, self.name)
        except (AssertionError, BocError) as error:
            return "damage", f"{error!r}: {said}"
        if found not in (self.old, self.new) or (status == 0 and found != self.new):
            return "mixture", said
        if "damaged" in said:
            return "called damaged", said
        left = strays(self.at)
        if status and self.words[0] == "sync":  # the next sync continues with what was encoded
            left = [name for name in left if ".features.h5" not in name]
        ending = (
            "--all" in self.words
        )  # what a removal could not remove goes with the next index of that name
        if left and not removing and not ending:
            return "left behind", f"rc {status}: {left} {said}"
        outcome = (
            "done"
            if status == 0
            else "new, told"
            if found == self.new and self.new != self.old
            else "old, told"
        )
        if found != self.new or self.words[0] == "compact":
            again, said = run(self.at, self.words)
            if again or state(self.at, self.name) != self.new or strays(self.at):
                return "not repeatable", f"rc {again}: {strays(self.at)} {said}"
        return outcome, ""


def tried(home: Path, inputs: Path, count: int, names: Sequence[str]) -> dict[str, object]:
    outcomes = Counter()
    wrong = []
    cases = commands(inputs)
    for name in names or cases:
        before, words = cases[name]
        trial = Trial(home, before, words)
        for fault, (number, mask, sticky) in FAULTS.items():
            calls = trial.calls(mask)
            step = max(1, calls // count) if count else 1
            for call in range(0, calls, step):
                outcome, why = trial.meets(
                    call,
                    number,
                    mask,
                    sticky,
                )
                outcomes[f"{name}, {fault}: {outcome}"] += 1
                if why:
                    wrong.append(f"{name}, {fault} at call {call} of {calls}: {outcome}: {why}")
    return {"outcomes": outcomes, "wrong": wrong}


if __name__ == "__main__":
    plugins.encoder = lambda *spec: Counting()
    found = tried(
        Path(sys.argv[1]),
        Path(sys.argv[2]),
        int(sys.argv[3]),
        sys.argv[4:],
    )
    sys.stdout.write(json.dumps(found, indent=1))
