"""Mappings, documents and queries for servers, as plain data. No request is sent here.

A document holds one item::

    id        keyword    the item's id, which breaks ties
    modality  keyword    image or text
    size      integer    number of terms
    digits    byte       number of digits of its largest frequency
    first     integer    the term of its largest frequency, if documents are sorted by it
    terms                term frequencies, in the format of a ``Strategy``
    vector               vector for re-ranking, in a layout of ``VECTORS``
    concepts             binary: base64 of the rows of its concept set
    words     text       what full-text search reads: a sentence, text fields of the metadata
    meta.*               metadata, typed as the manifest declares
    content, group       in _source only
    block     binary     in documents that are no items: a block of the codec's arrays

Codes, vectors and concepts are left out of ``_source``, which would double them.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
from scipy import sparse

from boc.manifest import Manifest
from boc.types import FieldType, Filter, Item, Modality, StoredConcepts, TermMatrix

from .term_fields import DIGITS, Strategy
from .transport import Json

ITEM = ["id", "modality", "content", "group", "meta"]
HIDDEN = ["first", "terms", "vector", "concepts", "block"]
LONGEST = 512  # bytes of an _id
WINDOW = 10_000  # hits that a server ranks without paging (index.max_result_window), or re-ranks

TYPES: dict[FieldType, Json] = {
    "keyword": {"type": "keyword"},
    "integer": {"type": "long"},
    "float": {"type": "double"},
    "boolean": {"type": "boolean"},
    "date": {"type": "date", "format": "strict_date_optional_time"},
    "text": {"type": "text", "index": False, "copy_to": "words"},
}


FLOAT16 = """
List query = params.query; BytesRef vector = doc['vector'].value; byte[] data = vector.bytes; int at = vector.offset;
double sum = 0; int n = query.size();
for (int i = 0; i < n; ++i) {
  int low = data[at]; int bits = data[at + 1] * 256 + (low & 255); at += 2;
  float value = Float.intBitsToFloat((bits & 32768) << 16 | (bits & 32767) << 13);
  sum += ((Number) query.get(i)).doubleValue() * value;
}
return sum * 5.192296858534828E33 + params.offset;
"""
"""The dot product with a float16 vector in a binary field. The bits are shifted to the exponent and fraction of a
float32, which gives numbers 2**112 times too small, also for subnormal ones; the last line corrects this. There is no
branch: half of all signs are negative, so that a processor would guess every second one wrong."""
FLOAT32 = """
List query = params.query; BytesRef vector = doc['vector'].value; byte[] data = vector.bytes; int at = vector.offset;
double sum = 0; int n = query.size();
for (int i = 0; i < n; ++i) {
  int a = data[at]; int b = data[at + 1]; int c = data[at + 2]; int d = data[at + 3]; at += 4;
  int bits = (d << 24) | ((c & 255) << 16) | ((b & 255) << 8) | (a & 255);
  sum += ((Number) query.get(i)).doubleValue() * Float.intBitsToFloat(bits);
}
return sum + params.offset;
"""
DENSE = "dotProduct(params.query, 'vector') + params.offset"
READ_DENSE = """
float[] vector = doc['vector'].vectorValue; List found = new ArrayList();
for (float value : vector) { found.add(value); }
return found;
"""
"""The components of a dense_vector, as a copy: the server reuses its array for the next document."""
SLACK = 1.01
"""A norm that no unit vector reaches. Scores must not be negative, so this times the norm of the query is added."""
VECTORS = ("binary", "float", "bfloat16")
"""Layouts of the vectors for re-ranking. binary: the bytes of float16 or float32, exact, on every server. float:
Elasticsearch's dense_vector, twice the size of float16 but scored by compiled code. bfloat16: the same in 16 bits, 8
of which are significant."""


@dataclass(frozen=True)
class Layout:
    """Where the fields of an item are in a document, those of boc under ``prefix``. Without one the document is boc's
    and metadata are under ``meta``; with one it belongs to another program, and all its other fields are metadata."""

    prefix: str = ""

    def own(self, name: str) -> str:
        """The path of a field of boc."""
        return f"{self.prefix}{name}"

    def meta(self, name: str) -> str:
        """The path of a field of the metadata."""
        return name if self.prefix else f"meta.{name}"

    @property
    def shown(self) -> Any:
        """What searches return of a document."""
        return {"excludes": [self.own(name) for name in HIDDEN]} if self.prefix else ITEM

    @property
    def order(self) -> Json:
        """The order of equal scores."""
        return {self.own("id"): "asc"}

    def key(self, id: str) -> str:
        """The _id of an item."""
        return id if self.prefix else document_id(id)

    def item(self, source: Json) -> Item:
        """The item of a document. KeyError for a field that is missing."""
        if not self.prefix:
            own, meta = source, source.get("meta", {})
        else:
            own, meta = source[OBJECT], flat({name: value for name, value in source.items() if name != OBJECT})
        return Item(own["id"], own["modality"], own["content"], own["group"], meta)


def flat(source: Json, path: str = "") -> Json:
    """The values of nested objects by their paths, as filters name them."""
    found = {}
    for name, value in source.items():
        found.update(flat(value, f"{path}{name}.") if isinstance(value, dict) else {f"{path}{name}": value})
    return found


OBJECT = "boc"
OWN, ATTACHED = Layout(), Layout(f"{OBJECT}.")


def document_id(id: str) -> str:
    """The _id of an item: its id, or a digest of an id that servers do not accept."""
    if id.startswith("boc:") or len(id.encode()) > LONGEST:
        return f"boc:sha256:{hashlib.sha256(id.encode()).hexdigest()}"
    return id


def index_body(
    strategy: Strategy,
    manifest: Manifest,
    vectors: str,
    state: Json,
    *,
    shards: int,
    replicas: int = 0,
    order: str = "id",
    store: str | None = None,
) -> Json:
    """The body that creates an index for loading: without refresh, and usually without replicas.

    Documents are sorted by ``order``, so that after merging equal scores are in the order of ids without a sort, or so
    that the items of one term lie together. ``store`` is how the server reads its files.
    """
    return {
        "settings": {
            "number_of_shards": shards,
            "number_of_replicas": replicas,
            "refresh_interval": "-1",
            "sort.field": ["first", "id"] if order == "term" else "id",
            **({} if store is None else {"store.type": store}),
            **strategy.settings,
        },
        "mappings": {
            "dynamic": False,
            "_source": kept(HIDDEN),
            "_meta": state,
            "properties": {
                "id": {"type": "keyword", "index": False},
                "modality": {"type": "keyword"},
                "size": {"type": "integer", "index": False},
                "digits": {"type": "byte", "index": False},
                **({"first": {"type": "integer", "index": False}} if order == "term" else {}),
                "terms": strategy.mapping,
                "vector": vector_mapping(vectors, manifest.identity.dim),
                "concepts": {"type": "binary", "doc_values": True},
                "words": {"type": "text"},
                "block": {"type": "binary", "doc_values": True},
                "meta": {"properties": {name: TYPES[kind] for name, kind in manifest.fields.items()}},
            },
        },
    }


def object_mapping(strategy: Strategy, dim: int) -> Json:
    """The mapping of the object ``OBJECT`` in a document of another program, for vectors with ``dim`` components."""
    return {
        "dynamic": False,
        "properties": {
            "id": {"type": "keyword", "index": False},
            "modality": {"type": "keyword"},
            "row": {"type": "keyword"},
            "size": {"type": "integer", "index": False},
            "digits": {"type": "byte", "index": False},
            "terms": strategy.mapping,
            "vector": vector_mapping("binary", dim),
        },
    }


def kept(without: Sequence[str]) -> Json:
    """What an index keeps of a document in ``_source``. All is said, so that no template of the cluster adds to it."""
    return {"enabled": True, "includes": ["*"], "excludes": list(without)}


def vector_mapping(layout: str, dim: int) -> Json:
    """The mapping of the field ``vector``."""
    if layout == "binary":
        return {"type": "binary", "doc_values": True}
    return {"type": "dense_vector", "dims": dim, "index": False, "element_type": layout}


def documents(strategy: Strategy, items: Sequence[Item], terms: TermMatrix, vectors: NDArray[Any]) -> Iterator[Json]:
    """The documents of items with their ``vectors`` as they are stored; without metadata."""
    sizes = np.diff(terms.indptr).tolist()
    largest = np.maximum.reduceat(np.append(terms.data, 0), terms.indptr[:-1]) * (np.diff(terms.indptr) > 0)
    for i, (item, features) in enumerate(zip(items, strategy.documents(terms), strict=True)):
        document: Json = {
            "id": item.id,
            "modality": item.modality,
            "content": item.content,
            "group": item.group,
            "size": sizes[i],
            "digits": strategy.digits(int(largest[i])),
            "vector": encoded(raw(vectors[i])),
        }
        if features:
            document["terms"] = strategy.field(features)
        yield document


def first_terms(terms: TermMatrix) -> list[int | None]:
    """The term of each row's largest frequency, the smaller one of several; None of a row without terms."""
    sizes = np.diff(terms.indptr)
    rows = np.repeat(np.arange(len(sizes)), sizes)
    best = iter(terms.indices[np.lexsort((terms.indices, -terms.data, rows))[terms.indptr[:-1][sizes > 0]]].tolist())
    return [next(best) if size else None for size in sizes.tolist()]


