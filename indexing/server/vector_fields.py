"""Field types that store vectors on a server for re-ranking, and the searches that rank items by
them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boc.errors import BackendError
from boc.vectors import unit_rows

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
"""The dot product with a float16 vector in a binary field. The bits are shifted to the exponent and
fraction of a float32, which gives numbers 2**112 times too small, also for subnormal ones; a factor
corrects this. The loop has no branch: half of all signs are negative, so that a processor would
guess every second one wrong."""
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
"""The cosine as the similarity ``cosine`` turns it into a score that is not negative."""
PRODUCT = """
double product = dotProduct(params.query, 'vector');
return product < 0 ? 1 / (1 - product) : product + 1;
"""
"""The product as the similarity ``max_inner_product`` turns it into a positive score."""
READ_DENSE = """
float[] vector = doc['vector'].vectorValue; List values = new ArrayList();
for (float value : vector) { values.add(value); }
return values;
"""
"""The components of a dense_vector, as a copy: the server reuses its array for the next
document."""
LARGEST = 127
"""The largest component of a byte vector."""


class VectorField(ABC):
    """A way to store the vectors of items in one field of their documents.

    ``path`` is the name of the field, ``dtype`` that of the vectors as they are given: float16 or
    float32. ``exact`` tells whether they are read back as they were given.
    """

    name: str
    exact = True
    path = "vector"
    dtype = "float16"
    unit = False
    """Whether it stores vectors of length 1 only."""
    in_source = False
    """Whether _source has to be whole, since the field is read from there."""
    quick = 1 << 22
    """Components that a server compares about as quickly as it finds and re-ranks candidates."""
    unscored = 1.0
    """How many times as many it compares more quickly than it chooses candidates by their terms."""

    def at(self, path: str, dtype: str) -> VectorField:
        """Return the same format for a field of another name, of vectors of ``dtype``."""
        other = copy(self)
        other.path = path
        other.dtype = dtype
        return other

    @abstractmethod
    def mapping(self, dim: int) -> Json:
        """Return the mapping of the field."""

    @property
    def settings(self) -> Json:
        """The index settings that the field needs."""
        return {}

    def check(self, vectors: NDArray[np.float32]) -> None:
        """Raise BackendError if the field cannot hold one of ``vectors`` (n, d)."""
        lengths = np.linalg.norm(vectors, axis=1)
        if self.unit and (wrong := lengths[np.abs(lengths - 1) > 0.01]).size:
            raise BackendError(
                f"?vectors={self.name} stores vectors of length 1, got one of length "
                f"{wrong[0]:.3g}; leave it out of "
                "the address",
            )

    @abstractmethod
    def values(self, vectors: NDArray[Any]) -> Iterator[Any]:
        """Return the value of the field for each of ``vectors`` (n, d) of ``dtype``."""

    def bytes(self, dim: int) -> int:
        """Return the bytes of a vector with ``dim`` components on the server."""
        return dim * np.dtype(self.dtype).itemsize

    @abstractmethod
    def script(self, query: NDArray[np.float32]) -> Json:
        """Return the script that scores a document by its product with a query (d,)."""

    def best(self, matching: Json, query: NDArray[np.float32], k: int) -> Json:
        """Return the query that ranks all documents of the query ``matching`` by their vectors, for
        the best k."""
        return {"script_score": {"query": matching, "script": self.script(query)}}

    def products(self, scores: Sequence[float], query: NDArray[np.float32]) -> list[float]:
        """Return the dot products with ``query`` for scores of ``script`` or ``best``."""
        # The scores of a server are positive.
        return [score - 1 if score >= 1 else 1 - 1 / score for score in scores]

    @property
    def hit_fields(self) -> Json:
        """What a search says so that its hits have the values of the field, and nothing else."""
        return {"_source": False, "stored_fields": "_none_", "docvalue_fields": [self.path]}

    def value(self, hit: Json) -> list[Any]:
        """Return the values of a hit, none if it lacks the field."""
        values: list[Any] = hit.get("fields", {}).get(self.path, [])
        return values

    @abstractmethod
    def decode(self, rows: Sequence[Sequence[Any]]) -> NDArray[np.floating[Any]]:
        """Return the vectors (n, d) of ``dtype`` from the values of n hits."""

    def _source(self, script: str) -> str:
        return script.replace("'vector'", f"'{self.path}'")


class Binary(VectorField):
    """The bytes of the vectors in binary doc values, scored by a script: exact, on every server."""

    name = "binary"
    quick = 1 << 20

    def mapping(self, dim: int) -> Json:
        return {"type": "binary", "doc_values": True}

    def values(self, vectors: NDArray[Any]) -> Iterator[str]:
        return (to_base64(vector.tobytes()) for vector in vectors)

    def script(self, query: NDArray[np.float32]) -> Json:
        source = FLOAT16 if self.dtype == "float16" else FLOAT32
        return {"source": self._source(source), "params": {"query": query}}

    def decode(self, rows: Sequence[Sequence[Any]]) -> NDArray[np.floating[Any]]:
        data = b"".join([from_base64(row[0]) for row in rows])
        return np.frombuffer(data, self.dtype).reshape(len(rows), -1)


class Dense(VectorField):
    """A format of Elasticsearch's dense_vector, without a graph."""

    def mapping(self, dim: int) -> Json:
        return {
            "type": "dense_vector",
            "dims": dim,
            "index": True,
            "index_options": {"type": "flat"},
        }

    def best(self, matching: Json, query: NDArray[np.float32], k: int) -> Json:
        # Lucene walks through the documents of a filter up to so many candidates, above through all
        # of the index.
        # A knn query takes 10,000 candidates at most.
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
    """Components of float32: exact, and compared in compiled code. A posting list takes no
    scores."""

    name = "float"
    unscored = math.inf

    def bytes(self, dim: int) -> int:
        return 4 * dim

    def values(self, vectors: NDArray[Any]) -> Iterator[NDArray[np.float32]]:
        # orjson writes contiguous rows only.
        return iter(np.ascontiguousarray(vectors, np.float32))

    def decode(self, rows: Sequence[Sequence[Any]]) -> NDArray[np.floating[Any]]:
        return np.array(_components(rows), self.dtype)


