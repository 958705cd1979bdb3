"""What an index holds and how it was made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from boc.codecs import code_of
from boc.errors import BackendError
from boc.manage.budgets import has_drifted
from boc.manage.shared_terms import term_faults
from boc.plan import usual_way

if TYPE_CHECKING:
    from boc.plugins import Engine


SAMPLE = 100  # items of each modality whose terms are looked at


def index_facts(index: Engine) -> dict[str, Any]:
    """Return the facts of an index as values for programs and pages.

    ``items`` by modality; ``code``, None if the code has no name, its ``steps``, the number of its
    ``terms`` and ``postings``, what is wrong with them (``faults``); ``dimensions``, ``vectors``
    (their type), ``rounded`` if they are stored rounded, ``concepts`` (that of concept sets);
    metadata ``fields`` with their types; ``rerank``, ``rm``, the ``plan`` of a search by vectors
    without filters (``boc.plan.Way``) and the promised ``recall``,
    ``drifted`` if its items are unlike those that its dictionary was learned from; ``bytes`` by
    part; ``encoder``, the SHA-256 of its ``weights``; ``created``, ``maker``, ``format``.
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
        "faults": term_faults(index, SAMPLE),
        "postings": manifest.postings,
        "dimensions": manifest.identity.dim,
        "vectors": manifest.vector_dtype,
        "rounded": not index.exact_vectors,
        "concepts": manifest.concept_dtype,
        "fields": dict(manifest.fields),
        "rerank": manifest.rerank,
        "rm": manifest.rm,
        "plan": usual_way(index),
        "recall": dict(manifest.recall),
        "drifted": has_drifted(index),
        "bytes": index.sizes(),
        "encoder": manifest.identity.spec,
        "weights": manifest.identity.digest,
        "created": manifest.created,
        "maker": manifest.maker,
        "format": manifest.format,
    }


def planned_sizes(index: Engine, items: int) -> dict[str, int]:
    """Return the bytes by part that ``items`` like those of ``index`` take with its code.

    ``code`` are the arrays of the code, which do not grow; all else grows with the number of items.
    """
    code = sum(array.nbytes for array in index.arrays().values())
    measured = dict(index.sizes())
    if not measured:
        raise BackendError(
            "the server does not tell this user the size of the index; ask for the right monitor "
            "on it",
        )
    code = min(code, measured.get("other", 0))
    measured["other"] = measured.get("other", 0) - code
    count = max(1, sum(index.manifest.items.values()))
    return {part: round(size * items / count) for part, size in measured.items()} | {"code": code}
