"""Errors that a user can act on: each message names the value, the rule, and what to do next."""

from __future__ import annotations


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
