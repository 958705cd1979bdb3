"""Copies of an index in a file: its folder, as a zip archive that is not compressed."""

from __future__ import annotations

import re
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from boc import plugins
from boc.atomic_files import replacing
from boc.errors import SourceError, check_system
from boc.manage.stored import StoredItems

SUFFIX = ".zip"
_MEMBER = re.compile(r"([a-z0-9][a-z0-9_-]{0,99})/(?:[a-z]+-[0-9a-f]+/)?[A-Za-z0-9_][\w.-]*", re.A)


def is_copy(path: Path) -> bool:
    """Return whether a file is a copy of an index."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith("/CURRENT") for name in archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return False


def pack(folder: Path, path: Path) -> None:
    """Write the files of the index in ``folder`` to the archive ``path``."""
    files = sorted(file for file in folder.rglob("[!.]*") if file.is_file())
    with replacing(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for file in files:
            archive.write(file, file.relative_to(folder.parent))


@contextmanager
def unpacked(path: Path, folder: Path) -> Iterator[StoredItems]:
    """Unpack a copy to ``folder``, and open it. SourceError for names or sizes that no copy has;
    ManifestError if the bytes of a file are not those of the commit."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            names = [_MEMBER.fullmatch(member.filename) for member in members]
            index = next((name[1] for name in names if name), "")
            packed = any(member.compress_type != zipfile.ZIP_STORED for member in members)
            size = sum(member.file_size for member in members)
            if (
                packed
                or size > path.stat().st_size
                or any(name is None or name[1] != index for name in names)
                or f"{index}/CURRENT" not in archive.namelist()
            ):
                raise ValueError("its files are not those of one index")
            archive.extractall(folder)
    except (OSError, ValueError, RuntimeError, EOFError, zipfile.BadZipFile) as error:
        check_system(path, error, SourceError)
        raise SourceError(f"{path}: no copy of an index ({error}); copy the index again") from error
    yield StoredItems(plugins.backend(f"file:{folder}"), index)
