"""Where tensors are computed."""

from __future__ import annotations

import torch

from boc.errors import EncoderError


def pick(device: str) -> str:
    """``cpu`` or ``cuda``; ``auto`` is CUDA where it works. EncoderError for another name or an absent device."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device not in {"cpu", "cuda"}:
        raise EncoderError(f"no device {device!r}; known: auto, cpu, cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise EncoderError("no CUDA device works here; use --device cpu")
    return device
