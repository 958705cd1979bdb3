"""Mappings, documents and queries for servers, as plain data. No request is sent here.

A document holds one item::

    id        keyword    the item's id, which breaks ties
    modality  keyword    image or text
    size      integer    number of terms
    digits    byte       number of digits of its largest frequency
    first     integer    the term of its largest frequency, if documents are sorted by it
    terms                term frequencies, in the format of a ``Strategy``
    vector               vector for re-ranking, in the format of a ``VectorField``
    concepts             binary: base64 of the rows of its concept set
    item      binary     what a hit shows of it: base64 of JSON, see ``pack_item``
    words     text       what full-text search reads: a sentence, text fields of the metadata
    meta.*               metadata, typed as the manifest declares
    content, group       in _source only
    block     binary     in documents that are no items: a block of the codec's arrays

What searches and counts alone read is left out of ``_source``, which would double it, unless the
format of the vectors needs it whole. Hits show the field ``item``: for the ``_source`` of ten hits
a server unpacks ten blocks of documents.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
from scipy import sparse

from boc.manifest import Manifest
from boc.names import RequestForm
from boc.types import FieldType, Filter, Item, Modality, StoredConcepts, TermMatrix

from .address import Address
from .binary import from_base64, raw, to_base64
from .term_fields import DIGITS, Strategy
from .transport import Json
from .vector_fields import Binary, VectorField

ITEM = ["id", "modality", "content", "group", "meta"]
HIDDEN = ["size", "digits", "first", "terms", "vector", "concepts", "item", "words", "block"]
ALL = {"enabled": True, "includes": [], "excludes": []}
LONGEST = 512  # bytes of an _id
PACKED = 32_000  # bytes of an item in its own field; Lucene takes 32,766
WINDOW = 10_000  # hits that a server ranks without paging (index.max_result_window), or re-ranks
RANKED = WINDOW + 1  # candidates: all that match are ranked by their vectors

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
    "blocks": dict.fromkeys(
        ("read_only", "read_only_allow_delete", "read", "write", "metadata"),
        False,
    ),
}
"""Settings that a template of the cluster may set otherwise: documents are stored as they were
sent, and found."""
SOURCE_ONLY: Json = {
    name: {"type": "keyword", "index": False, "doc_values": False}
    for name in ("content", "group", "array", "part", "items", "unit", "concept_dim", "by")
}
"""Fields of documents that no search reads, so that no template has them parsed, refused or
copied."""
SORTED = {"order": "asc", "missing": "_last", "mode": "min"}
WORDS: Json = {
    "type": "text",
    "analyzer": "standard",
    "search_analyzer": "standard",
    "similarity": "BM25",
}
"""The field for full-text search, by names: without them it has the default analyzer and similarity
of a template."""


@dataclass(frozen=True)
class Layout:
    """Where the fields of an item are in a document, those of boc under ``prefix``. Without one the
    document is boc's and metadata are under ``meta``; with one it belongs to another program, and
    all its other fields are metadata. Documents of other programs lack the field ``item``."""

    prefix: str = ""

    def own(self, name: str) -> str:
        """Return the path of a field of boc."""
        return f"{self.prefix}{name}"

    def meta(self, name: str) -> str:
        """Return the path of a field of the metadata."""
        return name if self.prefix else f"meta.{name}"

    @property
    def source_fields(self) -> Any:
        """What ``_source`` of a document shows of an item."""
        return {"excludes": [self.own(name) for name in HIDDEN]} if self.prefix else ITEM

    @property
    def hits(self) -> Json:
        """What a search says so that ``of_hits`` finds the items of its hits."""
        if self.prefix:
            return {"_source": self.source_fields}
        return {"_source": False, "stored_fields": "_none_", "docvalue_fields": ["item"]}

    @property
    def order(self) -> Json:
        """The order of equal scores."""
        return {self.own("id"): "asc"}

    def key(self, id: str) -> str:
        """Return the _id of an item; nothing for text that is not Unicode, and names none."""
        if id.encode(errors="ignore").decode() != id:
            return ""
        return id if self.prefix else document_id(id)

    def item(self, source: Json) -> Item:
        """Return the item of a document. KeyError for a field that is missing."""
        if not self.prefix:
            own = source
            meta = source.get("meta", {})
        else:
            own = source[OBJECT]
            meta = flat({name: value for name, value in source.items() if name != OBJECT})
        return Item(own["id"], own["modality"], own["content"], own["group"], meta)

    def of_hits(self, hits: Sequence[Json]) -> list[Item | str]:
        """Return the items of hits, or the ids of those too long for a hit. KeyError for a missing
        field."""
        if self.prefix:
            return [self.item(hit["_source"]) for hit in hits]
        rows = b",".join([from_base64(hit.get("fields", {})["item"][0]) for hit in hits])
        return [Item(*row) if len(row) > 1 else row[0] for row in orjson.loads(b"[%b]" % rows)]


def pack_item(item: Item) -> str:
    """Encode an item as its own field holds it, a list; its id alone if the whole is too long."""
    whole = orjson.dumps([item.id, item.modality, item.content, item.group, dict(item.fields)])
    return to_base64(whole if len(whole) <= PACKED else orjson.dumps([item.id]))


def flat(source: Json, path: str = "") -> Json:
    """Return the values of nested objects by their paths, as filters name them."""
    values = {}
    for name, value in source.items():
        values.update(
            flat(value, f"{path}{name}.") if isinstance(value, dict) else {f"{path}{name}": value},
        )
    return values


OBJECT = "boc"
OWN = Layout()
ATTACHED = Layout(f"{OBJECT}.")


def document_id(id: str) -> str:
    """Return the _id of an item: its id, or a digest of an id that servers do not accept."""
    data = id.encode(errors="surrogatepass")
    if id.startswith("boc:") or len(data) > LONGEST or data.decode(errors="replace") != id:
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
    order: str = "id",
) -> Json:
    """Return the body that creates an index for loading: without refresh, and usually without
    replicas.

    Documents are sorted by ``order``: equal scores by id without a sort, or the items of one term
    together.
    """
    by = ["first", "id"] if order == "term" else ["id"]
    return {
        "settings": {
            "number_of_shards": shards,
            "number_of_replicas": replicas,
            "refresh_interval": "-1",
            **OWN_SETTINGS,
            "sort.field": by,
            **{f"sort.{how}": [value] * len(by) for how, value in SORTED.items()},
            **strategy.settings,
            **vectors.settings,
        },
        "mappings": {
            "dynamic": False,
            "_source": ALL if vectors.in_source else source_without(HIDDEN),
            "_routing": {"required": False},
            "_meta": state,
            "properties": {
                **SOURCE_ONLY,
                "id": {"type": "keyword", "index": False},
                "modality": {"type": "keyword"},
                "size": {"type": "integer", "index": False},
                "digits": {"type": "byte", "index": False},
                **({"first": {"type": "integer", "index": False}} if order == "term" else {}),
                "terms": strategy.mapping,
                "vector": vectors.mapping(manifest.identity.dim),
                "concepts": {"type": "binary", "doc_values": True},
                "item": {"type": "binary", "doc_values": True},
                "words": WORDS,
                "block": {"type": "binary", "doc_values": True},
                "meta": {
                    "properties": {name: TYPES[kind] for name, kind in manifest.fields.items()},
                },
            },
        },
    }


def code_body(own: Json, alias: str, replicas: int = 0) -> Json:
    """Return the body that creates an index for the arrays of a code alone, with ``own`` as its
    ``_meta``."""
    return {
        "settings": {
            "number_of_shards": 1,
            "number_of_replicas": replicas,
            **OWN_SETTINGS,
            "sort.field": [],
        },
        "mappings": {
            "dynamic": False,
            "_source": source_without(["block"]),
            "_routing": {"required": False},
            "_meta": own,
            "properties": {**SOURCE_ONLY, "block": {"type": "binary", "doc_values": True}},
        },
        "aliases": {alias: {}},
    }


def object_mapping(strategy: Strategy, dim: int) -> Json:
    """Return the mapping of the object ``OBJECT`` in documents of another program, for vectors (n,
    ``dim``)."""
    return {
        "dynamic": False,
        "properties": {
            "id": {"type": "keyword", "index": False},
            "modality": {"type": "keyword"},
            "row": {"type": "keyword"},
            "size": {"type": "integer", "index": False},
            "digits": {"type": "byte", "index": False},
            "terms": strategy.mapping,
            "vector": Binary().mapping(dim),
        },
    }


def source_without(without: Sequence[str]) -> Json:
    """Return the setting ``_source`` of an index, all of it, so that no template of the cluster
    adds to it."""
    return {"enabled": True, "includes": ["*"], "excludes": list(without)}


def documents(
    strategy: Strategy,
    field: VectorField,
    items: Sequence[Item],
    terms: TermMatrix,
    vectors: NDArray[Any],
) -> Iterator[Json]:
    """Return the documents of items with their ``vectors``, of the dtype of the index; without
    metadata."""
    sizes = np.diff(terms.indptr).tolist()
    largest = np.maximum.reduceat(np.append(terms.data, 0), terms.indptr[:-1]) * (
        np.diff(terms.indptr) > 0
    )
    rows = zip(items, strategy.documents(terms), field.values(vectors), strict=True)
    for i, (item, features, vector) in enumerate(rows):
        document: Json = {
            "id": item.id,
            "modality": item.modality,
            "content": item.content,
            "group": item.group,
            "size": sizes[i],
            "digits": strategy.digits(int(largest[i])),
            "vector": vector,
        }
        if features:
            document["terms"] = strategy.field(features)
        yield document


def first_terms(terms: TermMatrix) -> list[int | None]:
    """Return the term of each row's largest frequency, the smaller one of several; None of a row
    without terms."""
    sizes = np.diff(terms.indptr)
    rows = np.repeat(np.arange(len(sizes)), sizes)
    best = iter(
        terms.indices[
            np.lexsort((terms.indices, -terms.data, rows))[terms.indptr[:-1][sizes > 0]]
        ].tolist(),
    )
    return [next(best) if size else None for size in sizes.tolist()]


def concepts_of(concepts: StoredConcepts, i: int) -> str:
    """Return the rows of concept set i as a binary field has them, after their scales if they are
    int8."""
    rows = slice(concepts.offsets[i], concepts.offsets[i + 1])
    scales = b"" if concepts.scales is None else raw(concepts.scales[rows])
    return to_base64(scales + raw(concepts.values[rows]))


def rerank_body(
    body: Json,
    field: VectorField,
    vector: NDArray[np.float32],
    candidates: int,
) -> Json:
    """Extend the search ``body``: the best ``candidates`` per shard are re-ranked by the products
    of their vectors.

    If ``candidates`` exceeds ``WINDOW``, all documents that match are.
    """
    unsorted = {
        name: value for name, value in body.items() if name != "sort"
    }  # a server ignores rescore beside sort
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
    """Return the search for the k best by ``query``, None for all, plus scores of ``extra``, ties
    by id."""
    conditions = [condition(f, layout) for f in filters]
    if modality is not None:
        conditions.append({"term": {layout.own("modality"): modality}})
    elif query is None:
        conditions.append({"exists": {"field": layout.own("modality")}})
    must_not = [c["bool"]["must_not"] for c in conditions if "bool" in c]
    clauses: Json = {} if query is None else {"must": [query]}
    if extra is not None:
        clauses["should"] = [extra]
    if conditions:
        clauses["filter"] = [c for c in conditions if "bool" not in c]
    if must_not:
        clauses["must_not"] = must_not
    whole = query if clauses == {"must": [query]} else {"bool": clauses}
    return {
        "query": whole,
        "size": k,
        "sort": [{"_score": "desc"}, layout.order],
        "track_total_hits": True,
    }


def condition(filter: Filter, layout: Layout = OWN) -> Json:
    """Return the filter clause for a condition on metadata."""
    name = layout.meta(filter.field)
    if filter.op in ("=", "!="):
        same: Json = {"term": {name: filter.value}}
        if filter.last is not None:
            same = {"range": {name: {"gte": filter.value, "lte": filter.last}}}
        return same if filter.op == "=" else {"bool": {"must_not": same}}
    bound = {"<": "lt", "<=": "lte", ">": "gt", ">=": "gte"}[filter.op]
    return {"range": {name: {bound: filter.value}}}


def match_body(text: str, boost: float = 1.0) -> Json:
    """Return the query for words, scored by the server's BM25."""
    return {"match": {"words": {"query": text, "boost": boost}}}


