"""The device that networks run on."""

from __future__ import annotations

import torch

from boc.errors import EncoderError


def pick(device: str) -> str:
    """``cpu`` or ``cuda``; ``auto`` is CUDA if it works. EncoderError for another name or a missing device."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device not in {"cpu", "cuda"}:
        raise EncoderError(f"no device {device!r}; known: auto, cpu, cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise EncoderError("no CUDA device works here; use --device cpu")
    return device


def fast_bfloat16(device: str) -> bool:
    """Return whether matrix products in bfloat16 are much faster than in float32: CUDA cards, and CPUs with AMX."""
    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    capabilities: dict[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capabilities.get("amx_bf16"))
