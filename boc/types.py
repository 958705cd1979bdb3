"""The values that flow through the library: data without behaviour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from scipy import sparse


Modality: TypeAlias = Literal["image", "text"]
MODALITIES: tuple[Modality, Modality] = ("image", "text")

TermMatrix: TypeAlias = "sparse.csr_array"
"""Term frequencies (n, V), int32, column = term id; indices sorted, every stored value >= 1."""


@dataclass(frozen=True)
class Item:
    """One thing that can be found.

    ``content`` is the sentence itself, or the path of the picture. ``group`` is the id of the picture an item
    belongs to: its own for a picture, the described picture's for a caption (empty for a sentence on its own).
    ``fields`` is its metadata: values, or lists of them, of the fields that the index's manifest declares.
    """

    id: str
    modality: Modality
    content: str
    group: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Hit:
    """A found item and its score; the higher, the better."""

    item: Item
    score: float


@dataclass(frozen=True)
class Ragged:
    """Sets of row vectors stored flat: set i is ``values[offsets[i]:offsets[i + 1]]``.

    ``values`` is float32 (N, d), ``offsets`` int64 (n + 1,), rising from 0 to N.
    """

    values: NDArray[np.float32]
    offsets: NDArray[np.int64]

    def __post_init__(self) -> None:
        offsets = self.offsets
        if len(offsets) == 0 or offsets[0] != 0 or offsets[-1] != len(self.values) or np.any(np.diff(offsets) < 0):
            raise ValueError(f"offsets must rise from 0 to {len(self.values)}, got {offsets[:5].tolist()}...")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> NDArray[np.float32]:
        return self.values[self.offsets[i] : self.offsets[i + 1]]

    @classmethod
    def from_sets(cls, sets: Sequence[NDArray[Any]], width: int) -> Ragged:
        """Concatenate arrays of shape (m_i, width), m_i >= 0."""
        offsets = np.concatenate([[0], np.cumsum([len(s) for s in sets], dtype=np.int64)]).astype(np.int64)
        flat = [np.asarray(s, dtype=np.float32).reshape(-1, width) for s in sets]
        return cls(np.concatenate(flat) if flat else np.empty((0, width), np.float32), offsets)

    @classmethod
    def concatenate(cls, parts: Sequence[Ragged]) -> Ragged:
        """The sets of all parts, one part behind the other."""
        counts = np.concatenate([np.diff(part.offsets) for part in parts])
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return cls(np.concatenate([part.values for part in parts]), offsets)


@dataclass(frozen=True)
class Embeddings:
    """What an encoder made of n items of one modality, in their order.

    ``vectors`` is float32 (n, d) of unit norm; ``concepts`` holds the n sets of contextualized concept vectors
    (one a region or word; special positions left out), or is None. What each concept is of: ``boxes`` (4 wide, as in
    ``Regions``) for pictures, ``words`` (lists of word-pieces) for sentences; each None, or as long as the concepts.
    """

    modality: Modality
    vectors: NDArray[np.float32]
    concepts: Ragged | None = None
    boxes: Ragged | None = None
    words: list[list[str]] | None = None

    def __post_init__(self) -> None:
        if self.vectors.ndim != 2:
            raise ValueError(f"vectors must be (n, d), got shape {self.vectors.shape}")
        if self.concepts is not None and len(self.concepts) != len(self.vectors):
            raise ValueError(f"{len(self.vectors)} vectors but {len(self.concepts)} concept sets")

    def __len__(self) -> int:
        return len(self.vectors)


@dataclass(frozen=True)
class Regions:
    """The regions of one picture: ``features`` float32 (n, d); ``boxes`` float32 (n, 4), x1 y1 x2 y2 in [0, 1] of
    the picture's width and height (values a little outside are kept). n may be 0."""

    features: NDArray[np.float32]
    boxes: NDArray[np.float32]

    def __post_init__(self) -> None:
        if self.features.ndim != 2 or self.boxes.shape != (len(self.features), 4):
            raise ValueError(f"features {self.features.shape} and boxes {self.boxes.shape} are not (n, d) and (n, 4)")

    def __len__(self) -> int:
        return len(self.features)


