"""Errors that a user can correct: a message names the value and the rule, its hint the next step.

A hint uses the words of the command line, and marks options and commands: ``<--find>``, ``<boc copy
photos --replace>``. Python and the JSON interface each translate these marks.

>>> error = BocError("no pictures", "leave out <--ocr>, or repeat it: <boc index pets --replace>")
>>> str(error)
'no pictures; leave out ocr=, or repeat it: boc.build_index(..., replace=True)'
>>> worded(error, str)
'no pictures; leave out --ocr, or repeat it: boc index pets --replace'
"""

import errno
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

SHOWN = 3  # reasons in a message
ADVICE = {
    errno.EMFILE: "this process may open no more files; raise its limit: ulimit -n 4096",
    errno.ENFILE: "the machine has too many open files; close other programs",
    errno.ENOMEM: "memory is short; close other programs",
    errno.ENOSPC: "the disk is full; make room",
    errno.EDQUOT: "your disk quota is used up; make room",
    errno.EFBIG: "the file would exceed the limit of file sizes; raise it: ulimit -f",
    errno.EACCES: "change the permissions, or choose another place",
    errno.EPERM: "change the permissions, or choose another place",
    errno.EROFS: "the place is read-only; choose another place",
    errno.EIO: "the disk may be failing; check it",
}


def advice(error: OSError) -> str:
    """Return the next step for an error of the operating system that does not mean a damaged
    file."""
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
"""Python's words for commands, and for options with other names in Python; other commands have no
function."""


def python_words(mark: str) -> str:
    """Translate the mark of a hint into Python."""
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
    """Return the text of an error or a warning; ``words`` renders the marks of its hint."""
    if not isinstance(error, _HintedError):
        return str(error)
    message, hint = error.args
    return "; ".join(filter(None, [message, MARK.sub(lambda mark: words(mark[1]), hint)]))


class _HintedError(Exception):
    """A message, and a hint with marks."""

    def __init__(self, message: str = "", hint: str = "") -> None:
        super().__init__(message, hint)

    def __str__(self) -> str:
        return worded(self)


class BocError(_HintedError):
    """An error that the user can correct. The command line prints it as one line and exits with
    status 1.

    ``http_status`` is the status of a web service: 400 if the request is at fault, 500 and 503 if
    the service is."""

    http_status = 400


class BocWarning(_HintedError, UserWarning):  # noqa: N818
    """A warning that boc did something differently than requested; the message says how to avoid
    it."""


class CutShort(BocWarning):
    """A warning that the end of a picture file is missing; the rest was read."""


class LeftOut(BocWarning):
    """A warning of entries of ``what`` that could not be used, each with its reason; the message
    has the first few."""

    def __init__(self, what: str, reasons: Sequence[str]) -> None:
        more = "; ..." if len(reasons) > SHOWN else ""
        super().__init__(f"{what}: left out {len(reasons):,} ({'; '.join(reasons[:SHOWN])}{more})")
        self.reasons = reasons


def leave_out(what: str, reasons: Sequence[str]) -> None:
    """Warn of the entries that could not be used, if there are any."""
    if reasons:
        warnings.warn(LeftOut(what, reasons), stacklevel=3)


def note(message: str, hint: str = "", *, level: int = 2) -> None:
    """Warn with ``message``, attributed to the code ``level`` calls above the caller."""
    warnings.warn(BocWarning(message, hint), stacklevel=level + 1)


class ImageError(BocError):
    """A single image cannot be used."""


class SourceError(BocError):
    """A folder, table or feature file given as input cannot be read."""


class FeatureFileError(SourceError):
    """A feature file is damaged, foreign, or does not fit the request."""


class ManifestError(BocError):
    """The manifest of an index is damaged, or of a version that this one cannot read."""

    http_status = 503


class BackendError(BocError):
    """An engine refused a request, or lacks what it needs."""


class UnreachableError(BackendError):
    """A server gave no complete answer: no connection, no trust, a timeout, or a cut-off answer.
    The server may have executed the request. A load that this error stops can be continued later.
    ``late`` marks a timeout."""

    late = False
    http_status = 503


class EncoderError(BocError):
    """An encoder cannot be found, loaded, or trained."""

    http_status = 500


@contextmanager
def needing(what: str, extra: str, kind: type[BocError] = BocError) -> Iterator[None]:
    """Turn the error about a missing package into an error of ``kind``, which names the extra that
    ``what`` needs."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in {"boc", "encoders", "indexing"}:
            raise
        raise kind(
            f"{what} needs the package {error.name}; install it with: pip install 'boc[{extra}]'",
        ) from error


def check_system(path: object, error: BaseException, kind: type[BocError] = BocError) -> None:
    """Raise ``kind`` if ``error`` comes from the operating system, such as too many open files, and
    does not mean that ``path`` is damaged.

    Handlers that treat every other error as damage call it first.
    """
    if isinstance(error, OSError) and error.errno in ADVICE:
        raise kind(f"{path}: cannot be read ({error.strerror}); {advice(error)}") from error
