"""Choose the device for networks. Torch takes several seconds to import, so only functions that
need torch import it."""

import ctypes
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from boc.errors import EncoderError, needing
from boc.types import Runtime


def runs_onnx(runtime: Runtime) -> bool:
    """Return whether ONNX networks, if available, satisfy ``runtime``."""
    return runtime.device in ("auto", "cpu") and runtime.precision == "float32"


def import_for_torch(name: str) -> ModuleType:
    """Import a module of this folder that needs torch. Raises EncoderError if a package is missing;
    the message explains how to install the package."""
    with needing(
        "without usable ONNX networks, this model",
        "encoders",
        EncoderError,
    ):
        return import_module(f".{name}", __package__)


def has_cuda() -> bool:
    """Return whether torch is installed and this machine has a CUDA driver, without importing
    torch."""
    if find_spec("torch") is None:
        return False
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def pick(device: str) -> str:
    """Return ``cpu`` or ``cuda``; ``auto`` means CUDA if it works. Raises EncoderError for an
    unknown name or an unavailable device."""
    import torch

    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device not in {"cpu", "cuda"}:
        raise EncoderError(f"no device {device!r}; known: auto, cpu, cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise EncoderError("no CUDA device is available", "use <--device cpu>")
    return device


def fast_bfloat16(device: str) -> bool:
    """Return whether bfloat16 matrix products are much faster than float32, as on CUDA cards and on
    CPUs with AMX."""
    import torch

    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    capabilities: dict[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capabilities.get("amx_bf16"))
