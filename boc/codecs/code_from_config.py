"""Reconstructs the ``Code`` of a codec from the steps in a manifest, for display."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from boc.clustering.codebook import Codebook
from boc.codecs.code import CODES, Code
from boc.codecs.codec import STEPS
from boc.errors import BocError
from boc.types import Identity

# The step that distinguishes a code from those below it.
CODE_OF_STEP = {
    "WordTerms": "words",
    "LearnedTerms": "learned",
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
    "WordTerms": ("z", "query_z"),
    "LearnedTerms": ("z", "query_z"),
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
    order = [step["name"] for step in config["steps"]]
    if "TopZ" in order:
        quantised = next(step for step in CODE_OF_STEP if step in steps)
        printed = order.index(quantised) < order.index("TopZ")
        arguments["reading"] = "printed" if printed else "offset" if steps[quantised].get("offset") else "kept"
    for step, known in ARGUMENTS_OF_STEP.items():
        arguments |= {argument: steps[step][argument] for argument in known if step in steps}
    if any(params.get("drop_stopwords") for params in steps.values()):
        arguments["stopwords"] = "drop"
    try:
        code = Code(name, **{argument: value for argument, value in arguments.items() if argument in CODES[name].rules})
        made = _config_of(code, steps)
    except BocError:
        return None
    same = made["steps"] == _with_defaults(config["steps"]) and made["chains"] == config["chains"]
    return code if same else None


def _with_defaults(steps: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The steps, with the parameters that they did not have when they were written."""
    return [
        {"name": step["name"], "params": {**STEPS[step["name"]]().get_params(), **step["params"]}}
        if step["name"] in STEPS
        else dict(step)
        for step in steps
    ]


def _config_of(code: Code, steps: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The configuration of ``code`` with a codebook like that of ``steps``."""
    book = None
    if code.reads_codebook:
        params = next(
            steps[step] for step in ("SoftAssignment", "HardAssignment", "WordTerms", "LearnedTerms") if step in steps
        )
        centroids = np.zeros((params["clusters"], 1), np.float32)
        book = Codebook(centroids, Identity("", "", 1), (), {"spherical": params.get("spherical", False)}, 0, 1.0)
    return code.codec(max(code.z or 1, code.query_z or 1), book).config()
