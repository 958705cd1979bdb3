"""Data types that the whole library shares."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, overload

import numpy as np

from boc.errors import BocError
from boc.names import MODALITIES as MODALITIES, Metric, Modality as Modality
from boc.paths import forms, path_of, system_path
from boc.vectors import Array, Floats, Ints, batches

if TYPE_CHECKING:
    from scipy import sparse


BLOCK = 4096  # items per block
WIDEST = 1 << 24  # maximum dimension of a vector
ID = "_id"  # the field name in filters by item id; metadata fields cannot have this name
FOR_PROGRAMS = frozenset({"modified_ns", "changed_ns", "inode", "device_number", "content_hash"})
"""Metadata fields that are used to detect changed files and are not shown to users."""

TermMatrix: TypeAlias = "sparse.csr_array"
"""Term frequencies (n, V), int32, with one column per term; indices are sorted, and all stored
values are at least 1."""


@dataclass(slots=True, unsafe_hash=True)  # a frozen dataclass takes twice as long to create
class Item:
    """Picture or sentence in an index.

    ``content`` is the sentence itself or the path of the picture. ``group`` is the id of the
    picture to which the item belongs: for a picture, its own id; for a caption, the id of the
    described picture; for other sentences, an empty string. ``fields`` contains the metadata: a
    value, or a list of values, for each field. The index's manifest declares the fields.
    """

    id: str
    modality: Modality
    content: str
    group: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def path(self) -> Path:
        """Return the path of the picture file. ``content`` is the same path as text."""
        return path_of(self.content)


@dataclass(slots=True, unsafe_hash=True, repr=False)
class Hit:
    """Item with its score for a query; higher is better.

    ``duplicates`` lists the ids of near-duplicates that are grouped under the hit.

    Examples
    --------
    >>> hit = Hit(Item("1.jpg", "image", "/dogs/1.jpg", fields={"width": 640}), 0.31)
    >>> hit
    Hit(id='1.jpg', score=0.31, path='/dogs/1.jpg', fields={'width': 640})
    >>> hit.fields["width"]
    640
    """

    item: Item
    score: float
    duplicates: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """Return the item's id."""
        return self.item.id

    @property
    def path(self) -> str | None:
        """Return the path of a picture. Return None for a sentence, a vector, or a picture that was
        added from memory."""
        item = self.item
        # For a picture without a file, the content is the id.
        if item.modality == "text" or (item.content == item.id and item.content[:1] != "/"):
            return None
        return system_path(item.content)

    @property
    def fields(self) -> Mapping[str, Any]:
        """Return the item's metadata."""
        return self.item.fields

    def to_dict(self) -> dict[str, Any]:
        """Return the hit as a dictionary of JSON values: id, modality, score, content, and, if
        present, duplicates and fields."""
        item = self.item
        values = {
            "id": item.id,
            "modality": item.modality,
            "score": self.score,
            "content": item.content,
        }
        if self.duplicates:
            values["duplicates"] = list(self.duplicates)
        if item.fields:
            values["fields"] = dict(item.fields)
        return values

    def __repr__(self) -> str:
        values = self.to_dict()
        content = values.pop("content")
        shown = {
            name: value
            for name, value in values.pop("fields", {}).items()
            if name not in FOR_PROGRAMS
        }
        parts = {
            "id": values.pop("id"),
            "score": values.pop("score"),
            "path": self.path,
            "text": content if values.pop("modality") == "text" else None,
            "fields": shown or None,
            **values,
        }
        known = (f"{name}={value!r}" for name, value in parts.items() if value is not None)
        return f"Hit({', '.join(known)})"


