"""Search templates: the search of an index stored on its server, so that a client sends only what varies.

A template belongs to one generation of an index: it has its name, and is removed with it. So it is never used with
terms of another code. The servers write them in mustache; lists end in an element that changes nothing, since mustache
does not know the last one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boc.errors import BackendError
from boc.types import Filter, Modality

from . import requests
from .aliases import Generation
from .transport import Json, RefusedError, Transport
from .vector_fields import SLACK, VectorField, offset

K = 10  # hits, unless ``k`` is given
MARK = "@{}@"
"""A value that is replaced by the parameter of this name."""


def written(generation: Generation) -> str:
    """The search of an index as mustache, with the parameters of ``parameters``."""
    layout = generation.layout
    marks = {name: MARK.format(name) for name in ("query", "k", "vector", "offset", "candidates", "filters")}
    body: Json = {
        "query": {"bool": {"must": [marks["query"]], "filter": [marks["filters"], {"match_all": {}}]}},
        "size": marks["k"],
        "_source": layout.shown,
        "track_total_hits": True,
    }
    script = generation.vectors.script(marks["vector"], marks["offset"])
    body = requests.rescored(body, script, marks["candidates"])
    most = min(requests.WINDOW, math.ceil(generation.manifest.rm * K))
    modality = requests.dumps({"term": {layout.own("modality"): "{{modality}}"}}).decode()
    values = {
        "query": generation.strategy.template(),
        "k": _or("k", K),
        "vector": "{{#toJson}}vector{{/toJson}}",
        "offset": _or("offset", SLACK),
        "candidates": _or("candidates", most),
        "filters": "{{#modality}}" + modality + ",{{/modality}}{{#filters}}{{#toJson}}.{{/toJson}},{{/filters}}",
    }
    text = requests.dumps(body).decode()
    for name, value in values.items():
        comma = "," if name == "filters" else ""
        text = text.replace(f'"{marks[name]}"{comma}', value)
    return text


def _or(name: str, default: float) -> str:
    """The parameter ``name``, a number, or its default."""
    return f"{{{{{name}}}}}{{{{^{name}}}}}{default}{{{{/{name}}}}}"


def parameters(
    features: Mapping[str, int],
    field: VectorField,
    vector: NDArray[np.float32],
    k: int,
    candidates: int,
    modality: Modality | None,
    filters: Sequence[Filter],
    layout: requests.Layout,
) -> Json:
    """What a client sends. BackendError for more ``candidates`` than a server re-ranks at a time."""
    if candidates > requests.WINDOW:
        raise BackendError(
            f"a template re-ranks at most {requests.WINDOW} candidates, got {candidates}; lower --rm, or leave out "
            "--template"
        )
    found: Json = {
        "terms": [{"term": feature, "weight": weight} for feature, weight in features.items()],
        "vector": field.asked(vector),
        "offset": offset(vector),
        "k": k,
        "candidates": candidates,
        "filters": [requests.condition(each, layout) for each in filters],
    }
    return found if modality is None else {**found, "modality": modality}


def store(transport: Transport, generation: Generation) -> None:
    """Store the template of an index. BackendError if the server has no templates."""
    script = {"lang": "mustache", "source": written(generation)}
    try:
        transport.request("PUT", f"/_scripts/{generation.physical}", {"script": script})
    except RefusedError as error:
        if "mustache" not in f"{error.kind} {error.reason}":
            raise
        raise BackendError(
            f"{transport.shown} has no search templates, which are of its module lang-mustache; boc query without "
            "--template prints the whole request"
        ) from None


def call(generation: Generation, params: Json) -> dict[str, Any]:
    """The body of the call of a stored template. BackendError if there is none."""
    if not generation.state.template:
        raise BackendError(
            f"no search template of {generation.name} is stored; store it with boc query {generation.name} --store"
        )
    return {"id": generation.physical, "params": params}