def is_unit(vectors: NDArray[np.float32]) -> bool:
    """Whether no vector is longer than 1, roundings apart."""
    return bool((np.einsum("ij,ij->i", vectors, vectors) < (1 + SLACK) / 2).all())


def concepts_of(concepts: StoredConcepts, i: int) -> str:
    """The rows of concept set i as a binary field has them, after their scales if they are int8."""
    rows = slice(concepts.offsets[i], concepts.offsets[i + 1])
    scales = b"" if concepts.scales is None else raw(concepts.scales[rows])
    return encoded(scales + raw(concepts.values[rows]))


def rescored(
    body: Json, vector: NDArray[np.float32], candidates: int, vectors: str, dtype: str, layout: Layout = OWN
) -> Json:
    """The search ``body``, with the best ``candidates`` per shard re-ranked by dot product + ``offset(vector)``.

    If ``candidates`` exceeds ``WINDOW``, all documents that share a term with the query are re-ranked.
    """
    source = DENSE if vectors != "binary" else FLOAT16 if dtype == "float16" else FLOAT32
    source = source.replace("'vector'", f"'{layout.own('vector')}'")
    script = {"source": source, "params": {"query": vector, "offset": offset(vector)}}
    kept = {name: value for name, value in body.items() if name != "sort"}  # a server ignores rescore beside sort
    if candidates > WINDOW:
        return {**kept, "query": {"script_score": {"query": body["query"], "script": script}}}
    again = {"script_score": {"query": {"match_all": {}}, "script": script}}
    query = {"rescore_query": again, "query_weight": 0, "rescore_query_weight": 1}
    return {**kept, "rescore": {"window_size": candidates, "query": query}}


