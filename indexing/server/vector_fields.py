"""Define field types that store vectors on a server for re-ranking, and searches that rank items by
vectors."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boc.errors import BackendError
from boc.vectors import Floats, unit_rows

from .binary import from_base64, to_base64
from .transport import Json

FLOAT16 = """
List query = params.query; BytesRef vector = doc['vector'].value;
byte[] data = vector.bytes; int at = vector.offset;
double sum = 0; int n = query.size();
for (int i = 0; i < n; ++i) {
  int low = data[at]; int bits = data[at + 1] * 256 + (low & 255); at += 2;
  float value = Float.intBitsToFloat((bits & 32768) << 16 | (bits & 32767) << 13);
  sum += ((Number) query.get(i)).doubleValue() * value;
}
sum *= 5.192296858534828E33;
return sum < 0 ? 1 / (1 - sum) : sum + 1;
"""
"""Script that computes the dot product with a float16 vector in a binary field. The bits are
shifted to the exponent and fraction of a float32. The resulting numbers, including subnormal
numbers, are 2**112 times too small, which is corrected by a factor. The loop does not branch on the
sign, because half of the signs are negative and the processor would mispredict half of the
branches."""
FLOAT32 = """
List query = params.query; BytesRef vector = doc['vector'].value;
byte[] data = vector.bytes; int at = vector.offset;
double sum = 0; int n = query.size();
for (int i = 0; i < n; ++i) {
  int a = data[at]; int b = data[at + 1]; int c = data[at + 2]; int d = data[at + 3]; at += 4;
  int bits = (d << 24) | ((c & 255) << 16) | ((b & 255) << 8) | (a & 255);
  sum += ((Number) query.get(i)).doubleValue() * Float.intBitsToFloat(bits);
}
return sum < 0 ? 1 / (1 - sum) : sum + 1;
"""
COSINE = "(1 + cosineSimilarity(params.query, 'vector')) / 2"
"""Script that computes the cosine, shifted to non-negative scores as in the similarity
``cosine``."""
PRODUCT = """
double product = dotProduct(params.query, 'vector');
return product < 0 ? 1 / (1 - product) : product + 1;
"""
"""Script that computes the dot product, mapped to positive scores as in the similarity
``max_inner_product``."""
READ_DENSE = """
float[] vector = doc['vector'].vectorValue; List values = new ArrayList();
for (float value : vector) { values.add(value); }
return values;
"""
"""Script that returns a copy of the components of a dense_vector, because the server reuses the
array for the next document."""
LARGEST = 127
"""Maximum component of a byte vector."""


class VectorField(ABC):
    """Storage of item vectors in a document field.

    ``path`` is the name of the field, and ``dtype`` is the type of the input vectors, float16 or
    float32. ``exact`` is true if vectors are read back unchanged.
    """

    name: str
    exact = True
    path = "vector"
    dtype = "float16"
    unit = False
    """Whether the field accepts only vectors of length 1."""
    in_source = False
    """Whether _source must be complete because the field is read from _source."""
    quick = 1 << 22
    """Number of vector components that a server compares in about the time it needs to find and
    re-rank candidates."""
    unscored = 1.0
    """Maximum number of components that a server compares in less time than it needs to find
    candidates by terms, as a multiple of ``quick``."""

    def at(self, path: str, dtype: str) -> VectorField:
        """Return the same format for a field with another name and vectors of ``dtype``."""
        other = copy(self)
        other.path = path
        other.dtype = dtype
        return other

    @abstractmethod
    def mapping(self, dim: int) -> Json:
        """Return the mapping of the field."""

    @property
    def settings(self) -> Json:
        """Return the index settings that the field requires."""
        return {}

    def check(self, vectors: Floats) -> None:
        """Raise BackendError if the field cannot store all ``vectors`` (n, d)."""
        lengths = np.linalg.norm(vectors, axis=1)
        if self.unit and (wrong := lengths[np.abs(lengths - 1) > 0.01]).size:
            raise BackendError(
                f"?vectors={self.name} stores vectors of length 1, got one of length "
                f"{wrong[0]:.3g}; leave it out of the address",
            )

    @abstractmethod
    def values(self, vectors: NDArray[Any]) -> Iterator[Any]:
        """Return the field value for each of the ``vectors`` (n, d), which have type ``dtype``."""

    def bytes(self, dim: int) -> int:
        """Return the number of bytes that a vector with ``dim`` components takes on the server."""
        return dim * np.dtype(self.dtype).itemsize

    @abstractmethod
    def script(self, query: Floats) -> Json:
        """Return the script that scores a document by its dot product with a query (d,)."""

    def best(self, matching: Json, query: Floats, k: int) -> Json:
        """Return the query that finds the best k documents, ranked by their vectors, among all
        documents that match ``matching``."""
        return {"script_score": {"query": matching, "script": self.script(query)}}

    def products(self, scores: Sequence[float], query: Floats) -> list[float]:
        """Return the dot products with ``query`` that correspond to scores of ``script`` or
        ``best``."""
        # Servers require positive scores.
        return [score - 1 if score >= 1 else 1 - 1 / score for score in scores]

    @property
    def hit_fields(self) -> Json:
        """Return the search options that limit hits to the values of the field."""
        return {"_source": False, "stored_fields": "_none_", "docvalue_fields": [self.path]}

    def value(self, hit: Json) -> list[Any]:
        """Return the field values of a hit, or an empty list if the hit does not have the field."""
        values: list[Any] = hit.get("fields", {}).get(self.path, [])
        return values

    @abstractmethod
    def decode(self, rows: Sequence[Sequence[Any]]) -> NDArray[np.floating[Any]]:
        """Decode the values of n hits as vectors (n, d) of type ``dtype``."""

    def _source(self, script: str) -> str:
        return script.replace("'vector'", f"'{self.path}'")


class Binary(VectorField):
    """Vectors stored as bytes in binary doc values and scored exactly by a script. Supported by all
    servers."""

    name = "binary"
    quick = 1 << 20

    def mapping(self, dim: int) -> Json:
        return {"type": "binary", "doc_values": True}

    def values(self, vectors: NDArray[Any]) -> Iterator[str]:
        return (to_base64(vector.tobytes()) for vector in vectors)

    def script(self, query: Floats) -> Json:
        source = FLOAT16 if self.dtype == "float16" else FLOAT32
        return {"source": self._source(source), "params": {"query": query}}

    def decode(self, rows: Sequence[Sequence[Any]]) -> NDArray[np.floating[Any]]:
        data = b"".join([from_base64(row[0]) for row in rows])
        return np.frombuffer(data, self.dtype).reshape(len(rows), -1)


class Dense(VectorField):
    """Base class for Elasticsearch's dense_vector formats without a graph index."""

    def mapping(self, dim: int) -> Json:
        return {
            "type": "dense_vector",
            "dims": dim,
            "index": True,
            "index_options": {"type": "flat"},
        }

    def best(self, matching: Json, query: Floats, k: int) -> Json:
        # Lucene scans only the documents that pass a filter if their number is at most the number
        # of candidates, and the whole index otherwise. A knn query accepts at most 10,000
        # candidates.
        return {
            "knn": {
                "field": self.path,
                "query_vector": next(self.values(query[None])),
                "filter": matching,
                "k": k,
                "num_candidates": 10_000,
            },
        }

    @property
    def hit_fields(self) -> Json:
        script = {"source": self._source(READ_DENSE)}
        fields = {self.path: {"script": script}}
        return {"_source": False, "stored_fields": "_none_", "script_fields": fields}


