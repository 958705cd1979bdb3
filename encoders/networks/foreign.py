"""Handle the errors that libraries raise for damaged or forged models."""

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from boc.errors import BocError, EncoderError, check_system


@contextmanager
def reading_model(message: Callable[[str], str]) -> Iterator[None]:
    """Convert any library error to an EncoderError, whose text ``message`` makes from one line of
    the error.

    Library errors have no common class; tokenizers even raises Exception itself. For a hostile
    file, the line names the function that the file tries to call.
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
                f"refused: it wants to call {stranger[1]}, which no weights need; nothing of it "
                "was run"
            )
        elif "weights_only" in line:
            # Torch's own message advises to read the file unsafely.
            line = "no file of torch's tensors"
        elif line.endswith(":"):
            line = " ".join([line, *more[:1]])[:200]
        check_system(message(line), error, EncoderError)
        raise EncoderError(message(line)) from error


def read_tensors(path: Path) -> dict[str, Any]:
    """Read tensors by name, on the CPU, from a file of safetensors or of torch. No code in the file
    is run."""
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
    """Silence the transformers library, whose warnings concern values that boc checks or
    intends."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
