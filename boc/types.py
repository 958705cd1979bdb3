"""Data types of the library, which are values without behaviour."""

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
WIDEST = 1 << 24  # largest number of components of a vector
ID = "_id"  # the field of filters by the ids of items; no metadata field has this name
FOR_PROGRAMS = frozenset({"modified_ns", "changed_ns", "inode", "device_number", "content_hash"})
"""Metadata fields that reveal a changed file, and are not shown to users."""

TermMatrix: TypeAlias = "sparse.csr_array"
"""Term frequencies (n, V), int32, column = term id; indices sorted, every stored value >= 1."""


@dataclass(slots=True, unsafe_hash=True)  # a frozen dataclass takes twice as long to create
class Item:
    """Picture or sentence in an index.

    ``content`` is the sentence itself, or the path of the picture. ``group`` is the id of the
    picture that the item belongs to: its own id for a picture, the described picture's id for a
    caption, and empty for other sentences. ``fields`` is the metadata, a value or a list of values
    for each field declared in the index's manifest.
    """

    id: str
    modality: Modality
    content: str
    group: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def path(self) -> Path:
        """Return the path of a picture's file, which ``content`` contains as text."""
        return path_of(self.content)


@dataclass(slots=True, unsafe_hash=True, repr=False)
class Hit:
    """Item with a score; higher is better.

    ``duplicates`` lists the ids of near-duplicates grouped under the hit.

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
        """Return the path of a picture, or None for a sentence, a vector, or a picture added from
        memory."""
        item = self.item
        # The content of a picture without a file is its id.
        if item.modality == "text" or (item.content == item.id and item.content[:1] != "/"):
            return None
        return system_path(item.content)

    @property
    def fields(self) -> Mapping[str, Any]:
        """Return the item's metadata."""
        return self.item.fields

    def to_dict(self) -> dict[str, Any]:
        """Return the hit as JSON values: id, modality, score, content, and duplicates and fields,
        if any."""
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

    ``values`` is float32 (N, d), ``offsets`` int64 (n + 1,), ascending from 0 to N.
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
                f"offsets must rise from 0 to {len(self.values)}, got {offsets[:5].tolist()}...",
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
        """Return the sets at the indices ``chosen``, in that order."""
        return Ragged.from_sets([self[i] for i in chosen], self.values.shape[1])

    def blocks(self, rows: int) -> Iterator[Ragged]:
        """Yield runs of whole sets with at most ``rows`` rows each, unless a single set has
        more."""
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
        """Return the sets of all parts, in order."""
        counts = np.concatenate([[0], *(np.diff(part.offsets) for part in parts)])
        values = np.concatenate([part.values for part in parts])
        return cls(values, np.cumsum(counts, dtype=np.int64))


@dataclass(frozen=True)
class Embeddings:
    """Encoder output for n items of one modality, in item order.

    ``vectors`` is float32 (n, d) of unit norm. ``concepts`` contains n sets of contextualised
    concept vectors, one per region or word and without special positions, or is None. Concepts of
    pictures correspond to ``boxes`` (4 wide, as in ``Regions``); concepts of sentences correspond
    to ``words`` (lists of word-pieces). ``boxes`` and ``words`` are None or as long as the
    concepts.
    """

    modality: Modality
    vectors: Floats
    concepts: Ragged | None = None
    boxes: Ragged | None = None
    words: list[list[str]] | None = None

    def __post_init__(self) -> None:
        if self.modality not in MODALITIES:
            raise BocError(f"a modality is {' or '.join(MODALITIES)}, got {self.modality!r}")
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
        """Return the embeddings of the items at the indices ``chosen``, in that order."""
        return Embeddings(
            self.modality,
            self.vectors[chosen],
            self.concepts and self.concepts.take(chosen),
            self.boxes and self.boxes.take(chosen),
            self.words and [self.words[i] for i in chosen],
        )


class Rows(NamedTuple):
    """Items in the form that a back end stores: ``terms`` (n, V), ``vectors`` (n, d), and concept
    sets if ``concept_dtype`` is set."""

    items: Sequence[Item]
    terms: TermMatrix
    vectors: Floats
    concepts: StoredConcepts | None = None


