"""Errors that a user can act on: each message names the value, the rule, and what to do next."""

from __future__ import annotations

import errno

ADVICE = {
    errno.EMFILE: "this process may open no more files; raise its limit: ulimit -n 4096",
    errno.ENFILE: "the machine has too many open files; close other programs",
    errno.ENOMEM: "memory is short; close other programs",
    errno.ENOSPC: "the disk is full; make room",
    errno.EDQUOT: "your part of the disk is full; make room",
    errno.EFBIG: "the file would be larger than is allowed here (ulimit -f)",
    errno.EACCES: "this user may not; change the permissions, or take another place",
    errno.EPERM: "this user may not; change the permissions, or take another place",
    errno.EROFS: "nothing can be written there; take another place",
    errno.EIO: "the disk may be failing; check it",
}


def advice(error: OSError) -> str:
    """What to do about an error of the operating system, which is no damage of the file it was met at."""
    return ADVICE.get(error.errno or 0, "check the path, its permissions and the space there")


class BocError(Exception):
    """Anything the user can put right. The command line prints it as one line and exits with status 1."""


class BocWarning(UserWarning):
    """Something was done otherwise than asked, and how to have it as asked. The command line prints it as a note."""


class ImageError(BocError):
    """One image cannot be used; the others can."""


class SourceError(BocError):
    """A folder, table or feature file given as input cannot be read as what it should be."""


class FeatureFileError(SourceError):
    """A feature file is damaged, foreign, or does not fit the request."""


class ManifestError(BocError):
    """An index says of itself something that this version cannot serve."""


class BackendError(BocError):
    """An engine refused or lacks what was asked of it."""


class EncoderError(BocError):
    """An encoder cannot be found, loaded, or trained as asked."""


def check_system(path: object, error: BaseException, kind: type[BocError] = BocError) -> None:
    """Raise ``kind`` if ``error`` is of the operating system, such as too many open files, and no damage of ``path``.

    For handlers that take everything else for damage.
    """
    if isinstance(error, OSError) and error.errno in ADVICE:
        raise kind(f"{path}: cannot be read ({error.strerror}); {advice(error)}") from error