class Float(VectorField):
    """Vectors stored as float32. They are exact and are compared by compiled code. Posting lists
    are read without scores."""

    name = "float"
    unscored = math.inf

    def bytes(self, dim: int) -> int:
        return 4 * dim

    def values(self, vectors: NDArray[Any]) -> Iterator[Floats]:
        # orjson writes only contiguous rows.
        return iter(np.ascontiguousarray(vectors, np.float32))

    def decode(self, rows: Sequence[Sequence[Any]]) -> NDArray[np.floating[Any]]:
        return np.array(_components(rows), self.dtype)


class DenseFloat(Float, Dense):
    """Vectors stored as float32 in Elasticsearch's dense_vector."""

    def mapping(self, dim: int) -> Json:
        return {**super().mapping(dim), "similarity": "max_inner_product"}

    def script(self, query: Floats) -> Json:
        return {"source": self._source(PRODUCT), "params": {"query": query}}


class DenseHalf(DenseFloat):
    """Vectors stored as bfloat16, with 8 bits of precision, in half the space."""

    name = "bfloat16"
    exact = False

    def mapping(self, dim: int) -> Json:
        return {**super().mapping(dim), "element_type": "bfloat16"}

    def bytes(self, dim: int) -> int:
        return 2 * dim


class _Byte(VectorField):
    """One byte per component. Each vector is scaled so that its largest absolute component is 127.

    The server compares vectors by cosine, so the scale factors are not stored. This requires
    vectors of length 1.
    """

    name = "byte"
    exact = False
    unit = True

    def bytes(self, dim: int) -> int:
        return dim

    def decode(self, rows: Sequence[Sequence[Any]]) -> NDArray[np.floating[Any]]:
        return unit_rows(np.array(_components(rows), np.float32)).astype(self.dtype)


