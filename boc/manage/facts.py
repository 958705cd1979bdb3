"""Facts about an index: its contents, and how it was made."""

from __future__ import annotations

from typing import Any

from boc.codecs import code_of
from boc.plan import usual_way
from boc.plugins import Engine


def index_facts(index: Engine) -> dict[str, Any]:
    """Return the facts of an index as values for programs and pages.

    ``items`` are the numbers of items by modality. ``code`` is the name of the code, or None if it
    has no name; ``steps`` are its steps; ``terms`` and ``postings`` are the numbers of its terms
    and of its postings. ``dimensions`` is the width of the vectors and ``vectors`` their type;
    ``rounded`` is True if they are stored rounded, ``offsets`` if they include offsets that correct
    hubs. ``concepts`` is the type of the concept sets. ``fields`` are the metadata fields with
    their types. ``rerank`` and ``rm`` are the defaults of a search, ``plan`` is the plan of a
    vector search without filters (``boc.plan.Way``), and ``recall`` the target recall. ``bytes``
    are the sizes of the parts. ``encoder`` is the encoder and ``weights`` the SHA-256 of its
    weights. ``created``, ``maker`` and ``format`` are as in the manifest.
    """
    manifest = index.manifest
    code = code_of(manifest.codec)
    steps = []
    for step in manifest.codec["steps"]:
        chosen = (f"{key}={value}" for key, value in step["params"].items() if value is not None)
        steps.append(f"{step['name']}({', '.join(chosen)})")
    return {
        "items": dict(manifest.items),
        "code": code and str(code),
        "steps": steps,
        "terms": manifest.codec["n_terms"],
        "postings": manifest.postings,
        "dimensions": manifest.identity.dim,
        "offsets": manifest.identity.has_offsets,
        "vectors": manifest.vector_dtype,
        "rounded": not index.exact_vectors,
        "concepts": manifest.concept_dtype,
        "fields": dict(manifest.fields),
        "rerank": manifest.rerank,
        "rm": manifest.rm,
        "plan": usual_way(index),
        "recall": dict(manifest.recall),
        "bytes": index.sizes(),
        "encoder": manifest.identity.spec,
        "weights": manifest.identity.digest,
        "created": manifest.created,
        "maker": manifest.maker,
        "format": manifest.format,
    }
