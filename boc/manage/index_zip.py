"""Write and read copies of an index as single files, which are uncompressed zip archives of the
index folder."""

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


def is_copy(path: Path) -> bool:
    """Return whether a file is a copy of an index."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith("/CURRENT") for name in archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return False


def pack(folder: Path, path: Path) -> None:
    """Write the files of the index in ``folder`` to the archive ``path``."""
    with replacing(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for file in sorted(folder.rglob("[!.]*")):
            if file.is_file():
                archive.write(file, file.relative_to(folder.parent))


@contextmanager
def unpacked(path: Path, folder: Path) -> Iterator[StoredItems]:
    """Unpack a copy into ``folder`` and open the index; the folder is removed when the block ends.
    Raises SourceError for file names or sizes that cannot occur in a copy, and ManifestError if the
    bytes of a file do not match the commit."""
    # A killed call may have left an incomplete folder.
    shutil.rmtree(folder, ignore_errors=True)
    try:
        member_name = re.compile(
            r"([a-z0-9][a-z0-9_-]{0,99})/(?:[a-z]+-[0-9a-f]+/)?[A-Za-z0-9_][\w.-]*",
            re.ASCII,
        )
        try:
            with zipfile.ZipFile(path) as archive:
                names = set()
                size = 0
                for member in archive.infolist():
                    name = member_name.fullmatch(member.filename)
                    size += member.file_size
                    if name is None or member.compress_type != zipfile.ZIP_STORED:
                        raise ValueError(
                            f"{member.filename[:60]!r} is compressed, or is not an index file",
                        )
                    names.add(name[1])
                (index,) = names
                if f"{index}/CURRENT" not in archive.namelist() or size > path.stat().st_size:
                    raise ValueError("its files do not form one index")
                archive.extractall(folder)
        except (OSError, ValueError, RuntimeError, EOFError, zipfile.BadZipFile) as error:
            check_system(path, error, SourceError)
            raise SourceError(
                f"{path}: not an index copy ({error}); copy the index again",
            ) from error
        yield StoredItems(plugins.backend(f"file:{folder}"), index)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