class DenseByte(_Byte, Dense):
    """One byte per component in Elasticsearch's dense_vector."""

    def mapping(self, dim: int) -> Json:
        return {**super().mapping(dim), "element_type": "byte", "similarity": "cosine"}

    def values(self, vectors: NDArray[Any]) -> Iterator[str]:
        return (row.tobytes().hex() for row in quantise(vectors).astype(np.int8))

    def script(self, query: Floats) -> Json:
        return {"source": self._source(COSINE), "params": {"query": quantise(query[None])[0]}}

    def products(self, scores: Sequence[float], query: Floats) -> list[float]:
        length = _length(query)
        return [(2 * score - 1) * length for score in scores]


class Knn(VectorField):
    """Base class for OpenSearch's knn_vector formats without a graph index.

    The server adds vectors to _source when it is read, without storing them there. If fields are
    excluded from _source, the server stores the vectors twice.
    """

    in_source = True
    space: str

    def mapping(self, dim: int) -> Json:
        # No graph is built with this method, because a script specifies the comparison.
        method = {"name": "hnsw", "engine": "faiss", "space_type": "innerproduct"}
        return {"type": "knn_vector", "dimension": dim, "method": method}

    @property
    def settings(self) -> Json:
        # No graph is built.
        return {"knn": True, "knn.advanced.approximate_threshold": -1}

    def script(self, query: Floats) -> Json:
        params = {
            "field": self.path,
            "query_value": next(self.values(query[None])),
            "space_type": self.space,
        }
        return {"lang": "knn", "source": "knn_score", "params": params}

    @property
    def hit_fields(self) -> Json:
        return {"_source": [self.path]}

    def value(self, hit: Json) -> list[Any]:
        values: list[Any] = hit.get("_source", {}).get(self.path, [])
        return values


class KnnFloat(Float, Knn):
    """Vectors stored as float32 in OpenSearch's knn_vector."""

    space = "innerproduct"


class KnnByte(_Byte, Knn):
    """One byte per component in OpenSearch's knn_vector. Scores are 1 + cosine."""

    space = "cosinesimil"

    def mapping(self, dim: int) -> Json:
        # The method does not support the cosine for bytes.
        return {**super().mapping(dim), "data_type": "byte"}

    def values(self, vectors: NDArray[Any]) -> Iterator[NDArray[np.int32]]:
        return iter(quantise(vectors))

    def products(self, scores: Sequence[float], query: Floats) -> list[float]:
        length = _length(query)
        return [(score - 1) * length for score in scores]


def _components(rows: Sequence[Sequence[Any]]) -> list[Any]:
    """Return the components of each row. Scripts return them either as a single value or as several
    values."""
    return [row[0] if isinstance(row[0], list) else row for row in rows]


def quantise(vectors: NDArray[Any]) -> NDArray[np.int32]:
    """Scale vectors (n, d) so that the largest absolute component of each is 127, and round to
    integers."""
    values = vectors.astype(np.float32)
    largest = np.abs(values).max(axis=1, keepdims=True)
    whole: Floats = values * (LARGEST / np.maximum(largest, np.finfo(np.float32).tiny))
    # orjson writes only contiguous rows.
    return np.rint(whole).astype(np.int32, order="C")


VECTOR_FIELDS: dict[str, VectorField] = {
    "binary": Binary(),
    "float": DenseFloat(),
    "knn_float": KnnFloat(),
    "bfloat16": DenseHalf(),
    "byte": KnnByte(),
    "dense_byte": DenseByte(),
}
"""Vector fields, keyed by the names stored in indexes."""


def fields_for(vectors: str | None, engine: str) -> list[str]:
    """Return the names in ``VECTOR_FIELDS`` that ``?vectors=`` selects for an engine. Without the
    option, return all candidates, fastest first."""
    own = {"float": "knn_float"}
    if engine == "elasticsearch":
        own = {"byte": "dense_byte"}
    names = ["float", "binary"] if vectors is None else [vectors]
    return [own.get(name, name) for name in names]


def _length(vector: Floats) -> float:
    """Return the norm of a vector. For a single vector, this is several times as fast as NumPy's
    own function."""
    # Use float64, because the square of a tiny number is 0 in float32.
    wide = vector.astype(np.float64)
    return math.sqrt(wide.dot(wide))
