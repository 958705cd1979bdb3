"""Handle the errors that libraries raise for damaged or malicious models."""

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from boc.errors import BocError, EncoderError, check_system


@contextmanager
def reading_model(message: Callable[[str], str]) -> Iterator[None]:
    """Convert any library error to an EncoderError. ``message`` turns one line of the error into
    the text of the EncoderError.

    Library errors have no common base class; the tokenizers library even raises plain Exception.
    For a malicious file, the line names the function that the file tries to call.
    """
    try:
        yield
    except BocError:
        raise
    except Exception as error:
        stripped = [line.strip() for line in str(error).splitlines()]
        line, *more = [line for line in stripped if line] or [type(error).__name__]
        stranger = re.search(r"GLOBAL (\S+)", str(error))
        if stranger:
            line = (
                f"refused: it tries to call {stranger[1]}, which weights never need; no code was "
                "run"
            )
        elif "weights_only" in line:
            # The message from torch recommends an unsafe way of reading the file.
            line = "not a file of torch tensors"
        elif line.endswith(":"):
            line = " ".join([line, *more[:1]])[:200]
        check_system(message(line), error, EncoderError)
        raise EncoderError(message(line)) from error


def read_tensors(path: Path) -> dict[str, Any]:
    """Read a safetensors or torch file as a mapping from names to tensors on the CPU. No code in
    the file is run."""
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    import torch

    tensors: dict[str, Any] = torch.load(
        path,
        "cpu",
        weights_only=True,
    )
    return tensors


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence the transformers library, which warns about values that boc checks or sets on
    purpose."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
