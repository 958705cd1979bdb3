"""Errors that a user can correct: a message names the value and the rule, its hint the next step.

A hint marks options, as ``<find>`` or ``<missing keep>``, and commands, as ``<boc sync photos>``;
Python, the command line and the JSON interface word a mark each in its own way.

>>> error = BocError("no pictures", "leave out <ocr>, or repeat it: <boc index pets --replace>")
>>> str(error)
"no pictures; leave out ocr=, or repeat it: boc.build_index('pets', replace=True)"
>>> error.text(command_words)
'no pictures; leave out --ocr, or repeat it: boc index pets --replace'
"""

import errno
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

SHOWN = 3  # reasons of a message
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
    """Return the next step for an error of the operating system that is no damage of the file."""
    return ADVICE.get(error.errno or 0, "check the path, its permissions and the space there")


MARK = re.compile("<([a-z][^<>]*)>")
FUNCTIONS = {
    "add": "index.add",
    "copy": "boc.copy_index",
    "index": "boc.build_index",
    "info": "index.info",
    "search": "index.search",
    "sync": "index.sync",
    "verify": "index.verify",
}
"""Python's function for a command; the others have none."""
PYTHON = {
    "boc index --help": "boc.codecs.CODES",
    "like ID": "index.searcher.search_query(Query.of(like=[ID]))",
    "missing keep": "keep_missing=True",
    "missing remove-many": "remove_many=True",
    "replace": "replace=True",
}
"""Python's words for other marks, where these are not the name of an argument."""


def command_words(mark: str) -> str:
    """Word the mark of a hint as the command line does."""
    return mark if mark.startswith("boc ") else f"--{mark}"


def python_words(mark: str) -> str:
    """Word the mark of a hint as Python does."""
    if mark in PYTHON:
        return PYTHON[mark]
    if not mark.startswith("boc "):
        return _argument(mark)
    command, *options = mark.split(" --")
    _, name, *words = command.split()
    if name not in FUNCTIONS:
        return mark
    if FUNCTIONS[name].startswith("index."):
        del words[:1]  # the index is no argument of its methods
    arguments = [*map(repr, words)]
    if options and not words:
        arguments = ["..."]
    arguments += [_argument(option, "True") for option in options]
    return f"{FUNCTIONS[name]}({', '.join(arguments)})"


def _argument(option: str, value: str = "") -> str:
    name, _, text = option.partition(" ")
    if text:
        value = repr(text)
    return f"{name.replace('-', '_')}={value}"


class _HintedError(Exception):
    """A message, and a hint with marks."""

    def __init__(self, message: str = "", hint: str = "") -> None:
        super().__init__(message, hint)
        self.message = message
        self.hint = hint

    def text(self, words: Callable[[str], str] = python_words) -> str:
        """Return the message with the hint, whose marks ``words`` renders."""
        hint = MARK.sub(lambda mark: words(mark[1]), self.hint)
        return f"{self.message}; {hint}" if hint else self.message

    def __str__(self) -> str:
        return self.text()


class BocError(_HintedError):
    """An error that the user can correct. The command line prints it as one line and exits with
    status 1.

    ``http_status`` is that of a web service: 400 if the request is at fault, 500 and 503 if the
    service is.
    """

    http_status = 400


class BocWarning(_HintedError, UserWarning):  # noqa: N818
    """Something was done differently than requested; the message says how to avoid it."""


class LeftOut(BocWarning):
    """Entries of ``what`` that could not be used, each with its reason; the message has the first
    few."""

    def __init__(self, what: str, reasons: Sequence[str]) -> None:
        more = "; ..." if len(reasons) > SHOWN else ""
        super().__init__(f"{what}: left out {len(reasons):,} ({'; '.join(reasons[:SHOWN])}{more})")
        self.reasons = reasons


def leave_out(what: str, reasons: Sequence[str]) -> None:
    """Warn of entries that could not be used, if there are any."""
    if reasons:
        warnings.warn(LeftOut(what, reasons), stacklevel=3)


def note(message: str, hint: str = "", *, level: int = 2) -> None:
    """Warn of ``message``, as of the code ``level`` calls above the caller."""
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
    """No complete answer of a server: no connection, no trust, a timeout, or a cut-off answer. The
    server may have executed the request. A load that stops here can be continued later. ``late``
    marks a timeout."""

    late = False
    http_status = 503


class EncoderError(BocError):
    """An encoder cannot be found, loaded, or trained."""

    http_status = 500


@contextmanager
def needing(what: str, extra: str, kind: type[BocError] = BocError) -> Iterator[None]:
    """Turn the error about a package that is missing into ``kind``, which names the extra to
    install for ``what``."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in {"boc", "encoders", "indexing"}:
            raise
        raise kind(
            f"{what} needs the package {error.name}; install it with: pip install 'boc[{extra}]'",
        ) from error


def check_system(path: object, error: BaseException, kind: type[BocError] = BocError) -> None:
    """Raise ``kind`` if ``error`` is of the operating system, such as too many open files, and no
    damage of ``path``.

    For handlers that treat every other error as damage.
    """
    if isinstance(error, OSError) and error.errno in ADVICE:
        raise kind(f"{path}: cannot be read ({error.strerror}); {advice(error)}") from error
