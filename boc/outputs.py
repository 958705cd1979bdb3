"""Check output paths, so that a command never overwrites its own input or files that boc did not
make."""

from collections.abc import Callable, Iterable
from pathlib import Path

from boc.atomic_files import check_writable
from boc.errors import BocError

HEAD = 65_536  # bytes at the beginning of a file that identify its kind


def check_output(path: Path, ours: Callable[[Path], bool], *inputs: Path | None) -> None:
    """Raise BocError unless ``path`` can be written without loss of data.

    The file may be missing, empty, or recognised by ``ours``. It must not be one of ``inputs``.
    """
    check_writable(path)
    for source in inputs:
        if source is not None and _same(path, source):
            raise BocError(
                f"{path} is an input to this command and would be overwritten; choose a different "
                "output",
            )
    if path.exists() and path.stat().st_size and not ours(path):
        raise BocError(
            f"{path} is another kind of file; choose another name, or delete it first",
        )


def begins(*patterns: bytes) -> Callable[[Path], bool]:
    """Return a test for ``check_output`` that checks whether a file begins with the first pattern
    and contains the other patterns soon after it."""

    def ours(path: Path) -> bool:
        try:
            with path.open("rb") as handle:
                head = handle.read(HEAD)
        except OSError:
            return False
        return head.startswith(patterns[0]) and all(pattern in head for pattern in patterns)

    return ours


def check_folder(folder: Path, names: Iterable[str], ours: Callable[[Path], bool]) -> None:
    """Raise BocError if a folder contains ``names``, has no writer's lock, and is not recognised by
    ``ours``."""
    existing = [name for name in names if (folder / name).exists()]
    if existing and not (folder / ".lock").exists() and not ours(folder):
        raise BocError(
            f"{folder} contains {existing[0]}, which boc did not make and would replace; choose "
            "another folder",
        )


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return one.resolve() == other.resolve()