@dataclass(frozen=True)
class Ragged:
    """Sets of row vectors stored flat: set i is ``values[offsets[i]:offsets[i + 1]]``.

    ``values`` is float32 (N, d), and ``offsets`` is int64 (n + 1,), ascending from 0 to N.
    """

    values: Floats
    offsets: Ints

    def __post_init__(self) -> None:
        offsets = self.offsets
        if (
            len(offsets) == 0
            or offsets[0] != 0
            or offsets[-1] != len(self.values)
            or np.any(np.diff(offsets) < 0)
        ):
            raise ValueError(
                f"offsets must ascend from 0 to {len(self.values)}, got {offsets[:5].tolist()}...",
            )

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> Floats:
        return self.values[self.offsets[i] : self.offsets[i + 1]]

    @classmethod
    def from_sets(cls, sets: Sequence[Array], width: int) -> Ragged:
        """Concatenate arrays of shape (m_i, width), m_i >= 0."""
        offsets = np.cumsum([0, *map(len, sets)], dtype=np.int64)
        flat = [np.asarray(rows, np.float32).reshape(-1, width) for rows in sets]
        return cls(np.concatenate([np.empty((0, width), np.float32), *flat]), offsets)

    def take(self, chosen: Sequence[int]) -> Ragged:
        """Return the sets at the indices ``chosen``, in the same order."""
        return Ragged.from_sets([self[i] for i in chosen], self.values.shape[1])

    def blocks(self, rows: int) -> Iterator[Ragged]:
        """Yield consecutive groups of whole sets. A group has at most ``rows`` rows, unless a
        single set has more."""
        start = 0
        while start < len(self):
            stop = int(np.searchsorted(self.offsets, self.offsets[start] + rows, side="right")) - 1
            stop = max(stop, start + 1)
            low = self.offsets[start]
            yield Ragged(
                self.values[low : self.offsets[stop]],
                self.offsets[start : stop + 1] - low,
            )
            start = stop

    @classmethod
    def concatenate(cls, parts: Sequence[Ragged]) -> Ragged:
        """Join the sets of all parts, in order."""
        counts = np.concatenate([[0], *(np.diff(part.offsets) for part in parts)])
        values = np.concatenate([part.values for part in parts])
        return cls(values, np.cumsum(counts, dtype=np.int64))


@dataclass(frozen=True)
class Embeddings:
    """Output of an encoder for n items of one modality, in the order of the items.

    ``vectors`` is float32 (n, d), with rows of unit norm. ``concepts`` is None or contains n sets
    of contextualised concept vectors, with one vector per region or word and without special
    tokens. For pictures, ``boxes`` contains the box of each concept (4 wide, as in ``Regions``).
    For sentences, ``words`` contains the word piece of each concept. If not None, ``boxes`` and
    ``words`` are as long as the concepts.
    """

    modality: Modality
    vectors: Floats
    concepts: Ragged | None = None
    boxes: Ragged | None = None
    words: list[list[str]] | None = None

    def __post_init__(self) -> None:
        if self.modality not in MODALITIES:
            raise BocError(f"modality must be {' or '.join(MODALITIES)}, got {self.modality!r}")
        if not isinstance(self.vectors, np.ndarray) or self.vectors.ndim != 2:
            raise BocError(
                "vectors must be an array (n, d), got "
                f"{getattr(self.vectors, 'shape', self.vectors)!r}",
            )
        if self.concepts is not None and len(self.concepts) != len(self.vectors):
            raise ValueError(f"{len(self.vectors)} vectors but {len(self.concepts)} concept sets")

    def __len__(self) -> int:
        return len(self.vectors)

    def blocks(self) -> Iterator[Embeddings]:
        """Yield the embeddings in blocks of a few thousand items, or in one block if they include
        concept sets."""
        if self.concepts is not None:
            yield self
            return
        for vectors in batches(self.vectors, BLOCK):
            yield Embeddings(self.modality, vectors)

    def take(self, chosen: Sequence[int]) -> Embeddings:
        """Return the embeddings of the items at the indices ``chosen``, in the same order."""
        return Embeddings(
            self.modality,
            self.vectors[chosen],
            self.concepts and self.concepts.take(chosen),
            self.boxes and self.boxes.take(chosen),
            self.words and [self.words[i] for i in chosen],
        )


class Rows(NamedTuple):
    """Items as a back end stores them: with ``terms`` (n, V), ``vectors`` (n, d), and, if
    ``concept_dtype`` is set, concept sets."""

    items: Sequence[Item]
    terms: TermMatrix
    vectors: Floats
    concepts: StoredConcepts | None = None


@dataclass(frozen=True)
class Batch:
    """Items of one modality and their ``embeddings``, in the same order. ``stored`` contains rows
    that are already in an index."""

    items: list[Item]
    embeddings: Embeddings
    stored: Rows | None = None

    def __post_init__(self) -> None:
        if len(self.items) != len(self.embeddings):
            raise ValueError(f"{len(self.items)} items but {len(self.embeddings)} vectors")

    def __len__(self) -> int:
        return len(self.items)


@dataclass(frozen=True)
class Regions:
    """Regions of one picture: ``features`` float32 (n, d) and ``boxes`` float32 (n, 4). A box is x1
    y1 x2 y2, as fractions of the picture's width and height; values slightly outside [0, 1] are
    kept. n may be 0."""

    features: Floats
    boxes: Floats

    def __post_init__(self) -> None:
        if self.features.ndim != 2 or self.boxes.shape != (len(self.features), 4):
            raise ValueError(
                f"features {self.features.shape} and boxes {self.boxes.shape} are not (n, d) and "
                "(n, 4)",
            )

    def __len__(self) -> int:
        return len(self.features)