def decode_terms(
    rows_of_features: Sequence[Mapping[str, float]],
    base: int,
    n_terms: int,
) -> TermMatrix:
    """Return term frequencies from rows of {feature: value}, with digits combined."""
    rows = []
    columns = []
    values = []
    for row, features in enumerate(rows_of_features):
        for feature, value in features.items():
            number = feature[1:].rstrip(DIGITS)
            suffix = feature[1 + len(number) :]
            rows.append(row)
            columns.append(int(number))
            values.append(int(value) * base ** (DIGITS.index(suffix) + 1 if suffix else 0))
    shape = (len(rows_of_features), n_terms)
    terms = sparse.coo_array((np.array(values, np.int64), (rows, columns)), shape=shape).tocsr()
    terms.sort_indices()
    return sparse.csr_array((terms.data.astype(np.int32), terms.indices, terms.indptr), shape=shape)


def dumps(body: Json) -> bytes:
    """Write JSON bytes. float32 is written with its own digits, half as many as those of a
    float64."""
    return orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)


@dataclass(frozen=True)
class HttpRequest:
    """The search ``body`` of ``index`` at ``address``, for other programs. Secrets are named by
    their variables."""

    address: Address
    index: str
    body: Json

    @property
    def path(self) -> str:
        """The path behind the address of the server. A shard that cannot answer is an error, not a
        gap in the hits."""
        return f"{self.index}/_search?allow_partial_search_results=false"

    def render(self, form: RequestForm) -> str:
        """Return the body as JSON, or the whole request as a curl command."""
        # One entry per line: long lists of numbers would take a line per number otherwise.
        entries = [f'  "{name}": {dumps(value).decode()}' for name, value in self.body.items()]
        body = "{\n" + ",\n".join(entries) + "\n}"
        if form == "body":
            return body
        address = self.address
        words = ["curl", "-sS", "-H", "'Content-Type: application/json'"]
        if address.ca_certs is not None:
            words += ["--cacert", shlex.quote(address.ca_certs)]
        for option, value in (
            ("--cert", address.client_cert),
            ("--key", address.client_key),
            ("-x", address.proxy),
        ):
            words += [] if value is None else [option, shlex.quote(value)]
        for name, _ in address.headers:
            words += ["-H", f"""\"$(printf '%s' "$BOC_HEADERS" | grep -i '^ *{name} *:')\""""]
        if (
            not address.verify_certs and address.ssl_assert_fingerprint is None
        ):  # curl knows no fingerprints
            words.append("-k")
        if address.user is not None:
            words += ["-u", shlex.quote(f"{address.user}:") + '"$BOC_PASSWORD"']
        elif address.api_key is not None:
            words += ["-H", '"Authorization: ApiKey $BOC_API_KEY"']
        url = shlex.quote(f"{address.hosts[0]}/{self.path}")
        return f"{' '.join(words)} {url} --data-binary @- <<'END'\n{body}\nEND"