@dataclass(frozen=True)
class ImageRef:
    """A picture by name: what region sources and encoders open for themselves."""

    id: str
    path: Path


@dataclass(frozen=True)
class Identity:
    """Who made some vectors: ``spec`` finds the encoder again, ``digest`` (SHA-256) tells its weights apart."""

    spec: str
    digest: str
    dim: int


@dataclass(frozen=True)
class Runtime:
    """Where and how an encoder computes.

    ``device`` is cpu, cuda, or auto for the better; ``precision`` of matrix products float32, bfloat16 or float16
    (results are float32 all the same); ``compile`` lets torch compile the network, which costs a minute and pays on
    long runs. ``batch`` items are encoded at a time, fewer where the memory does not hold so many.
    """

    device: str = "auto"
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    compile: bool = False
    batch: int = 64


@dataclass(frozen=True)
class StoredConcepts:
    """Concept sets as an index holds them: set i is rows ``offsets[i]`` to ``offsets[i + 1]`` of ``values``.

    Rows are of unit length, or zero. ``values`` (N, d) is float16, or int8 to be multiplied by ``scales`` float32
    (N,); ``offsets`` is int64 (n + 1,), rising from 0 to N.
    """

    values: NDArray[Any]
    offsets: NDArray[np.int64]
    scales: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def ragged(self) -> Ragged:
        """The sets as float32, for those who look at a few."""
        values = self.values.astype(np.float32)
        return Ragged(values if self.scales is None else values * self.scales[:, None], self.offsets)


FieldType: TypeAlias = Literal["keyword", "integer", "float", "boolean", "date", "text"]
"""Of a metadata field: ``date`` is YYYY-MM-DDThh:mm:ss (UTC), so that text compares as time; ``text`` is searched by
its words, all others are filtered by."""


@dataclass(frozen=True)
class Filter:
    """A condition on a metadata field, which holds for an item if it does for one of its values.

    "!=" holds if no value equals ``value``, hence also for an item without the field; all others do not hold there.
    """

    field: str
    op: Literal["=", "!=", "<", "<=", ">", ">="]
    value: str | int | float | bool


@dataclass(frozen=True)
class Rescore:
    """Score the hits of each query anew by dot product with its row of ``vectors`` float32 (n, d), and keep ``k``."""

    vectors: NDArray[np.float32]
    k: int


@dataclass(frozen=True)
class Words:
    """Add ``weight`` times the engine's own full-text score of each query's sentence to the score of its terms.

    That is BM25; OpenSearch 3 gives 2.2 times less than the others.
    """

    texts: Sequence[str]
    weight: float


@dataclass
class Stages:
    """What one search took, in milliseconds, and how much it looked at. Whoever does a stage adds to it.

    ``encode_ms``: sentence or picture to vector. ``code_ms``: vector to terms. ``postings_ms``: candidates by posting
    lists, and by words. ``rerank_ms``: scoring candidates anew; None if the engine does it in one go with
    ``postings_ms``. ``content_ms``: reading what was found. ``codes`` are the terms of the queries, ``candidates`` how
    many items were scored anew, at most.
    """

    encode_ms: float = 0.0
    code_ms: float = 0.0
    postings_ms: float = 0.0
    rerank_ms: float | None = 0.0
    content_ms: float = 0.0
    codes: TermMatrix | None = None
    candidates: int = 0

    def took(self, name: str, begun: float) -> float:
        """Add the time since ``begun`` to the stage ``name``. Returns the time now, when another may begin; both are
        of ``perf_counter``. Context managers would take some microseconds of every query."""
        now, own = perf_counter(), vars(self)
        own[name] = (own[name] or 0.0) + 1000 * (now - begun)
        return now


@dataclass(frozen=True)
class Rows:
    """A batch of items with their arrays: ``dense[name]`` (n, d), ``ragged[name]`` n sets of rows, all sets of an
    item as long as each other, and ``words`` naming those rows, if they are of words."""

    items: list[Item]
    dense: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    ragged: dict[str, Ragged] = field(default_factory=dict)
    words: list[list[str]] | None = None
