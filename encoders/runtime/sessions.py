"""Open ONNX Runtime sessions, which run networks on the CPU without torch."""

import os
from pathlib import Path
from typing import Any

from boc.errors import EncoderError, needing

from ..networks.foreign import reading_model


def open_session(model: Path | bytes, threads: int = 0) -> Any:
    """Open a network from a file or from its bytes. ``threads`` of 0 means one thread per core.
    Raises EncoderError if ONNX Runtime is not installed or the file is damaged."""
    # With telemetry, ONNX Runtime stores a device id and contacts a server.
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    with needing("this network", "search", EncoderError):
        import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    name = "a network" if isinstance(model, bytes) else model
    with reading_model(lambda reason: f"{name}: damaged network ({reason}); recreate it"):
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
