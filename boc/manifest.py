"""Index manifest: everything that boc needs to know about an index to open and search it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime, timezone
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from boc import __version__
from boc.errors import ManifestError
from boc.foreign import LARGEST, Count, Number, typed
from boc.names import ConceptDtype, Metric
from boc.types import FieldType, Identity, Modality

FORMAT = 4
OPTIONAL: dict[str, Any] = {
    "unreadable": {},
    "table_facts": [],
    "recall": {},
    "usual": {},
    "exclude": [],
}
"""Optional entries and their defaults. An entry that equals its default is not written."""

GROWN = 1.25
"""Growth factor of the number of items after which the index is measured again."""


class _Step(Struct, forbid_unknown_fields=True):
    name: str
    params: dict[str, Any]


class _Codec(Struct):
    n_terms: Count
    steps: list[_Step]


class _Items(Struct, forbid_unknown_fields=True):
    image: Count
    text: Count


class _Recall(Struct, forbid_unknown_fields=True):
    target: Number
    measured: Number = 0
    low: Number = 0
    high: Number = 0
    queries: Number = 0
    source: str = ""
    items: Number = 0
    learned: Number = 0
    near: Number = 0
    far: Number = 0
    read: Number = 0
    whole: bool = False
    texts: dict[str, Number] = {}


class _Entries(Struct):
    """Types of the manifest entries. Codecs check their own entries."""

    encoder: Identity
    codec: _Codec
    vector_dtype: Literal["int8", "float16", "float32", "float64"]
    source: str
    rm: Annotated[float, Meta(ge=1, le=LARGEST)]
    rerank: Metric
    concept_dtype: ConceptDtype | None
    postings: Count
    created: datetime
    maker: str
    arrays: dict[str, dict[str, Any]] = {}
    fields: dict[str, FieldType] = {}
    items: _Items | None = None
    unreadable: dict[str, list[int]] = {}
    table_facts: list[str] = []
    recall: _Recall | None = None
    usual: dict[str, Number] = {}
    exclude: list[str] = []


@dataclass(frozen=True)
class Manifest:
    """Description of an index, stored with it.

    ``encoder`` contains the spec, digest and dimension of the encoder. ``codec`` contains the steps
    and parameters of the code, and ``arrays`` the digest, shape and dtype of each of its arrays.
    ``source`` is the digest of the list of items. ``rm`` and ``rerank`` are the default number of
    candidates per hit and the default metric. ``concept_dtype`` is the type of the stored concept
    sets, or None without sets. ``fields`` contains the metadata fields and their types, ``items``
    the number of items by modality. ``maker`` is the program that created the index.

    ``unreadable`` maps the ids of picture files that could not be read to their states (size,
    modification time and change time in ns). ``table_facts`` lists the file facts whose values were
    replaced by a table. ``recall`` contains the recall for which the budgets were chosen, with the
    measurement; it is empty for budgets set by hand. ``usual`` contains the usual cosine of two
    items, by modality, and the number of items when it was measured. ``exclude`` lists the name
    patterns excluded from folders of pictures.
    """

    encoder: Identity
    codec: dict[str, Any]
    arrays: dict[str, dict[str, Any]]
    vector_dtype: str
    source: str
    rm: float
    rerank: Metric
    concept_dtype: str | None
    fields: dict[str, FieldType]
    items: dict[str, int]
    postings: int
    created: str
    maker: str
    format: int = FORMAT
    unreadable: dict[str, list[int]] = field(default_factory=dict)
    table_facts: list[str] = field(default_factory=list)
    recall: dict[str, Any] = field(default_factory=dict)
    usual: dict[str, Any] = field(default_factory=dict)
    exclude: list[str] = field(default_factory=list)

    @property
    def n_query_terms(self) -> int | None:
        """Return the number of terms per query for a dictionary. Return None if the entry is not a
        number, and for other codes, whose queries vary in length."""
        for step in self.codec["steps"][-1:]:
            count = step["params"].get("query_z")
            if step["name"] == "Dictionary" and type(count) is int and count > 0:
                return count
        return None

    def budgets(self, find: Modality) -> tuple[float, int | None]:
        """Return the number of candidates per hit, and ``n_query_terms``, for searches that find
        items of one modality. Sentences may have separate budgets."""
        own = self.recall.get("texts") if find == "text" else None
        if own:
            return own["rm"], int(own["query_z"])
        return self.rm, self.n_query_terms

    def has_grown(self, measured: Mapping[str, float]) -> bool:
        """Return whether the index has grown by at least a quarter since the measurement
        ``measured``."""
        return sum(self.items.values()) >= GROWN * measured.get("items", 0)

    @property
    def vector_floats(self) -> str:
        """Return the floating-point type that represents the stored vectors exactly: float32 for
        int8 vectors, otherwise the type of the vectors itself."""
        return "float32" if self.vector_dtype == "int8" else self.vector_dtype

    @property
    def identity(self) -> Identity:
        return self.encoder

    @classmethod
    def new(
        cls,
        encoder: Identity,
        codec: Mapping[str, Any],
        arrays: Mapping[str, NDArray[Any]],
        *,
        dtype: str,
        rerank: Metric = "dot",
        concept_dtype: str | None = None,
        fields: Mapping[str, FieldType] | None = None,
        **others: Any,
    ) -> Manifest:
        """Create the manifest of an empty index. ``others`` contains ``source``, ``rm`` and
        optional entries."""
        return cls(
            encoder=encoder,
            codec=dict(codec),
            arrays={name: describe(array) for name, array in arrays.items()},
            vector_dtype=dtype,
            rerank=rerank,
            concept_dtype=concept_dtype,
            fields=dict(fields or {}),
            items={},
            postings=0,
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            maker=f"boc {__version__}, numpy {np.__version__}",
            **others,
        )

    def same_contents(self, other: Manifest) -> bool:
        """Return whether two indexes contain the same items, encoded with the same encoder and
        code.

        If budgets were chosen for the same recall, they may differ, because they depend on the
        items.
        """
        target = self.recall.get("target")
        if self.identity.digest != other.identity.digest or target != other.recall.get("target"):
            return False
        one = self
        another = other
        if target is not None:
            one = replace(one, rm=1, codec=with_query_z(one.codec, None))
            another = replace(another, rm=1, codec=with_query_z(another.codec, None))
        parts = (
            "codec",
            "arrays",
            "vector_dtype",
            "source",
            "rm",
            "rerank",
            "concept_dtype",
            "fields",
        )
        return all(getattr(one, part) == getattr(another, part) for part in parts)

    def entries(self) -> dict[str, Any]:
        """Return the entries that are written to the manifest."""
        return {
            key: value
            for key, value in asdict(self).items()
            if key not in OPTIONAL or value != OPTIONAL[key]
        }

    def to_json(self) -> str:
        return json.dumps(self.entries(), indent=1, sort_keys=True)

    @classmethod
    def from_dict(cls, raw: Any, *, where: str) -> Manifest:
        """Parse a manifest. Raises ManifestError for an unsupported format, for missing or unknown
        entries, and for invalid values."""
        if not isinstance(raw, dict) or not isinstance(raw.get("format"), int):
            raise ManifestError(
                f"{where}: not a boc manifest",
                "build the index with <boc index>",
            )
        if raw["format"] != FORMAT:
            raise ManifestError(
                f"{where}: index format {raw['format']}, but this version of boc reads format "
                f"{FORMAT}",
                f"{'upgrade boc, or ' if raw['format'] > FORMAT else ''}rebuild the index "
                "with <boc index --replace>",
            )
        names = {f.name for f in fields(cls)}
        if set(raw) | OPTIONAL.keys() != names:
            odd = ", ".join(sorted((set(raw) | OPTIONAL.keys()) ^ names))
            raise ManifestError(
                f"{where}: missing or unknown manifest entries ({odd}); rebuild the index",
            )
        # In an index that is not loaded yet, {} may stand for an object with required entries.
        filled = {name: entry for name, entry in raw.items() if entry != {}}
        try:
            entries = typed(filled, _Entries)
        except ValueError as error:
            raise ManifestError(f"{where}: manifest entry {error}; rebuild the index") from error
        return cls(**{**raw, "encoder": entries.encoder})

    def check_arrays(self, arrays: Mapping[str, NDArray[Any]], *, where: str) -> None:
        """Raise ManifestError unless ``arrays`` match the manifest."""
        for name, said in self.arrays.items():
            if name not in arrays or describe(arrays[name]) != said:
                raise ManifestError(
                    f"{where}: codec array {name} is missing or changed; rebuild the index",
                )


def with_query_z(config: dict[str, Any], query_z: int | None) -> dict[str, Any]:
    """Return the configuration of a code, with ``query_z`` as the query budget of each step that
    has a query budget."""
    steps = []
    for step in config["steps"]:
        params = step["params"]
        if "query_z" in params:
            params = {**params, "query_z": query_z}
        steps.append({**step, "params": params})
    return {**config, "steps": steps}


def describe(array: NDArray[Any]) -> dict[str, Any]:
    """Return the shape, dtype and SHA-256 digest of an array."""
    data = np.ascontiguousarray(array)
    return {
        "shape": list(data.shape),
        "dtype": data.dtype.str,
        "sha256": hashlib.sha256(data.tobytes()).hexdigest(),
    }
