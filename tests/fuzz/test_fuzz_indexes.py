"""Forged indexes: changed by somebody who also wrote the right digests. No crash, and no error but
a BocError.

BOC_FORGED sets how many are tried (default 100).
"""

import hashlib
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from boc.atomic_files import sha256
from boc.inputs.sources import Source
from boc.manage.compare import compare
from indexing.embedded import commits
from indexing.embedded.backend import EmbeddedBackend
from tests.fuzz.mutations import FORGED, verdict
from tests.indexing.embedded.test_corruption import DAMAGES, ask_all, damage, files_of, make
from tests.indexing.embedded.test_crash import start, tell
from tests.indexing.embedded.test_model_based import NAME, small_segments

NESTED = tuple(json.loads("[" * depth + "]" * depth) for depth in (20, 400))
ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1,
    10**12,
    1.5,
    "",
    "x",
    "../x",
    [],
    {},
    [1],
    {"a": 1},
    *NESTED,
)


def forge(home: Path, rng: random.Random) -> str:
    """Change an array, or an entry of the commit, and make all digests right; what was done."""
    name, commit = commits.read_current(home)
    raw = json.loads((home / name).read_text())
    if rng.random() < 0.6:
        path = home / rng.choice(sorted(commit.files))
        what = rng.choice(DAMAGES)
        damage(path, what, rng)
        file = path.relative_to(home).as_posix()
        if path.exists():
            raw["files"][file] = [path.stat().st_size, sha256(path)]
        told = f"{what} of {file}"
    else:
        keys = ["manifest", "unreadable"] if rng.random() < 0.2 else []
        node = raw["manifest"]["unreadable"] if keys else raw
        above = raw["manifest"]
        while isinstance(node, (dict, list)) and node and (not keys or rng.random() < 0.8):
            keys.append(rng.choice(list(node) if isinstance(node, dict) else range(len(node))))
            above = node
            node = node[keys[-1]]
        above[keys[-1]] = rng.choice(ODD)
        told = f"{'/'.join(map(str, keys))} = {above[keys[-1]]!r}"
    data = json.dumps(raw).encode()
    forged = f"commit-{hashlib.sha256(data).hexdigest()[:16]}.json"
    (home / forged).write_bytes(data)
    (home / "CURRENT").write_text(forged)
    return told


@contextmanager
def restored(home: Path) -> Iterator[None]:
    before = {path: path.read_bytes() for path in files_of(home)}
    yield
    for path in files_of(home):
        if path not in before:
            path.unlink()
    for path, data in before.items():
        if not path.exists() or path.read_bytes() != data:
            path.write_bytes(data)


def use(home: Path, model: Any) -> None:
    index = EmbeddedBackend(home.parent).open(NAME)
    ask_all(index, model)
    compare(
        index,
        Source(list(index.items())),
        None,
        {},
        ocr=False,
    )


def judge(folder: str, first: str, last: str) -> None:
    """Forge indexes one after the other, and tell what comes of each. In a process of its own."""
    small_segments(pytest.MonkeyPatch())
    model = make(Path(folder))
    home = Path(folder) / NAME
    with EmbeddedBackend(Path(folder)).edit(NAME) as editor:
        editor.commit(
            "ab" * 32,
            unreadable={
                "bad.jpg": [1, 2, 3],
                "worse.jpg": [0, 0, 0],
            },
        )
    tell("ready")
    for number in range(int(first), int(last)):
        with restored(home):
            tell(f"{number}: {forge(home, random.Random(number))}")
            tell(
                verdict(
                    partial(use, home, model),
                    "answered",
                ),
            )


@pytest.mark.slow
def test_a_forged_index_is_refused_or_answered(tmp_path: Path):
    process = start(judge, tmp_path, 0, FORGED)
    told = process.communicate()[0].splitlines()
    assert process.returncode == 0, f"ended by {process.returncode} after {told[-1]}"
    verdicts = list(zip(told[::2], told[1::2], strict=True))
    assert len(verdicts) == FORGED
    wrong = [verdict for verdict in verdicts if verdict[1] not in ("refused", "answered")]
    assert not wrong, "\n".join(map(str, wrong))