def offset(vector: NDArray[np.float32]) -> float:
    """The number added to dot products with ``vector`` so that they are not negative."""
    return SLACK * float(np.linalg.norm(vector))


def search_body(
    query: Json,
    k: int,
    modality: Modality | None = None,
    filters: Sequence[Filter] = (),
    words: Json | None = None,
    layout: Layout = OWN,
) -> Json:
    """The search for the k best by ``query`` (plus the score of ``words``), ties by id."""
    conditions = [condition(f, layout) for f in filters]
    if modality is not None:
        conditions.append({"term": {layout.own("modality"): modality}})
    must_not = [c["bool"]["must_not"] for c in conditions if "bool" in c]
    clauses: Json = {"must": [query]}
    if words is not None:
        clauses["should"] = [words]
    if conditions:
        clauses["filter"] = [c for c in conditions if "bool" not in c]
    if must_not:
        clauses["must_not"] = must_not
    whole = query if clauses == {"must": [query]} else {"bool": clauses}
    return {"query": whole, "size": k, "sort": [{"_score": "desc"}, layout.order], "track_total_hits": True}


def condition(wanted: Filter, layout: Layout = OWN) -> Json:
    """The filter clause for a condition on metadata."""
    name = layout.meta(wanted.field)
    if wanted.op in ("=", "!="):
        same: Json = {"term": {name: wanted.value}}
        if wanted.last is not None:
            same = {"range": {name: {"gte": wanted.value, "lte": wanted.last}}}
        return same if wanted.op == "=" else {"bool": {"must_not": same}}
    bound = {"<": "lt", "<=": "lte", ">": "gt", ">=": "gte"}[wanted.op]
    return {"range": {name: {bound: wanted.value}}}


def match_body(text: str, boost: float = 1.0) -> Json:
    """The query for words, scored by the server's BM25."""
    return {"match": {"words": {"query": text, "boost": boost}}}


def strongest(features: Mapping[str, int], limit: int) -> dict[str, int]:
    """The ``limit`` features of largest weight, ties to the earlier one."""
    kept = sorted(features, key=lambda feature: -features[feature])[:limit]
    return {feature: features[feature] for feature in kept}


def decode_terms(found: Sequence[Mapping[str, float]], base: int, n_terms: int) -> TermMatrix:
    """Term frequencies from rows of {feature: value}, with digits combined."""
    rows, columns, values = [], [], []
    for row, features in enumerate(found):
        for feature, value in features.items():
            number = feature[1:].rstrip(DIGITS)
            suffix = feature[1 + len(number) :]
            rows.append(row)
            columns.append(int(number))
            values.append(int(value) * base ** (DIGITS.index(suffix) + 1 if suffix else 0))
    shape = (len(found), n_terms)
    terms = sparse.coo_array((np.array(values, np.int64), (rows, columns)), shape=shape).tocsr()
    terms.sort_indices()
    return sparse.csr_array((terms.data.astype(np.int32), terms.indices, terms.indptr), shape=shape)


def dumps(body: Json) -> bytes:
    """JSON bytes. float32 is written with its own digits, half as many as those of a float64."""
    return orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)


def raw(values: NDArray[Any]) -> bytes:
    """The bytes of an array, row by row."""
    return np.ascontiguousarray(values).tobytes()


def encoded(data: bytes) -> str:
    """Base64, the format of binary fields."""
    return base64.b64encode(data).decode("ascii")


def decoded(text: str) -> bytes:
    """The bytes of a binary field. OpenSearch answers in the URL alphabet without padding."""
    return base64.b64decode(text.replace("-", "+").replace("_", "/") + "=" * (-len(text) % 4))
