"""Check output paths, so that a command never overwrites its own input or a file that boc did not
create."""

from collections.abc import Callable, Iterable
from pathlib import Path

from boc.atomic_files import check_writable
from boc.errors import BocError

HEAD = 65_536  # bytes at the beginning of a file by which its kind is recognised


def check_output(path: Path, ours: Callable[[Path], bool], *inputs: Path | None) -> None:
    """Raise BocError unless ``path`` can be written without losing data.

    The file may be missing, empty, or recognised by ``ours``. It must not be an input of the
    command (``inputs``).
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
            f"{path} exists and is another kind of file; choose another name, or delete it first",
        )


def begins(*patterns: bytes) -> Callable[[Path], bool]:
    """Return a test for ``check_output`` that accepts files that begin with the first pattern and
    contain the other patterns near the beginning."""

    def ours(path: Path) -> bool:
        try:
            with path.open("rb") as handle:
                head = handle.read(HEAD)
        except OSError:
            return False
        return head.startswith(patterns[0]) and all(pattern in head for pattern in patterns)

    return ours


def check_folder(folder: Path, names: Iterable[str], ours: Callable[[Path], bool]) -> None:
    """Raise BocError if a folder contains any of ``names``, has no lock file of a writer, and is
    not recognised by ``ours``."""
    existing = [name for name in names if (folder / name).exists()]
    if existing and not (folder / ".lock").exists() and not ours(folder):
        raise BocError(
            f"{folder} contains {existing[0]}, which boc did not create and would overwrite; "
            "choose another folder",
        )


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return one.resolve() == other.resolve()
