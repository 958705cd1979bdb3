"""Build mappings, documents and queries for servers as plain data. This module sends no requests.

Each document contains one item::

    id        keyword    the item's id, which breaks ties
    modality  keyword    image or text
    size      integer    number of terms
    digits    byte       number of digits in its largest frequency
    first     integer    the term with its largest frequency, if documents are sorted by it
    terms                term frequencies, in the format of a ``Strategy``
    vector               vector for re-ranking, in the format of a ``VectorField``
    concepts  binary     base64 of the rows of its concept set
    item      binary     the item as shown in a hit: base64 of JSON, see ``pack_item``
    words     text       searched by full text: a sentence, or the text fields of the metadata
    meta.*               metadata, with the types declared in the manifest
    content, group       only in _source
    block     binary     in other documents: a block of the codec's arrays

Fields that are read only by searches and counts are excluded from ``_source``, because storing them
there would double their size. The exception is a vector format that needs the complete ``_source``.
Hits return the field ``item``, because to read the ``_source`` of ten hits, a server has to
decompress ten blocks of documents.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
from scipy import sparse

from boc.manifest import Manifest
from boc.paths import folded
from boc.types import (
    MODALITIES,
    FieldType,
    Filter,
    Item,
    Modality,
    StoredConcepts,
    TermMatrix,
)

from .binary import from_base64, to_base64
from .term_fields import DIGITS, Strategy
from .transport import Json
from .vector_fields import Binary, VectorField

ITEM = ["id", "modality", "content", "group", "meta"]
HIDDEN = ["size", "digits", "first", "terms", "vector", "concepts", "item", "words", "block"]
ALL = {"enabled": True, "includes": [], "excludes": []}
WINDOW = 10_000
"""Maximum number of hits that a server ranks without paging (index.max_result_window), or
re-ranks."""
RANKED = WINDOW + 1
"""Number of candidates that means that all matching items are ranked by their vectors."""

TYPES: dict[FieldType, Json] = {
    "keyword": {"type": "keyword"},
    "integer": {"type": "long"},
    "float": {"type": "double"},
    "boolean": {"type": "boolean"},
    "date": {"type": "date", "format": "strict_date_optional_time"},
    "text": {"type": "text", "index": False, "copy_to": "words"},
}


OWN_SETTINGS: Json = {
    "default_pipeline": "_none",
    "final_pipeline": "_none",
    "max_result_window": WINDOW,
    "max_rescore_window": WINDOW,
    "max_docvalue_fields_search": 100,
    "max_script_fields": 32,
    "max_terms_count": 1 << 16,
    "hidden": False,
    "auto_expand_replicas": False,
    "routing_partition_size": 1,
    "write.wait_for_active_shards": "1",
    "mapping.total_fields.limit": 1000,
    "mapping.depth.limit": 20,
    "mapping.ignore_malformed": False,
    "blocks": {
        "read_only": False,
        "read_only_allow_delete": False,
        "read": False,
        "write": False,
        "metadata": False,
    },
}
"""Settings that ensure that documents are stored as sent and can be found. They are set explicitly
because a cluster template might change them."""
SOURCE_ONLY: Json = {
    name: {"type": "keyword", "index": False, "doc_values": False}
    for name in ("content", "group", "array", "part", "items", "concept_dim", "by")
}
"""Document fields that searches do not use. They are mapped explicitly so that a template cannot
make the server parse, reject or copy them."""
BINARY: Json = {"type": "binary", "doc_values": True}
ANALYSIS: Json = {
    "analysis.char_filter.boc_letters": {
        "type": "mapping",
        "mappings": [
            f"{letter} => {folded(letter)}"
            for letter in map(
                chr,
                (0xAD, *range(0x300, 0x530), *range(0x1F00, 0x2000), 0x200C, 0x200D),
            )
            if folded(letter) != letter.lower()
        ],
    },
    "analysis.char_filter.boc_punctuation": {
        "type": "pattern_replace",
        "pattern": r"\p{P}",
        "replacement": " ",
    },
    "analysis.analyzer.boc_folded": {
        "tokenizer": "standard",
        "char_filter": ["boc_letters", "boc_punctuation"],
        "filter": ["cjk_width", "lowercase", "asciifolding"],
    },
}
"""Analyzer that folds and splits words, built from features that all servers support. The result is
almost the same as for an index in a folder. The standard filters on their own do not fold Greek,
Cyrillic or separate combining marks."""
WORDS: Json = {
    "type": "text",
    "analyzer": "boc_folded",
    "search_analyzer": "boc_folded",
    "similarity": "BM25",
}
"""Field for full-text search. The analyzer and the similarity are set explicitly because a template
may change the defaults."""


@dataclass(frozen=True)
class Layout:
    """Locations of an item's fields in a document. The fields of boc are under ``prefix``. Without
    a prefix, the document belongs to boc and the metadata are under ``meta``. With a prefix, the
    document belongs to another program, and all other fields are metadata. Documents of other
    programs do not have the field ``item``."""

    prefix: str = ""

    def own(self, name: str) -> str:
        """Return the path of a boc field."""
        return f"{self.prefix}{name}"

    def meta(self, name: str) -> str:
        """Return the path of a metadata field."""
        return name if self.prefix else f"meta.{name}"

    @property
    def source_fields(self) -> Any:
        """Return the fields of ``_source`` that describe an item."""
        if self.prefix:
            return {"excludes": [self.own(name) for name in HIDDEN]}
        return ITEM

    @property
    def hits(self) -> Json:
        """Return the search options that ``of_hits`` requires to read the items."""
        if self.prefix:
            return {"_source": self.source_fields}
        return {"_source": False, "stored_fields": "_none_", "docvalue_fields": ["item"]}

    @property
    def order(self) -> Json:
        """Return the sort order for hits with equal scores."""
        return {self.own("id"): "asc"}

    def key(self, id: str) -> str:
        """Return the _id of an item, or an empty string if the id is not valid Unicode, because
        then no document can have it."""
        if id.encode(errors="ignore").decode() != id:
            return ""
        return id if self.prefix else document_id(id)

    def item(self, source: Json) -> Item:
        """Return the item of a document. Raises KeyError for a missing field."""
        own = source
        meta = source.get("meta", {})
        if self.prefix:
            own = source[OBJECT]
            meta = flat({name: value for name, value in source.items() if name != OBJECT})
        return Item(own["id"], own["modality"], own["content"], own["group"], meta)

    def of_hits(self, hits: Sequence[Json]) -> list[Item | str]:
        """Return the items of hits, or only the id if an item is too long for the field ``item``.
        Raises KeyError for a missing field."""
        if self.prefix:
            return [self.item(hit["_source"]) for hit in hits]
        rows = b",".join([from_base64(hit.get("fields", {})["item"][0]) for hit in hits])
        return [Item(*row) if len(row) > 1 else row[0] for row in orjson.loads(b"[%b]" % rows)]


def pack_item(item: Item) -> str:
    """Encode an item as a list for the field ``item``, or encode only its id if the list is too
    long."""
    packed = orjson.dumps([item.id, item.modality, item.content, item.group, dict(item.fields)])
    # Lucene accepts up to 32,766 bytes.
    if len(packed) > 32_000:
        packed = orjson.dumps([item.id])
    return to_base64(packed)


def flat(source: Json, path: str = "") -> Json:
    """Flatten nested objects, with dotted paths as keys, as used in filters."""
    values: Json = {}
    for name, value in source.items():
        if isinstance(value, dict):
            values |= flat(value, f"{path}{name}.")
        else:
            values[f"{path}{name}"] = value
    return values


OBJECT = "boc"
OWN = Layout()
ATTACHED = Layout(f"{OBJECT}.")


def document_id(id: str) -> str:
    """Return the _id of an item, which is its id, or a digest if servers do not accept the id."""
    data = id.encode(errors="surrogatepass")
    if id.startswith("boc:") or len(data) > 512 or data.decode(errors="replace") != id:
        return f"boc:sha256:{hashlib.sha256(data).hexdigest()}"
    return id


def index_body(
    strategy: Strategy,
    manifest: Manifest,
    vectors: VectorField,
    state: Json,
    *,
    shards: int,
    replicas: int = 0,
    by_term: bool = False,
) -> Json:
    """Return the request body that creates an index for loading, without refresh and usually
    without replicas.

    Documents are sorted by id, like hits with equal scores, or with ``by_term``, so that items with
    the same term are stored together.
    """
    properties = {
        **SOURCE_ONLY,
        **item_fields(strategy, vectors, manifest.identity.dim),
        "concepts": BINARY,
        "item": BINARY,
        "words": WORDS,
        "block": BINARY,
        "meta": {"properties": {name: TYPES[kind] for name, kind in manifest.fields.items()}},
    }
    by = ["id"]
    if by_term:
        by = ["first", "id"]
        properties["first"] = unindexed("integer")
    body = empty_body(state, properties, HIDDEN, replicas)
    body["settings"] |= {
        "number_of_shards": shards,
        "refresh_interval": "-1",
        "sort.field": by,
        "sort.order": ["asc"] * len(by),
        "sort.missing": ["_last"] * len(by),
        "sort.mode": ["min"] * len(by),
        **ANALYSIS,
        **strategy.settings,
        **vectors.settings,
    }
    if vectors.in_source:
        body["mappings"]["_source"] = ALL
    return body


def code_body(own: Json, alias: str, replicas: int = 0) -> Json:
    """Return the request body that creates an index that contains only the arrays of a code, with
    ``own`` as its ``_meta``."""
    body = empty_body(own, {**SOURCE_ONLY, "block": BINARY}, ["block"], replicas)
    return {**body, "aliases": {alias: {}}}


def empty_body(own: Json, properties: Json, hidden: Sequence[str], replicas: int) -> Json:
    """Return the request body that creates an index with these ``properties``, excluding the
    ``hidden`` fields from ``_source``. All parameters of ``_source`` are set, so that cluster
    templates cannot change them."""
    return {
        "settings": {
            "number_of_shards": 1,
            "number_of_replicas": replicas,
            **OWN_SETTINGS,
            "sort.field": [],
        },
        "mappings": {
            "dynamic": False,
            "_source": {"enabled": True, "includes": ["*"], "excludes": hidden},
            "_routing": {"required": False},
            "_meta": own,
            "properties": properties,
        },
    }


def object_mapping(strategy: Strategy, dim: int) -> Json:
    """Return the mapping of the object ``OBJECT`` in documents of another program, for vectors with
    ``dim`` components."""
    fields = item_fields(strategy, Binary(), dim)
    return {"dynamic": False, "properties": {**fields, "row": {"type": "keyword"}}}


def item_fields(strategy: Strategy, vectors: VectorField, dim: int) -> Json:
    """Return the mappings of the fields that all items have, both in boc's own documents and in
    documents of other programs."""
    return {
        "id": unindexed("keyword"),
        "modality": {"type": "keyword"},
        "size": unindexed("integer"),
        "digits": unindexed("byte"),
        "terms": strategy.mapping,
        "vector": vectors.mapping(dim),
    }


def unindexed(kind: str) -> Json:
    """Return the mapping of a field that is used to count or sort, but is not searched."""
    return {"type": kind, "index": False}


def documents(
    strategy: Strategy,
    field: VectorField,
    items: Sequence[Item],
    terms: TermMatrix,
    vectors: NDArray[Any],
) -> Iterator[Json]:
    """Return the documents for items with ``vectors`` in the dtype of the index. Metadata are not
    included."""
    sizes = np.diff(terms.indptr)
    largest = np.maximum.reduceat(np.append(terms.data, 0), terms.indptr[:-1]) * (sizes > 0)
    columns = (items, sizes.tolist(), largest.tolist(), strategy.documents(terms))
    rows = zip(*columns, field.values(vectors), strict=True)
    for item, size, frequency, features, vector in rows:
        document: Json = {
            "id": item.id,
            "modality": item.modality,
            "content": item.content,
            "group": item.group,
            "size": size,
            "digits": strategy.digits(frequency),
            "vector": vector,
        }
        if features:
            document["terms"] = strategy.field(features)
        yield document


def first_terms(terms: TermMatrix) -> list[int | None]:
    """Return the term with the largest frequency in each row. If several terms have this frequency,
    return the smallest term. For rows without terms, return None."""
    sizes = np.diff(terms.indptr)
    rows = np.repeat(np.arange(len(sizes)), sizes)
    order = np.lexsort((terms.indices, -terms.data, rows))
    best = iter(terms.indices[order[terms.indptr[:-1][sizes > 0]]].tolist())
    return [next(best) if size else None for size in sizes.tolist()]


def concepts_of(concepts: StoredConcepts, i: int) -> str:
    """Return concept set i as the value of a binary field. For int8 rows, the scales are stored
    before the rows."""
    rows = slice(concepts.offsets[i], concepts.offsets[i + 1])
    scales = b"" if concepts.scales is None else concepts.scales[rows].tobytes()
    return to_base64(scales + concepts.values[rows].tobytes())


def rerank_body(
    body: Json,
    field: VectorField,
    vector: NDArray[np.float32],
    candidates: int,
) -> Json:
    """Extend the search ``body`` to re-rank the best ``candidates`` of each shard by the dot
    products of their vectors with the query.

    If ``candidates`` exceeds ``WINDOW``, all matching documents are re-ranked.
    """
    # Servers ignore rescore in sorted searches.
    unsorted = {name: value for name, value in body.items() if name != "sort"}
    if candidates > WINDOW:
        return {**unsorted, "query": field.best(body["query"], vector, body["size"])}
    again = {"script_score": {"query": {"match_all": {}}, "script": field.script(vector)}}
    query = {"rescore_query": again, "query_weight": 0, "rescore_query_weight": 1}
    return {**unsorted, "rescore": {"window_size": candidates, "query": query}}


def search_body(
    query: Json | None,
    k: int,
    modality: Modality | None = None,
    filters: Sequence[Filter] = (),
    extra: Json | None = None,
    layout: Layout = OWN,
) -> Json:
    """Return the search for the k best items for ``query`` (None matches all items). The scores of
    ``extra`` are added, and ties are sorted by id."""
    clauses: Json = {} if query is None else {"must": [query]}
    if extra is not None:
        clauses["should"] = [extra]
    only: list[Json] = []
    without: list[Json] = []
    for each in filters:
        (without if each.op == "!=" else only).append(condition(each, layout))
    if query is None:
        only.append({"exists": {"field": layout.own("modality")}})
    # A term that does not occur in any document adds no cost.
    without += [
        {"term": {layout.own("modality"): each}}
        for each in MODALITIES
        if modality is not None and each != modality
    ]
    if filters or only:
        clauses["filter"] = only
    if without:
        clauses["must_not"] = without
    return {
        "query": query if clauses == {"must": [query]} else {"bool": clauses},
        "size": k,
        "sort": [{"_score": "desc"}, layout.order],
        "track_total_hits": True,
    }


def condition(filter: Filter, layout: Layout) -> Json:
    """Return the clause for a metadata condition. For ``!=``, return the clause that must not
    match."""
    name = layout.meta(filter.field)
    if filter.ids:
        return {"ids": {"values": [*map(layout.key, filter.ids)]}}
    if filter.others:
        some = [condition(each, layout) for each in filter.alternatives]
        return {"bool": {"should": some, "minimum_should_match": 1}}
    if filter.op not in ("=", "!="):
        bound = {"<": "lt", "<=": "lte", ">": "gt", ">=": "gte"}[filter.op]
        return {"range": {name: {bound: filter.value}}}
    if filter.last is not None:
        return {"range": {name: {"gte": filter.value, "lte": filter.last}}}
    return {"term": {name: filter.value}}


def decode_terms(
    rows_of_features: Sequence[Mapping[str, float]],
    base: int,
    n_terms: int,
) -> TermMatrix:
    """Decode term frequencies from rows of {feature: value}, combining the digits."""
    power = {"": 1} | {suffix: base ** (i + 1) for i, suffix in enumerate(DIGITS)}
    rows = []
    columns = []
    values = []
    for row, features in enumerate(rows_of_features):
        for feature, value in features.items():
            number = feature[1:].rstrip(DIGITS)
            rows.append(row)
            columns.append(int(number))
            values.append(int(value) * power[feature[1 + len(number) :]])
    shape = (len(rows_of_features), n_terms)
    terms = sparse.csr_array((np.array(values, np.int64), (rows, columns)), shape=shape)
    terms.sort_indices()
    return terms.astype(np.int32)


def dumps(body: Json) -> bytes:
    """Encode JSON. float32 numbers are written with only the digits that float32 needs, about half
    as many as for float64."""
    return orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)


def printed(body: Json) -> str:
    """Return a search body as JSON with one entry per line, instead of one line for each number in
    a long list."""
    entries = [f'  "{name}": {dumps(value).decode()}' for name, value in body.items()]
    return "{\n" + ",\n".join(entries) + "\n}"
