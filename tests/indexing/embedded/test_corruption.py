"""Damaged files of an embedded index: refused by name, or of no consequence; never a wrong answer.

BOC_FLIPS sets how many damages are tried (default 150; 1000 for all).
"""

import os
import random
import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from boc.errors import BocError, ManifestError
from boc.types import Filter
from indexing.embedded import commits
from indexing.embedded.backend import EmbeddedBackend
from indexing.embedded.engine import EmbeddedEngine
from indexing.file import connect
from tests.boc.evaluate.test_verify import build, fitted
from tests.helpers import boc, run
from tests.indexing.embedded.test_crash import KEYS, make_edit, make_load, start, tell
from tests.indexing.embedded.test_model_based import (
    NAME,
    Kind,
    Model,
    Question,
    assert_answers,
    assert_holds,
    assert_matches,
    small_segments,
)

FLIPS = int(os.environ.get("BOC_FLIPS", "150"))
BATCH = 100  # damages tried by one process
SAME_SIZE = ("flip", "zeros")
DAMAGES = (*SAME_SIZE, "flip", "cut", "longer", "gone", "another")


def make(folder: Path) -> Model:
    """An index of several segments with deleted rows, and with all that an index can hold."""
    first, model = make_load(Kind("float16", "int8"), KEYS, 0)
    second, model = make_edit(
        model,
        KEYS[3:9],
        KEYS[20:27],
        1,
    )
    for step in (first, second):
        step(EmbeddedBackend(folder))
    EmbeddedBackend(folder).open(NAME)
    return model


def files_of(home: Path) -> list[Path]:
    return sorted(path for path in home.rglob("*") if path.is_file())


def damage(path: Path, kind: str, rng: random.Random) -> None:
    """Change the file in place; it may be the same after all, where it held zeros."""
    data = bytearray(path.read_bytes())
    place = rng.randrange(len(data)) if data else 0
    if kind == "flip" and data:
        data[place] ^= 1 << rng.randrange(8)
    elif kind == "zeros":
        end = min(len(data), place + rng.choice([1, 64, 512, 4096]))
        data[place:end] = bytes(end - place)
    elif kind == "cut":
        del data[place:]
    elif kind == "longer":
        data += rng.choice([b"\0", b"\n", b" " * 4096, rng.randbytes(100)])
    elif kind == "another":
        data = bytearray(rng.choice(files_of(path.parent)).read_bytes())
    path.write_bytes(data)
    if kind == "gone":
        path.unlink()


def assert_all_answers(index: EmbeddedEngine, model: Model) -> None:
    assert_holds(index, model)
    for filters in (
        (Filter("year", ">=", 0),),
        (Filter("tag", "!=", "dog"),),
        (Filter("tag", "<", "e"),),
    ):
        assert_answers(
            index,
            model,
            Question(
                [
                    1,
                    2,
                    500,
                    0,
                    1,
                ],
                7,
                None,
                filters,
                [0.5, 1.0, -0.5, 0.0],
            ),
        )
    for words in ("zebra", "red car", "unheard"):
        assert_matches(
            index,
            model,
            words,
            None,
            [],
        )


def ask_all(index: EmbeddedEngine, model: Model) -> None:
    """Whatever is asked of an index, without a look at the answers."""
    ids = list(model.rows)[:5]
    list(index.items())
    index.arrays()
    index.document_frequencies()
    for answers in (
        lambda: assert_all_answers(index, model),
        lambda: index.vectors(ids),
        lambda: index.concepts(ids),
    ):
        with suppress(AssertionError, KeyError):
            answers()


def judge(folder: str, first: str, last: str) -> None:
    """Damage files one after the other, and tell what comes of it. In a process of its own."""
    small_segments(pytest.MonkeyPatch())
    model = make(Path(folder))
    home = Path(folder) / NAME
    assert_all_answers(EmbeddedBackend(Path(folder)).open(NAME), model)
    tell("ready")
    for number in range(int(first), int(last)):
        rng = random.Random(number)
        path = rng.choice(files_of(home))
        with temporary_damage(
            path,
            rng.choice(DAMAGES),
            rng,
            number,
        ):
            refusal = refusal_of(home, path, lambda index: assert_all_answers(index, model))
            tell(refusal or "harmless")