class DenseFloat(Float, Dense):
    """In Elasticsearch's dense_vector."""

    def mapping(self, dim: int) -> Json:
        return {**super().mapping(dim), "similarity": "max_inner_product"}

    def script(self, query: NDArray[np.float32]) -> Json:
        return {"source": self._source(PRODUCT), "params": {"query": query}}


class DenseHalf(DenseFloat):
    """Components of bfloat16, 8 bits of precision: half the bytes."""

    name = "bfloat16"
    exact = False

    def mapping(self, dim: int) -> Json:
        return {**super().mapping(dim), "element_type": "bfloat16"}

    def bytes(self, dim: int) -> int:
        return 2 * dim


class _Byte(VectorField):
    """A byte per component: each vector is divided by its largest component, times 127.

    The server compares by the cosine, so the factors need not be kept; that takes vectors of length
    1.
    """

    name = "byte"
    exact = False
    unit = True

    def bytes(self, dim: int) -> int:
        return dim

    def decode(self, rows: Sequence[Sequence[Any]]) -> NDArray[np.floating[Any]]:
        return unit_rows(np.array(_components(rows), np.float32)).astype(self.dtype)


class DenseByte(_Byte, Dense):
    """In Elasticsearch's dense_vector."""

    def mapping(self, dim: int) -> Json:
        return {**super().mapping(dim), "element_type": "byte", "similarity": "cosine"}

    def values(self, vectors: NDArray[Any]) -> Iterator[str]:
        return (row.tobytes().hex() for row in quantise(vectors).astype(np.int8))

    def script(self, query: NDArray[np.float32]) -> Json:
        return {"source": self._source(COSINE), "params": {"query": quantise(query[None])[0]}}

    def products(self, scores: Sequence[float], query: NDArray[np.float32]) -> list[float]:
        length = _length(query)
        return [(2 * score - 1) * length for score in scores]


class Knn(VectorField):
    """A format of OpenSearch's knn_vector, without a graph.

    The server adds vectors to _source without storing them there; a _source with exclusions it
    keeps twice.
    """

    in_source = True
    space: str

    def mapping(self, dim: int) -> Json:
        # The method makes nothing here: a script says by what it compares.
        method = {"name": "hnsw", "engine": "faiss", "space_type": "innerproduct"}
        return {"type": "knn_vector", "dimension": dim, "method": method}

    @property
    def settings(self) -> Json:
        # No graph is made.
        return {"knn": True, "knn.advanced.approximate_threshold": -1}

    def script(self, query: NDArray[np.float32]) -> Json:
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
    """In OpenSearch's knn_vector."""

    space = "innerproduct"


class KnnByte(_Byte, Knn):
    """A byte per component. Scores are 1 + cosine."""

    space = "cosinesimil"

    def mapping(self, dim: int) -> Json:
        # The method takes no cosine for bytes.
        return {**super().mapping(dim), "data_type": "byte"}

    def values(self, vectors: NDArray[Any]) -> Iterator[NDArray[np.int32]]:
        return iter(quantise(vectors))

    def products(self, scores: Sequence[float], query: NDArray[np.float32]) -> list[float]:
        length = _length(query)
        return [(score - 1) * length for score in scores]


def _components(rows: Sequence[Sequence[Any]]) -> list[Any]:
    """Return the components of each row, which a script gives as one value or as several."""
    return [row[0] if isinstance(row[0], list) else row for row in rows]


def quantise(vectors: NDArray[Any]) -> NDArray[np.int32]:
    """Return vectors (n, d) divided by their largest components, times 127, rounded."""
    values = vectors.astype(np.float32)
    largest = np.abs(values).max(axis=1, keepdims=True)
    whole: NDArray[np.float32] = values * (LARGEST / np.maximum(largest, np.finfo(np.float32).tiny))
    # orjson writes contiguous rows only.
    return np.rint(whole).astype(np.int32, order="C")


VECTOR_FIELDS: dict[str, VectorField] = {
    "binary": Binary(),
    "float": DenseFloat(),
    "knn_float": KnnFloat(),
    "bfloat16": DenseHalf(),
    "byte": KnnByte(),
    "dense_byte": DenseByte(),
}
"""By the names that indexes remember."""


def fields_for(vectors: str | None, engine: str) -> list[str]:
    """Return the names in ``VECTOR_FIELDS`` of what ``?vectors=`` means on an engine; without it,
    the fastest first."""
    own = {"float": "knn_float"}
    if engine == "elasticsearch":
        own = {"byte": "dense_byte"}
    names = ["float", "binary"] if vectors is None else [vectors]
    return [own.get(name, name) for name in names]


def _length(vector: NDArray[np.float32]) -> float:
    """Return the norm of a vector; for one, numpy's own function takes several times as long."""
    # The square of a tiny number is 0 in float32.
    wide = vector.astype(np.float64)
    return math.sqrt(wide.dot(wide))
