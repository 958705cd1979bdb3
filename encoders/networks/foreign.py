"""Models that others made: what their libraries raise for damaged or forged files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from boc.errors import BocError, EncoderError, check_system


@contextmanager
def reading_model(message: Callable[[str], str]) -> Iterator[None]:
    """Turn any error of a library into an EncoderError with the ``message`` for its first line.

    Their own checks are many, and no class is common to what they raise: tokenizers raises Exception itself.
    """
    try:
        yield
    except BocError:
        raise
    except Exception as error:
        line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        check_system(message(line), error, EncoderError)
        raise EncoderError(message(line)) from error
