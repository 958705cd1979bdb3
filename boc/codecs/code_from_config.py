"""Reconstructs the ``Code`` of a codec from the steps in a manifest, for display."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from boc.clustering.codebook import Codebook
from boc.codecs.code import CODES, Code
from boc.errors import BocError
from boc.types import Identity

# The step that distinguishes a code from those below it.
CODE_OF_STEP = {
    "Dictionary": "dictionary",
    "SoftAssignment": "soft",
    "HardAssignment": "hard",
    "LateInteraction": "late",
    "BitQuantizer": "bits",
    "DeepPermutation": "permutation",
    "ScalarQuantizer": "scalar",
}
# Parameters of steps that are arguments of the code. Of mixed, z and query_z are those of the step below.
ARGUMENTS_OF_STEP = {
    "RandomRotation": ("seed", "expand"),
    "TopZ": ("z", "query_z"),
    "BitQuantizer": ("bits",),
    "Dictionary": ("z", "query_z", "terms", "seed"),
    "SoftAssignment": ("z", "query_z", "similarity", "aggregate"),
    "LateInteraction": ("terms", "density", "seed"),
}


def code_of(config: Mapping[str, Any]) -> Code | None:
    """The code whose codec has this configuration, with its budgets and without its codebook file.

    ``config`` is what ``SurrogateCodec.config`` gives and a manifest keeps. None if no code has exactly these steps.
    """
    steps = {step["name"]: step["params"] for step in config["steps"]}
    name = next((name for step, name in CODE_OF_STEP.items() if step in steps), None)
    if name == "dictionary" and "SoftAssignment" in steps:
        name = "mixed"
    if name is None:
        return None
    arguments: dict[str, Any] = {
        "plain": not {"Center", "RandomRotation"} & set(steps),
        "shift": "ShiftedCReLU" in steps,
    }
    for step, known in ARGUMENTS_OF_STEP.items():
        arguments |= {argument: steps[step][argument] for argument in known if step in steps}
    if any(params.get("drop_stopwords") for params in steps.values()):
        arguments["stopwords"] = "drop"
    try:
        code = Code(name, **{argument: value for argument, value in arguments.items() if argument in CODES[name].rules})
        made = _config_of(code, steps)
    except BocError:
        return None
    return code if all(made[part] == config[part] for part in ("steps", "chains")) else None


def _config_of(code: Code, steps: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The configuration of ``code`` with a codebook like that of ``steps``."""
    book = None
    if code.reads_codebook:
        params = steps.get("SoftAssignment") or steps["HardAssignment"]
        centroids = np.zeros((params["clusters"], 1), np.float32)
        book = Codebook(centroids, Identity("", "", 1), (), {"spherical": params["spherical"]}, 0, 1.0)
    return code.codec(max(code.z or 1, code.query_z or 1), book).config()