@dataclass(frozen=True)
class RegionBatch:
    """Items of one modality. For pictures, ``features`` (d wide) and ``boxes`` (4 wide) are as in
    ``Regions``."""

    items: list[Item]
    features: Ragged | None = None
    boxes: Ragged | None = None

    def __len__(self) -> int:
        return len(self.items)

    def regions(self) -> list[Regions]:
        """Return the regions of each picture."""
        assert self.features is not None
        assert self.boxes is not None
        return [Regions(self.features[i], self.boxes[i]) for i in range(len(self.items))]


@dataclass(frozen=True)
class ImageRef:
    """Picture file, or picture in an archive. Region sources and encoders open the picture with
    ``read_image``."""

    id: str
    path: Path


OFFSETS = "offsets-"
"""Digest prefix of encoders whose vectors contain offsets for hub correction."""
OFFSET_PARTS = ("picture", "sentence", "length of pictures", "length of sentences")
"""Last components of vectors that contain these offsets (see ``encoders/runtime/hubs.py``)."""


@dataclass(frozen=True)
class Identity:
    """Identity of an encoder. ``spec`` is used to load the encoder again, and ``digest`` (SHA-256)
    identifies its weights."""

    spec: str
    digest: str
    dim: int

    @property
    def has_offsets(self) -> bool:
        return OFFSETS in self.digest

    def __post_init__(self) -> None:
        if not 0 < self.dim < WIDEST:
            raise ValueError(f"invalid encoder identity: {self.spec!r}, dim {self.dim}")


@dataclass(frozen=True)
class Runtime:
    """Device, precision and batch size of an encoder.

    ``device`` is cpu, cuda or auto. ``precision`` is the precision of matrix products: float32,
    bfloat16 or float16. Results are always float32. ``batch`` is the number of items per batch.
    """

    device: str = "auto"
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    batch: int = 64


@dataclass(frozen=True)
class StoredConcepts:
    """Concept sets in stored form: set i consists of rows ``offsets[i]`` to ``offsets[i + 1]`` of
    ``values``.

    Rows have unit length or are zero. ``values`` (N, d) is float16, or int8 with the factors
    ``scales`` float32 (N,). ``offsets`` is int64 (n + 1,), ascending from 0 to N.
    """

    values: Array
    offsets: Ints
    scales: Floats | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def take(self, chosen: Ints) -> StoredConcepts:
        """Return the sets at the indices ``chosen``, in the same order and in stored form."""
        begins = self.offsets[chosen]
        lengths = self.offsets[chosen + 1] - begins
        offsets = np.append(0, np.cumsum(lengths)).astype(np.int64)
        places = np.arange(offsets[-1]) + np.repeat(begins - offsets[:-1], lengths)
        scales = None
        if self.scales is not None:
            scales = self.scales[places]
        return StoredConcepts(self.values[places], offsets, scales)

    def to_ragged(self) -> Ragged:
        """Convert the sets to float32. All sets must fit into memory."""
        values = self.values.astype(np.float32)
        if self.scales is not None:
            values *= self.scales[:, None]
        return Ragged(values, self.offsets)


FieldType: TypeAlias = Literal["keyword", "integer", "float", "boolean", "date", "text"]
"""Types of metadata fields. A ``date`` is written as YYYY-MM-DDThh:mm:ss (UTC), so that dates sort
as text. Fields of type ``text`` are for full-text search; filters use the other types."""


@dataclass(frozen=True)
class Filter:
    """Condition on a metadata field. An item passes if at least one of its values in the field
    meets the condition.

    With "!=", an item passes if all of its values differ from ``value``; this is the only operator
    that items without the field pass. With ``last``, a later date or text, "=" and "!=" compare
    with the inclusive range from ``value`` to ``last``. ``others`` contains alternative conditions
    on the same field: with "=", an item must meet at least one of the conditions; with "!=", it
    must not equal any of the values.
    """

    field: str
    op: Literal["=", "!=", "<", "<=", ">", ">="]
    value: str | int | float | bool
    last: str | None = None
    others: tuple[Filter, ...] = ()

    @property
    def ids(self) -> list[str]:
        """Return the ids in all Unicode forms for a condition on item ids, and an empty list for
        other conditions."""
        some = self.alternatives if self.field == ID else ()
        return [form for each in some for form in forms(str(each.value))]

    @property
    def alternatives(self) -> list[Filter]:
        """Return this condition and its ``others`` as separate conditions."""
        return [replace(self, others=()), *self.others]


