"""What an index holds and how it was made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from boc.codecs import code_of
from boc.plan import usual_way

if TYPE_CHECKING:
    from boc.plugins import Engine


def index_facts(index: Engine) -> dict[str, Any]:
    """Return the facts of an index as values for programs and pages.

    ``items`` by modality; ``code``, None if the code has no name, its ``steps``, the number of its
    ``terms`` and ``postings``; ``dimensions``, ``vectors`` (their type), ``rounded`` if they are
    stored rounded, whether they hold ``offsets`` that correct hubs, ``concepts`` (the type of
    concept sets); metadata ``fields`` with their types; ``rerank``, ``rm``, the ``plan`` of a
    search by vectors without filters (``boc.plan.Way``) and the promised ``recall``; ``bytes`` by
    part; ``encoder``, the SHA-256 of its ``weights``; ``created``, ``maker``, ``format``."""
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
