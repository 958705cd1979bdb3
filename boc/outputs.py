"""Checks of output paths: a command never overwrites its own input, nor files that it did not make."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from boc.atomic_files import check_writable, sha256, write_text
from boc.errors import BocError

NOTE = ".boc-made.json"
HEAD = 65_536  # bytes at the beginning of a file that identify its kind


def check_output(path: Path, ours: Callable[[Path], bool], *inputs: Path | None) -> None:
    """BocError unless ``path`` can be written and nothing is lost by it.

    The file may be missing, empty, or of the kind that ``ours`` recognises, and must be none of ``inputs`` (None stands
    for an input that was not given).
    """
    check_writable(path)
    for source in inputs:
        if source is not None and _same(path, source):
            raise BocError(f"{path} is an input of this command, which would replace it; choose another output")
    if path.exists() and path.stat().st_size and not ours(path):
        raise BocError(f"{path} is there and not of the kind to be written; choose another name, or delete it first")


def begins(*patterns: bytes) -> Callable[[Path], bool]:
    """A test for ``check_output``: the beginning of a file contains all ``patterns``, the first one at its start."""

    def ours(path: Path) -> bool:
        try:
            with path.open("rb") as handle:
                head = handle.read(HEAD)
        except OSError:
            return False
        return head.startswith(patterns[0]) and all(pattern in head for pattern in patterns)

    return ours


def check_folder(folder: Path, names: Iterable[str], ours: Callable[[Path], bool]) -> None:
    """BocError if a folder holds files of ``names``, but has no lock of a writer and is not recognised by ``ours``."""
    there = [name for name in names if (folder / name).exists()]
    if there and not (folder / ".lock").exists() and not ours(folder):
        raise BocError(f"{folder} holds {there[0]}, which boc did not make and would replace; choose another folder")


class MadeFiles:
    """The files that a command makes in a folder of the user, recorded there with their digests.

    Later the same command may replace or remove files that are recorded and unchanged, and no others.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known = self._read()

    def begin(self, names: Sequence[str]) -> None:
        """Check that files of these ``names`` may be made, and remove those made earlier. BocError if not.

        Files of a killed command are recorded without a digest: their names were free when it began.
        """
        foreign = next((name for name in names if self._is_foreign(name)), None)
        if foreign is not None:
            raise BocError(
                f"{self._folder / foreign} is there already, and was not made by this command or has changed since; "
                "choose another folder"
            )
        for name in self._known.keys() - set(names):
            if not self._is_foreign(name):
                (self._folder / name).unlink(missing_ok=True)
        check_writable(self._folder / NOTE)
        self._write(dict.fromkeys(names, ""))

    def finish(self, names: Iterable[str]) -> None:
        """Record the digests of the finished files."""
        self._write({name: sha256(self._folder / name) for name in names})

    def _is_foreign(self, name: str) -> bool:
        path = self._folder / name
        if not path.exists() and not path.is_symlink():
            return False
        known = self._known.get(name)
        return known is None or path.is_symlink() or not path.is_file() or (known != "" and sha256(path) != known)

    def _read(self) -> dict[str, str]:
        try:
            known = json.loads((self._folder / NOTE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return known if isinstance(known, dict) else {}

    def _write(self, known: dict[str, str]) -> None:
        write_text(self._folder / NOTE, json.dumps(known, indent=0, sort_keys=True))


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return one.resolve() == other.resolve()