@dataclass(frozen=True, eq=False)
class QueryCode:
    """Parameters of a dictionary, for engines that convert query vectors to terms themselves.

    ``mean`` float32 (d,) is subtracted from each query. The terms of a query are the ``z``
    centroids with the largest cosines among the centroids in the nearest ``cells`` cells. The
    weight of a term is ``top`` * exp((cosine - largest cosine) / temperature), rounded, and at
    least 1. The ``kept`` terms with the largest weights are kept (0: all terms). ``centroids``
    contains the arrays of ``boc.clustering.cell_index.Centroids``."""

    mean: Floats
    centroids: tuple[Array, ...]
    z: int
    cells: int
    temperature: float
    top: int
    kept: int = 0


class HitList(Sequence[Hit]):
    """List of the ``count`` hits for a query, best first. The first access to a hit calls ``make``,
    which reads all hits.

    A list compares equal to any sequence of equal hits.
    """

    def __init__(self, count: int, make: Callable[[], Sequence[Hit]]) -> None:
        self._count = count
        self._make = make

    @cached_property
    def _hits(self) -> list[Hit]:
        return list(self._make())

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> Hit: ...
    @overload
    def __getitem__(self, place: slice) -> list[Hit]: ...
    def __getitem__(self, place: int | slice) -> Hit | list[Hit]:
        return self._hits[place]

    def __iter__(self) -> Iterator[Hit]:
        return iter(self._hits)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._hits == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self._hits)

    def __reduce__(self) -> Any:
        return _read_hits, (type(self), self._hits)


def _read_hits(kind: type[HitList], hits: list[Hit]) -> HitList:
    return kind(len(hits), lambda: hits)


@dataclass(eq=False)
class Rescore:
    """Request to re-rank the candidates of each query by ``metric``, and to keep the best ``k``.
    Row i of ``queries`` belongs to query i.

    The metric "dot" uses ``queries.vectors``. An alignment uses ``queries.concepts``, which must
    not be None. With ``parts``, ``queries`` is a single query composed of the parts, and its
    alignment score is the weighted sum of the scores of the parts. ``plain`` is True if
    ``boc.vectors.plain_rows`` has validated the vectors of ``queries``.
    """

    metric: Metric
    queries: Embeddings
    k: int
    parts: Sequence[tuple[Embeddings, float]] = ()
    plain: bool = False


@dataclass(eq=False)
class SearchRequest:
    """Request for the best ``k`` items in an index, for each of n queries.

    ``terms`` contains the query terms (n, V), or is a function that computes them. ``modality``
    restricts the hits to pictures or sentences, and ``filters`` restricts the hits to items that
    pass all filters. With ``rescore``, the k items are candidates that the engine re-ranks by their
    stored vectors or concept sets; an alignment requires ``modality``. ``code`` converts the
    vectors of ``rescore`` to terms, for engines that encode queries themselves.

    If ``planned``, no user set the budgets by hand, so the engine may compare the query with all
    items that pass the filters. Requests with the same ``way`` differ only in their validated
    vectors, so they share one validation and one plan. ``n_terms`` is the number of terms per query
    for a dictionary.
    """

    terms: TermMatrix | Callable[[], TermMatrix]
    k: int
    modality: Modality | None = None
    filters: Sequence[Filter] = ()
    rescore: Rescore | None = None
    code: QueryCode | None = None
    planned: bool = False
    way: object = None
    n_terms: int | None = None

    @cached_property
    def queries(self) -> TermMatrix:
        """Return the query terms."""
        return self.terms() if callable(self.terms) else self.terms

    def __len__(self) -> int:
        if self.rescore is not None:
            return len(self.rescore.queries)
        return int(self.queries.shape[0])

    @property
    def most(self) -> int:
        """Return the maximum number of hits per query."""
        if self.rescore is None:
            return self.k
        return min(self.k, self.rescore.k)


@dataclass
class Stages:
    """Facts about a search. Each stage of the search adds its facts.

    ``codes`` contains the query terms, and ``candidates`` is the maximum number of re-ranked items.
    ``plan`` is the method by which the engine found the hits (``boc.plan.Way``); if different
    queries used different methods, ``plan`` is the method that was tried first.
    """

    codes: TermMatrix | None = None
    candidates: int = 0
    plan: str = ""
