"""Vector indexes of servers: types, mappings and queries as plain data."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from bench.race.data import Data, K
from boc.types import Item
from indexing.server.binary import to_base64
from indexing.server.transport import Json, Transport

HNSW = {
    "elasticsearch": ("hnsw", "int8_hnsw", "int4_hnsw", "bbq_hnsw"),
    "opensearch": ("fp32", "sq", "byte"),
}
EFS = (10, 15, 20, 25, 30, 40, 50, 75, 100, 200)
STORED = {"byte": np.dtype(np.int8)}  # all other types store float32


def hnsw_index(engine: str, kind: str, dim: int) -> Json:
    """Return the body that creates an index of documents with an indexed vector."""
    properties = {
        "id": {"type": "keyword", "index": False},
        "modality": {"type": "keyword"},
        "words": {"type": "text"},
        "vector": hnsw_field(engine, kind, dim),
    }
    settings: Json = {
        "number_of_shards": 1,
        "number_of_replicas": 0,
        "refresh_interval": "-1",
        "sort.field": "id",
    }
    mapping: Json = {"dynamic": False, "properties": properties}
    if engine == "opensearch":
        settings["knn"] = True  # this setting excludes vectors from _source
    else:
        mapping["_source"] = {"excludes": ["words", "vector"]}
    return {"settings": settings, "mappings": mapping}


def hnsw_field(engine: str, kind: str, dim: int) -> Json:
    """Return the mapping of a vector that the server indexes by HNSW."""
    if engine == "elasticsearch":
        graph = {
            "type": "dense_vector",
            "index": True,
            "similarity": "dot_product",
            "index_options": {"type": kind},
        }
        return {**graph, "dims": dim}
    encoder = {"parameters": {"encoder": {"name": "sq"}}} if kind == "sq" else {}
    method = {"name": "hnsw", "engine": "lucene", "space_type": "innerproduct", **encoder}
    kinds = {"data_type": "byte"} if kind == "byte" else {}
    return {"type": "knn_vector", "dimension": dim, "method": method, **kinds}


def hnsw_query(engine: str, vector: Any, ef: int) -> Json:
    """Return the query for the K nearest of ``ef`` candidates. In Elasticsearch, the top-level
    section ``knn`` would run as a separate phase before the query, which is slower."""
    if engine == "elasticsearch":
        return {
            "query": {
                "knn": {"field": "vector", "query_vector": vector, "k": K, "num_candidates": ef},
            },
        }
    return {
        "query": {
            "knn": {"vector": {"vector": vector, "k": K, "method_parameters": {"ef_search": ef}}},
        },
    }


def hnsw_document(item: Item, vector: Any, **fields: int) -> bytes:
    """Return the document of an item as JSON."""
    shown = {"id": item.id, "modality": item.modality, "content": item.content, "group": item.group}
    document = {**shown, "words": item.content, "vector": vector, **fields}
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)


def settle(transport: Transport, name: str) -> None:
    """Merge a loaded index into one segment, and wait until the merge has finished."""
    for step in ("_refresh", "_forcemerge?max_num_segments=1", "_refresh", "_flush"):
        transport.request("POST", f"/{name}/{step}", timeout=3600)


def scale_of(data: Data) -> float:
    """Return one scale for all vectors, derived from their largest component."""
    return 127 / max(float(np.abs(block).max()) for _, block in data.blocks())


def quantise(vectors: NDArray[np.float32], scale: float) -> NDArray[np.int8]:
    """Return vectors as integers with an absolute value of at most 127."""
    rounded = np.rint(vectors * scale)
    whole: NDArray[np.int8] = np.clip(rounded, -127, 127).astype(np.int8)
    return whole


def list_form(vector: NDArray[Any]) -> Any:
    """Return a vector as a list of numbers for JSON."""
    return vector


def base64_form(vector: NDArray[Any]) -> str:
    """Return a vector as text, which new server versions parse faster than numbers."""
    return to_base64(vector.astype(">f4").tobytes())
