"""Read the contents of an index on a server, which are items with their vectors, concept sets and
terms, and the arrays of the code."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boc.errors import BackendError
from boc.manifest import Manifest
from boc.types import Item, Modality, StoredConcepts, TermMatrix
from boc.vectors import batches

from .._validate import no_concepts
from . import requests
from .aliases import WITH_CODE, Generation
from .binary import from_base64
from .searches import PAGE, Searches, scan, stored_arrays
from .term_fields import SAFE
from .transport import Json, RefusedError, Transport

BATCH = 64
"""Number of fields per request."""
PARTS = {"terms": "postings", "vector": "vectors", "concepts": "concepts"}
"""Part of the index to which each field belongs."""


class Contents:
    """Read the contents of a generation of an index. Thread-safe."""

    def __init__(self, transport: Transport, generation: Generation) -> None:
        self.manifest: Manifest = generation.manifest
        self.generation = generation
        self._transport = transport
        self._strategy = generation.strategy
        self._layout = generation.layout
        self._target = generation.target
        self._vectors = generation.vectors
        self._n_terms = int(generation.manifest.codec["n_terms"])
        physical = generation.physical if generation.narrowed else None
        # Items that have lost their code are never returned as hits.
        only = WITH_CODE if generation.lost and not generation.state.attached else ()
        self._searches = Searches(transport, self._target, self._layout, physical, only=only)

    @property
    def exact_vectors(self) -> bool:
        return self._vectors.exact

    @property
    def searches_words(self) -> bool:
        return not self._layout.prefix

    @property
    def is_unfinished(self) -> bool:
        return self.generation.state.state == "editing"

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of the codec. Raises ManifestError if they do not match the
        manifest."""
        where = self.generation.physical
        blocks = self.generation.state.blocks
        described = self.manifest.arrays
        try:
            arrays = stored_arrays(self._transport, where, blocks, described)
        except RefusedError as error:
            if error.status != 403:
                raise
            where = self.generation.alias
            arrays = stored_arrays(self._transport, where, blocks, described)
            if len(arrays) < len(described):
                raise BackendError(
                    f"the filter of the alias {where} hides the code, and this user may not "
                    "read the index under another "
                    'name; let the filter also pass {"exists": {"field": "block"}}',
                ) from None
        self.manifest.check_arrays(arrays, where=f"{self._transport.label}: {where}")
        return arrays

    def vectors(self, ids: Sequence[str]) -> NDArray[np.floating[Any]]:
        hits = self._searches.hits_of(ids, self._vectors.hit_fields)
        if not hits:
            return np.empty((0, self.manifest.identity.dim), self.manifest.vector_floats)
        rows = [self._vectors.value(hit) for hit in hits]
        if not all(rows):
            raise BackendError(
                f"{self._transport.label}: {self.generation.name} contains a document without a "
                "vector",
                "check the index with <boc verify>",
            )
        return self._vectors.decode(rows)

    def concepts(self, ids: Sequence[str]) -> StoredConcepts:
        dtype = self.manifest.concept_dtype
        width = self.generation.state.concept_dim or 0
        if dtype is None:
            raise no_concepts(self.generation.name)
        path = self._layout.own("concepts")
        hits = self._searches.hits_of(ids, {"_source": False, "docvalue_fields": [path]})
        rows = []
        for hit in hits:
            values = hit.get("fields", {}).get(path)
            rows.append(from_base64(values[0]) if values else b"")
        # In each set, the float32 scales are stored before the int8 rows; float16 rows have no
        # scales.
        scale = 4 if dtype == "int8" else 0
        size = max(1, scale + width * np.dtype(dtype).itemsize)
        heads = [scale * (len(row) // size) for row in rows]
        values = b"".join(row[head:] for row, head in zip(rows, heads, strict=True))
        scales = b"".join(row[:head] for row, head in zip(rows, heads, strict=True))
        offsets = np.cumsum([0, *(len(row) // size for row in rows)], dtype=np.int64)
        return StoredConcepts(
            np.frombuffer(values, dtype).reshape(offsets[-1], width),
            offsets,
            np.frombuffer(scales, np.float32) if scale else None,
        )

    def items(self) -> Iterator[Item]:
        query = {"exists": {"field": self._layout.own("modality")}}
        body = {
            "query": query,
            "sort": [self._layout.order],
            "_source": self._layout.source_fields,
        }
        hits = scan(self._transport, self._target, self._searches.narrow(body))
        return (self._item(hit["_source"]) for hit in hits)

    def find(self, ids: Sequence[str]) -> list[Item]:
        hits = self._searches.hits_of(ids, {"_source": self._layout.source_fields})
        return [self._item(hit["_source"]) for hit in hits]

    def sample(self, count: int, modality: Modality) -> list[str]:
        items = {"term": {self._layout.own("modality"): modality}}
        draw = {"query": items, "random_score": {"seed": 0, "field": "_seq_no"}}
        body = {
            "query": {"function_score": draw},
            "size": min(count, requests.WINDOW),
            "_source": False,
            "sort": [{"_score": "desc"}, self._layout.order],
        }
        return [hit["sort"][1] for hit in self._searches.ask(body)["hits"]["hits"]]

    def used_fields(self) -> set[str]:
        names = [name for name, kind in self.manifest.fields.items() if kind != "text"]
        used = set()
        for part in batches(names, BATCH):
            filters = {name: {"exists": {"field": self._layout.meta(name)}} for name in part}
            body = {
                "query": {"exists": {"field": self._layout.own("modality")}},
                "size": 0,
                "aggs": {"used": {"filters": {"filters": filters}}},
            }
            buckets = self._searches.ask(body)["aggregations"]["used"]["buckets"]
            used |= {name for name, bucket in buckets.items() if bucket["doc_count"]}
        return used

    def sizes(self) -> dict[str, int]:
        """Return the size of each part in bytes, or an empty mapping if this user is not allowed to
        read the statistics."""
        try:
            return self._sizes()
        except RefusedError as error:
            if error.status != 403:
                raise
            return {}

    def terms(self, ids: Sequence[str], among: Sequence[int] | None = None) -> TermMatrix:
        """Return term frequencies. They are fetched by single-term queries, several hundred at a
        time."""
        columns = range(self._n_terms) if among is None else among
        digits = self.generation.state.digits
        distinct = list(dict.fromkeys(ids))
        features_of: dict[str, dict[str, float]] = {item.id: {} for item in self.find(distinct)}
        for part in batches(columns, SAFE // digits - 1):
            clauses = []
            for feature in self._strategy.features(part, [1] * len(part), digits):
                ((kind, clause),) = self._strategy.clause(feature, 1).items()
                # The body of a term query is nested one level deeper, under the name of the field.
                named = clause[self._strategy.path] if kind == "term" else clause
                named["_name"] = feature
                clauses.append({kind: clause})
            for page in batches(distinct, PAGE):
                keys = [self._layout.key(key) for key in page]
                items = {"ids": {"values": keys}}
                body = {
                    "query": {"bool": {"should": clauses, "filter": [items]}},
                    "size": len(keys),
                    "_source": False,
                    "sort": [{"_score": "desc"}, self._layout.order],
                }
                answer = self._searches.ask(body, include_named_queries_score="true")
                for hit in answer["hits"]["hits"]:
                    features_of[hit["sort"][1]].update(hit.get("matched_queries", {}))
        rows = [features_of[key] for key in ids]
        return requests.decode_terms(rows, self._strategy.base, self._n_terms)

    def document_frequencies(self) -> NDArray[np.int64]:
        digits = self.generation.state.digits
        counts = []
        for part in batches(range(self._n_terms), SAFE):
            features = [self._strategy.features([column], [1], digits) for column in part]
            filters = {"filters": [self._strategy.query(each) for each in features]}
            body = {"size": 0, "aggs": {"n": {"filters": filters}}}
            buckets = self._searches.ask(body)["aggregations"]["n"]["buckets"]
            counts += [bucket["doc_count"] for bucket in buckets]
        return np.array(counts, np.int64)

    def damaged_files(self) -> list[str]:
        """Return an empty list, because Lucene verifies its own files."""
        return []

    def _item(self, source: Json) -> Item:
        try:
            return self._layout.item(source)
        except KeyError as missing:
            raise self._foreign(f"the document {source.get('id', source)}", missing) from None

    def _foreign(self, document: str, missing: KeyError) -> BackendError:
        name = self.generation.name
        return BackendError(
            f"{document} of {name} has no {missing}: boc did not write it; remove it from the "
            "index",
        )

    def _sizes(self) -> dict[str, int]:
        """Return the sizes in bytes of ``PARTS``, with the rest as ``other``. For an attached code,
        return only the size of the vectors, computed from their number."""
        parts = dict.fromkeys(PARTS.values(), 0)
        count = sum(self.manifest.items.values())
        parts["vectors"] = self._vectors.bytes(self.manifest.identity.dim) * count
        if self._layout.prefix:
            return parts
        index = self.generation.physical
        path = f"/{index}/_stats/segments"
        answer = self._transport.request("GET", path, include_segment_file_sizes="true")
        files = {
            suffix: int(entry["size_in_bytes"])
            for suffix, entry in answer["_all"]["primaries"]["segments"]["file_sizes"].items()
        }
        try:
            # OpenSearch does not support this analysis, and the user may not have the privilege to
            # run it.
            params: Json = {"run_expensive_tasks": "true", "timeout": 600}
            fields = self._transport.request("POST", f"/{index}/_disk_usage", **params)[index][
                "fields"
            ]
        except RefusedError:
            for suffix in ("doc", "pos", "psm", "tim", "tip", "tmd"):
                parts["postings"] += files.get(suffix, 0)
        else:
            parts = dict.fromkeys(PARTS.values(), 0)
            for path, entry in fields.items():
                part = PARTS.get(path.partition(".")[0])
                if part is not None:
                    parts[part] += int(entry["total_in_bytes"])
        return parts | {"other": max(0, sum(files.values()) - sum(parts.values()))}