@dataclass(frozen=True)
class Batch:
    """Items of one modality and their ``embeddings``, in the same order. ``stored`` contains rows
    already stored in an index."""

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
    """Regions of one picture: ``features`` float32 (n, d), and ``boxes`` float32 (n, 4), x1 y1 x2
    y2 as fractions of the picture's width and height (values slightly outside [0, 1] are kept). n
    may be 0."""

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
    """Items of one modality. Pictures have ``features`` (d wide) and ``boxes`` (4 wide), as in
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
    """Picture file, or picture in an archive. Region sources and encoders open it with
    ``read_image``."""

    id: str
    path: Path


OFFSETS = "offsets-"
"""The prefix of the digest of an encoder whose vectors contain offsets that correct hubs."""
OFFSET_PARTS = ("picture", "sentence", "length of pictures", "length of sentences")
"""The last components of vectors with such offsets (``encoders/runtime/hubs.py``)."""


@dataclass(frozen=True)
class Identity:
    """Identity of an encoder: ``spec`` reloads the encoder, and ``digest`` (SHA-256) identifies its
    weights."""

    spec: str
    digest: str
    dim: int

    @property
    def has_offsets(self) -> bool:
        return OFFSETS in self.digest

    def __post_init__(self) -> None:
        if not 0 < self.dim < WIDEST:
            raise ValueError(f"no identity of an encoder: {self.spec!r}, dim {self.dim}")


@dataclass(frozen=True)
class Runtime:
    """Device, precision and batch size of an encoder.

    ``device`` is cpu, cuda, or auto. ``precision`` is the precision of matrix products: float32,
    bfloat16 or float16; results are always float32. ``batch`` is the number of items encoded at a
    time.
    """

    device: str = "auto"
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    batch: int = 64


@dataclass(frozen=True)
class StoredConcepts:
    """Concept sets in stored form: set i is rows ``offsets[i]`` to ``offsets[i + 1]`` of
    ``values``.

    Rows have unit length, or are zero. ``values`` (N, d) is float16, or int8 to be multiplied by
    ``scales`` float32 (N,); ``offsets`` is int64 (n + 1,), ascending from 0 to N.
    """

    values: Array
    offsets: Ints
    scales: Floats | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def take(self, chosen: Ints) -> StoredConcepts:
        """Return the sets at the indices ``chosen``, in that order and in stored form."""
        begins = self.offsets[chosen]
        lengths = self.offsets[chosen + 1] - begins
        offsets = np.append(0, np.cumsum(lengths)).astype(np.int64)
        places = np.arange(offsets[-1]) + np.repeat(begins - offsets[:-1], lengths)
        scales = None
        if self.scales is not None:
            scales = self.scales[places]
        return StoredConcepts(self.values[places], offsets, scales)

    def to_ragged(self) -> Ragged:
        """Return the sets as float32. All sets must fit into memory."""
        values = self.values.astype(np.float32)
        if self.scales is not None:
            values *= self.scales[:, None]
        return Ragged(values, self.offsets)


FieldType: TypeAlias = Literal["keyword", "integer", "float", "boolean", "date", "text"]
"""Types of a metadata field. ``date`` is YYYY-MM-DDThh:mm:ss (UTC), so its text order is its time
order. ``text`` is searched by its words; filters use the other types."""


@dataclass(frozen=True)
class Filter:
    """Condition on a metadata field. An item passes if one of its values of the field meets the
    condition.

    An item passes "!=" if none of its values equals ``value``; items without the field pass only
    this operator. With ``last``, a later date or text, "=" and "!=" compare with the inclusive
    range from ``value`` to ``last``. ``others`` contains further conditions on the same field: "="
    then requires one of the conditions, and "!=" requires that no "=" condition is met.
    """

    field: str
    op: Literal["=", "!=", "<", "<=", ">", ">="]
    value: str | int | float | bool
    last: str | None = None
    others: tuple[Filter, ...] = ()

    @property
    def ids(self) -> list[str]:
        """Return the ids in all Unicode forms, if the condition is on the ids of items; otherwise
        return no ids."""
        some = self.alternatives if self.field == ID else ()
        return [form for each in some for form in forms(str(each.value))]

    @property
    def alternatives(self) -> list[Filter]:
        """Return the condition itself and the others, as separate conditions."""
        return [replace(self, others=()), *self.others]


@dataclass(frozen=True, eq=False)
class QueryCode:
    """Parameters for encoding queries by their nearest centroids, for engines that encode queries
    themselves.

    ``mean`` float32 (d,) is subtracted from a query. The terms of the query are the ``z`` centroids
    with the largest cosines in the nearest ``cells`` cells. Their weights are exp((cosine -
    largest) / temperature) times ``top``, rounded, and at least 1; the ``kept`` largest are kept
    (0: all). ``centroids`` contains the arrays of ``boc.clustering.cell_index.Centroids``."""

    mean: Floats
    centroids: tuple[Array, ...]
    z: int
    cells: int
    temperature: float
    top: int
    kept: int = 0


class HitList(Sequence[Hit]):
    """List of the ``count`` hits of a query, best first. ``make`` reads all hits when the first one
    is accessed.

    A list is equal to any sequence of equal hits.
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
    """Request to re-rank each query's candidates by ``metric``, with the query's row in
    ``queries``, and to keep ``k`` candidates.

    The metric "dot" reads ``queries.vectors``; an alignment reads ``queries.concepts``, which must
    not be None. With ``parts``, ``queries`` is a single query composed of the parts, and its
    alignment score is the weighted sum of the parts' scores. ``plain`` is true if the vectors of
    ``queries`` were checked (``boc.vectors.plain_rows``).
    """

    metric: Metric
    queries: Embeddings
    k: int
    parts: Sequence[tuple[Embeddings, float]] = ()
    plain: bool = False


@dataclass(eq=False)
class SearchRequest:
    """Request for the best ``k`` items in an index for each of n queries.

    ``terms`` contains the query terms (n, V), or a function that makes them. ``modality`` restricts
    the hits to pictures or sentences, and ``filters`` restricts them to items that pass all
    filters. With ``rescore`` the k items are candidates, which the engine re-ranks by their stored
    vectors or concept sets; an alignment needs ``modality``. ``code`` converts the vectors of
    ``rescore`` to terms, for an engine that encodes queries itself.

    If ``planned``, no user set the budgets by hand, so the engine may compare all vectors that pass
    the filters. Requests with the same ``way`` differ only in their checked vectors, so they share
    one check and one plan. ``n_terms`` is the number of terms per query under a dictionary.
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
        """Return the largest number of hits per query."""
        if self.rescore is None:
            return self.k
        return min(self.k, self.rescore.k)


@dataclass
class Stages:
    """Facts about a finished search, added by each stage of the search.

    ``codes`` contains the query terms, and ``candidates`` is the largest number of re-ranked items.
    ``plan`` is the method by which the engine found the hits (``boc.plan.Way``), or the method
    tried first if queries differ.
    """

    codes: TermMatrix | None = None
    candidates: int = 0
    plan: str = ""