@contextmanager
def temporary_damage(path: Path, kind: str, rng: random.Random, number: int) -> Iterator[None]:
    """Damage a file, and mend it."""
    tell(f"{number}: {kind} of {path.parent.name}/{path.name}")
    whole = path.read_bytes()
    damage(path, kind, rng)
    yield
    path.write_bytes(whole)


def refusal_of(home: Path, path: Path, check: Callable[[EmbeddedEngine], None]) -> str:
    """How the index in ``home`` was refused for the damaged file ``path``; nothing if ``check``
    found it right."""
    try:
        check(EmbeddedBackend(home.parent).open(home.name))
    except BocError as error:
        names = [str(path)]
        if path.name == "CURRENT":
            names += [str(home), f"no index {home.name!r} in file:{home.parent}"]
        return (
            "refused"
            if any(name in str(error) for name in names)
            else f"refused without the file's name: {error}"
        )
    except Exception:
        return " | ".join(traceback.format_exc().splitlines()[-5:])
    return ""


def verdicts(function: Callable[..., None], folder: Path) -> Iterator[tuple[str, str]]:
    """(damage, what came of it) of all damages; the processes that try them must not die."""
    for first in range(0, FLIPS, BATCH):
        process = start(
            function,
            folder / str(first),
            first,
            min(FLIPS, first + BATCH),
        )
        lines = process.communicate()[0].splitlines()
        assert process.returncode == 0, f"ended by {process.returncode} after {lines[-1]}"
        yield from zip(lines[::2], lines[1::2], strict=True)


@pytest.mark.slow
def test_damage_is_refused_by_name_or_of_no_consequence(tmp_path: Path):
    results = list(verdicts(judge, tmp_path))
    assert len(results) == FLIPS
    assert [each for each in results if each[1] not in ("refused", "harmless")] == []
    assert sum(verdict == "refused" for _, verdict in results) > FLIPS / 2


def test_a_file_that_changes_while_an_index_is_edited_is_not_taken_to_be_whole(
    tmp_path: Path,
    monkeypatch,
):
    small_segments(monkeypatch)
    make(tmp_path)
    with EmbeddedBackend(tmp_path).edit(NAME) as editor:
        path = max(
            files_of(tmp_path / NAME),
            key=lambda path: (path.name == "vectors.npy", path.stat().st_size),
        )
        path.write_bytes(path.read_bytes()[:-1] + b"!")
        editor.delete(KEYS[:1])
        editor.commit("ef" * 32)
    with pytest.raises(ManifestError, match=re.escape(str(path))):
        EmbeddedBackend(tmp_path).open(NAME)


@pytest.mark.parametrize("stamps", ["changed", "unchanged"])
def test_boc_verify_names_the_damaged_file(
    tmp_path: Path,
    monkeypatch,
    stamps: str,
):
    build(connect(f"file:{tmp_path}"), "photos", fitted())
    report = run(
        f"verify photos --at file:{tmp_path}",
    )
    if stamps == "unchanged":
        known = {path: commits.stamp(path) for path in files_of(tmp_path)}
        monkeypatch.setattr(commits, "stamp", known.__getitem__)
    for path in files_of(tmp_path / "photos"):
        if "-" not in path.relative_to(tmp_path).as_posix() or path.suffix == ".json":
            continue
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        report = boc(
            f"verify photos --at file:{tmp_path}",
        )
        assert report.exit_code == 1
        assert str(path) in report.output
        path.write_bytes(whole)
    assert (
        boc(
            f"verify photos --at file:{tmp_path}",
        ).exit_code
        == 0
    )


def test_only_changed_files_are_called_damaged(
    tmp_path: Path,
    monkeypatch,
):
    model = make(tmp_path)
    index, other = (EmbeddedBackend(tmp_path).open(NAME) for _ in range(2))

    def fail(*_):
        raise ValueError("offsets must rise within terms and weights")

    monkeypatch.setattr("indexing.embedded.engine.locate", fail)
    with pytest.raises(
        ManifestError,
        match=r"files are unchanged, but.*or boc fails on this",
    ) as sound:
        index.vectors(list(model.rows)[:1])
    assert "replace=" not in str(sound.value)
    next(path for path in files_of(tmp_path / NAME) if path.name.startswith("vectors")).write_bytes(
        b"",
    )
    with pytest.raises(
        ManifestError,
        match=r"damaged \(.*vectors.*: changed since\); .*replace=True",
    ):
        other.vectors(list(model.rows)[:1])
