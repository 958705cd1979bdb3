"""Report the facts about an index: its contents, and how it was built."""

from __future__ import annotations

from typing import Any

from boc.codecs import code_of
from boc.plan import usual_way
from boc.plugins import Engine


def index_facts(index: Engine) -> dict[str, Any]:
    """Return the facts about an index, for use by programs and web pages.

    ``items`` maps each modality to the number of its items. ``code`` is the name of the code, or
    None if the code has no name; ``steps`` lists the steps of the code; ``terms`` and ``postings``
    are the numbers of terms and postings. ``dimensions`` is the width of the vectors, and
    ``vectors`` is their type; ``rounded`` is True if the stored vectors are rounded, and
    ``offsets`` is True if the vectors include offsets that correct for hubs. ``concepts`` is the
    type of the concept sets. ``fields`` maps the metadata fields to their types. ``rerank`` and
    ``rm`` are the search defaults, ``plan`` is the plan of a vector search without filters
    (``boc.plan.Way``), and ``recall`` is the target recall. ``bytes`` maps the parts of the index
    to their sizes. ``encoder`` is the encoder, and ``weights`` is the SHA-256 of its weights.
    ``created``, ``maker`` and ``format`` are the values in the manifest.
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
