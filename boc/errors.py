"""Errors that a user can correct. A message states the value and the rule, and its hint states the
next step.

Hints are written for the command line, with options and commands in angle brackets: ``<--find>``,
``<boc copy photos --replace>``. Python and the JSON API translate these marks.

>>> error = BocError("no pictures", "omit <--ocr>, or rebuild: <boc index pets --replace>")
>>> str(error)
'no pictures; omit ocr=, or rebuild: boc.build_index(..., replace=True)'
>>> worded(error, str)
'no pictures; omit --ocr, or rebuild: boc index pets --replace'
"""

import errno
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

SHOWN = 3  # maximum number of reasons in a message
ADVICE = {
    errno.EMFILE: "this process cannot open more files; raise the limit: ulimit -n 4096",
    errno.ENFILE: "the machine has too many open files; close other programs",
    errno.ENOMEM: "the system is out of memory; close other programs",
    errno.ENOSPC: "the disk is full; free some space",
    errno.EDQUOT: "your disk quota is used up; free some space",
    errno.EFBIG: "the file would exceed the file size limit; raise it: ulimit -f",
    errno.EACCES: "change the permissions, or choose another place",
    errno.EPERM: "change the permissions, or choose another place",
    errno.EROFS: "the file system is read-only; choose another place",
    errno.EIO: "the disk may be failing; check it",
}


def advice(error: OSError) -> str:
    """Return the next step for an operating-system error that does not indicate a damaged file."""
    return ADVICE.get(error.errno or 0, "check the path, its permissions and the free space")


MARK = re.compile("<((?:boc |--)[^<>]+)>")
PYTHON = {
    "--like ID": "index.searcher.search_query(Query.of(like=[ID]))",
    "--missing keep": "keep_missing=True",
    "--missing remove-many": "remove_many=True",
    "--replace": "replace=True",
    "boc add": "index.add()",
    "boc copy": "boc.copy_index()",
    "boc index": "boc.build_index()",
    "boc index --help": "boc.codecs.CODES",
    "boc info": "index.info()",
    "boc sync": "index.sync()",
    "boc verify": "index.verify()",
}
"""Python equivalents of commands, and of options whose names differ in Python. Commands that are
not listed have no equivalent."""


def python_words(mark: str) -> str:
    """Translate a mark in a hint into Python."""
    if mark in PYTHON:
        return PYTHON[mark]
    command, *options = re.split(" (?=--)", mark)
    first, *words = command.split()
    if first != "boc":
        return f"{first[2:].replace('-', '_')}={''.join(map(repr, words))}"
    function = PYTHON.get(f"boc {words[0]}")
    if function is None:
        return mark
    arguments = ["...", *map(python_words, options)]
    return f"{function[:-1]}{', '.join(arguments)})"


def worded(error: BaseException, words: Callable[[str], str] = python_words) -> str:
    """Return the text of an error or a warning. ``words`` renders the marks in its hint.

    A text of boc is one line, even if it quotes a file name that contains a line break.
    """
    if not isinstance(error, _HintedError):
        return str(error)
    message, hint = error.args
    text = "; ".join(filter(None, [message, MARK.sub(lambda mark: words(mark[1]), hint)]))
    return " ".join(text.splitlines())


class _HintedError(Exception):
    """Message with a hint that contains marks."""

    def __init__(self, message: str = "", hint: str = "") -> None:
        super().__init__(message, hint)

    def __str__(self) -> str:
        return worded(self)


class BocError(_HintedError):
    """Error that the user can correct. The command line prints the error as one line and exits with
    status 1.

    ``http_status`` is the status code with which the web service responds: 400 if the request is at
    fault, 500 or 503 if the service is at fault."""

    http_status = 400


class BocWarning(_HintedError, UserWarning):  # noqa: N818
    """Warning that boc deviated from the request; the message explains how to avoid it."""


class CutShort(BocWarning):
    """Warning that a picture file is truncated; the rest of the picture was read."""


class LeftOut(BocWarning):
    """Warning about entries of ``what`` that were skipped. The message lists the first few
    reasons."""

    def __init__(self, what: str, reasons: Sequence[str]) -> None:
        more = "; ..." if len(reasons) > SHOWN else ""
        super().__init__(f"{what}: left out {len(reasons):,} ({'; '.join(reasons[:SHOWN])}{more})")
        self.reasons = reasons


def leave_out(what: str, reasons: Sequence[str]) -> None:
    """Warn about skipped entries, if there are any."""
    if reasons:
        warnings.warn(LeftOut(what, reasons), stacklevel=3)


def note(message: str, hint: str = "", *, level: int = 2) -> None:
    """Issue a warning that points to the code ``level`` calls above the caller."""
    warnings.warn(BocWarning(message, hint), stacklevel=level + 1)


class ImageError(BocError):
    """An image cannot be used."""


class SourceError(BocError):
    """An input folder, table or feature file cannot be read."""


class FeatureFileError(SourceError):
    """A feature file is damaged, was not written by boc, or does not match the request."""


class ManifestError(BocError):
    """An index manifest is damaged, or its version is not supported."""

    http_status = 503


class BackendError(BocError):
    """An engine refused a request, or lacks a feature that the request needs."""


class UnreachableError(BackendError):
    """A server did not send a complete response, because of a connection failure, an untrusted
    certificate, a timeout, or a truncated response. The server may still have executed the request.
    A load that fails with this error can be resumed later. ``late`` is True for a timeout."""

    late = False
    http_status = 503


class EncoderError(BocError):
    """An encoder cannot be found, loaded, or trained."""

    http_status = 500


@contextmanager
def needing(what: str, extra: str, kind: type[BocError] = BocError) -> Iterator[None]:
    """Convert an ImportError to an error of type ``kind`` that names the extra that ``what``
    requires."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in {"boc", "encoders", "indexing"}:
            raise
        raise kind(
            f"{what} needs the package {error.name}; install it with: pip install 'boc[{extra}]'",
        ) from error


def check_system(path: object, error: BaseException, kind: type[BocError] = BocError) -> None:
    """Raise ``kind`` for an operating-system error that is no sign of damage to ``path``, such as
    too many open files.

    Handlers that interpret all other errors as damage call this function first.
    """
    if isinstance(error, OSError) and error.errno in ADVICE:
        raise kind(f"{path}: cannot be read ({error.strerror}); {advice(error)}") from error
