"""Check rows and search requests for all back ends."""

from collections import Counter
from collections.abc import Sequence

from boc.errors import BackendError, BocError
from boc.inputs.metadata import check_filter, undeclared_field
from boc.manifest import Manifest
from boc.rerank import check_metric
from boc.types import MODALITIES, Filter, Modality, Rescore, Rows, SearchRequest
from boc.vectors import plain_rows


def check_rows(manifest: Manifest, rows: Rows, concept_dim: int | None) -> None:
    """Raise BackendError if the parts of ``rows`` have different lengths, if ids occur more than
    once, or if rows do not match the index and its ``concept_dim``."""
    items, terms, vectors, concepts = rows
    if not len(items) == terms.shape[0] == len(vectors):
        raise BackendError(
            f"{len(items)} items, {terms.shape[0]} term rows and {len(vectors)} vectors, but the "
            "numbers must be equal",
        )
    actual = terms.shape[1], vectors.shape[1]
    expected = manifest.codec["n_terms"], manifest.identity.dim
    if actual != expected:
        raise BackendError(
            f"the rows have (terms, dimension) {actual}, but the index has {expected}",
        )
    odd = undeclared_field(items, manifest.fields)
    if odd is not None:
        raise BackendError(
            f"an item has the metadata field {odd!r}, which the manifest does not declare",
        )
    ids = [item.id for item in items]
    if len(set(ids)) < len(ids):
        raise not_unique(Counter(ids).most_common(1)[0][0])
    dtype = None if concepts is None else concepts.values.dtype.name
    if dtype != manifest.concept_dtype:
        raise BackendError(
            f"concept sets of type {dtype}, but the index stores type {manifest.concept_dtype}",
        )
    if concepts is None:
        return
    if len(concepts) != len(items):
        raise BackendError(
            f"{len(items)} items and {len(concepts)} concept sets, but the numbers must be equal",
        )
    width = concepts.values.shape[1]
    if concept_dim is not None and width != concept_dim:
        raise BackendError(
            f"concepts have {width} components, but earlier concepts have {concept_dim}",
        )


def check_request(request: SearchRequest, manifest: Manifest, name: object) -> None:
    """Raise BocError if the index ``name`` cannot answer the request. The checks are identical for
    all back ends and do not access the index."""
    check_conditions(request.k, request.modality, request.filters, manifest)
    n_terms = manifest.codec["n_terms"]
    rescore = request.rescore
    n_asked = request.queries.shape[1] if request.code is None else len(request.code.centroids[-1])
    if n_asked != n_terms:
        raise BackendError(f"queries have {n_asked} terms, but the index has {n_terms}")
    if rescore is not None:
        if not rescore.plain:
            plain_rows(rescore.queries.vectors, manifest.identity.dim, "queries")
        if rescore.metric != "dot":
            _check_alignment(rescore, request.modality, manifest, name)


def check_conditions(
    k: int,
    modality: Modality | None,
    filters: Sequence[Filter],
    manifest: Manifest,
) -> None:
    """Raise BocError if an index cannot search for hits of ``modality`` under these conditions."""
    if k < 1:
        raise BackendError(f"k must be at least 1, got {k}")
    if modality is not None and modality not in MODALITIES:
        raise BackendError(f"unknown modality {modality!r}; known: {', '.join(MODALITIES)}")
    for condition in filters:
        check_filter(condition, manifest.fields)


def _check_alignment(
    rescore: Rescore,
    modality: Modality | None,
    manifest: Manifest,
    name: object,
) -> None:
    check_metric(rescore.metric)
    if manifest.concept_dtype is None:
        raise no_concepts(name)
    if rescore.queries.concepts is None:
        raise BocError(
            f"the queries have no concept sets, which {rescore.metric} compares; re-rank by dot",
        )
    if modality is None:
        raise BackendError(
            f"{rescore.metric} compares words with regions; set the modality of the hits",
        )


def no_concepts(name: object) -> BackendError:
    """Create the error for an index without concept sets."""
    return BackendError(
        f"the index {name} has no concept sets",
        "make it with <boc index --concepts float16>, or re-rank by dot",
    )


def not_unique(key: str) -> BackendError:
    """Create the error for an id that occurs more than once."""
    return BackendError(f"the id {key!r} occurs more than once; make ids unique")
