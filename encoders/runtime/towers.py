"""Types that the networks of a model folder share, on torch and on ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence

Places = Sequence[Sequence[int]]
"""Rows of the set of each text, in ascending order."""
