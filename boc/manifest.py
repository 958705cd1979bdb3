"""The manifest of an index: everything needed to open and search it without other files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime, timezone
from functools import cached_property
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from boc import __version__
from boc.errors import ManifestError
from boc.foreign import LARGEST, parse_json
from boc.names import CONCEPT_DTYPES, METRICS, Metric
from boc.types import MODALITIES, WIDEST, FieldType, Identity

FORMAT = 4
OPTIONAL: dict[str, Any] = {"unreadable": {}, "table_facts": [], "recall": {}, "exclude": []}
"""Entries that may be missing, with the values that they have then. They are written only with
other values."""


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= LARGEST


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and abs(value) <= LARGEST


def _counts(value: Any, names: Sequence[str]) -> bool:
    """Return whether it has a count of each name; none has one before anything is loaded."""
    return (
        isinstance(value, dict)
        and set(value) in ({*names}, set())
        and all(map(_is_count, value.values()))
    )


def _is_date(value: Any) -> bool:
    try:
        return bool(datetime.fromisoformat(value))
    except (TypeError, ValueError):
        return False


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


_ENCODER: dict[str, Callable[[Any], bool]] = {
    "spec": lambda value: isinstance(value, str),
    "digest": lambda value: isinstance(value, str),
    "dim": lambda value: _is_count(value) and 0 < value < WIDEST,
}
_SOUND: dict[str, Callable[[Any], bool]] = {
    "encoder": lambda value: (
        isinstance(value, dict)
        and set(value) == set(_ENCODER)
        and all(sound(value[name]) for name, sound in _ENCODER.items())
    ),
    "codec": lambda value: (
        isinstance(value, dict)
        and _is_count(value.get("n_terms"))
        and isinstance(value.get("steps"), list)
        and all(
            isinstance(step, dict)
            and {name: type(each) for name, each in step.items()} == {"name": str, "params": dict}
            for step in value["steps"]
        )
    ),
    "arrays": lambda value: (
        isinstance(value, dict) and all(isinstance(each, dict) for each in value.values())
    ),
    "vector_dtype": lambda value: value in ("int8", "float16", "float32", "float64"),
    "source": lambda value: isinstance(value, str),
    "rm": lambda value: _is_number(value) and value >= 1,
    "rerank": lambda value: value in METRICS,
    "concept_dtype": lambda value: value is None or value in CONCEPT_DTYPES,
    "fields": lambda value: (
        isinstance(value, dict) and all(each in get_args(FieldType) for each in value.values())
    ),
    "items": lambda value: _counts(value, MODALITIES),
    "postings": _is_count,
    "created": _is_date,
    "maker": lambda value: isinstance(value, str),
    "unreadable": lambda value: (
        isinstance(value, dict)
        and all(
            isinstance(state, list) and all(type(each) is int for each in state)
            for state in value.values()
        )
    ),
    "table_facts": _is_texts,
    "exclude": _is_texts,
    "recall": lambda value: (
        isinstance(value, dict)
        and set(value)
        <= {
            "target",
            "measured",
            "low",
            "high",
            "queries",
            "source",
            "items",
            "learned",
            "near",
            "far",
        }
        and all(isinstance(each, str) == (key == "source") for key, each in value.items())
        and all(isinstance(each, str) or _is_number(each) for each in value.values())
        and bool(value) == ("target" in value)
    ),
}
"""What the entries of a manifest must be; those of a codec are checked where it is made."""


@dataclass(frozen=True)
class Manifest:
    """Format and maker, encoder (spec, weights digest, dimension), codec (steps, parameters), its
    arrays (digest, shape, dtype of each), digest of the list of items, number of items by modality,
    number of postings, the default re-rank multiplier and metric, the type of the stored concept
    sets, None if there are none, the metadata fields of the items with their types, by their ids
    the states (size, modification and change time in ns) of picture files that could not be read,
    the names of those facts of files that a table gave other values, and the recall that the
    budgets were chosen for, with what was measured, empty if they were given by hand; and the
    patterns of names that folders of pictures are read without."""

    encoder: dict[str, Any]
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
    exclude: list[str] = field(default_factory=list)

    @property
    def vector_floats(self) -> str:
        """The type that holds the stored vectors without a loss: float32 for those rounded to
        int8."""
        return "float32" if self.vector_dtype == "int8" else self.vector_dtype

    @cached_property
    def identity(self) -> Identity:
        return Identity(**self.encoder)

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
        """Make the manifest of an empty index; ``others`` are ``source``, ``rm``, and entries that
        may be missing."""
        return cls(
            encoder=asdict(encoder),
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
        """Return whether two indexes hold the same items, encoded by the same encoder and code.

        Budgets that were chosen for the same recall may differ: they follow from the items.
        """
        if (self.identity.digest, self.recall.get("target")) != (
            other.identity.digest,
            other.recall.get("target"),
        ):
            return False
        one = self
        another = other
        if "target" in self.recall:
            one, another = (
                replace(each, rm=1, codec=with_query_z(each.codec, None)) for each in (self, other)
            )
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
        """Return the entries to write."""
        return {
            key: value
            for key, value in asdict(self).items()
            if key not in OPTIONAL or value != OPTIONAL[key]
        }

    def to_json(self) -> str:
        return json.dumps(self.entries(), indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: str, *, where: str) -> Manifest:
        """Parse JSON and call ``from_dict``; ManifestError for invalid JSON."""
        try:
            raw = parse_json(text)
        except ValueError as error:
            raise ManifestError(
                f"{where}: damaged manifest ({error}); make the index again",
            ) from error
        return cls.from_dict(raw, where=where)

    @classmethod
    def from_dict(cls, raw: Any, *, where: str) -> Manifest:
        """Read a manifest strictly: ManifestError for another format, and for missing or unknown
        entries."""
        if not isinstance(raw, dict) or not isinstance(raw.get("format"), int):
            raise ManifestError(
                f"{where}: not a manifest of boc",
                "make the index with <boc index>",
            )
        if raw["format"] != FORMAT:
            raise ManifestError(
                f"{where}: index format {raw['format']}, this boc reads format {FORMAT}",
                f"{'upgrade boc, or ' if raw['format'] > FORMAT else ''}make the index again "
                "with <boc index --replace>",
            )
        names = {f.name for f in fields(cls)}
        if set(raw) | OPTIONAL.keys() != names:
            odd = ", ".join(sorted((set(raw) | OPTIONAL.keys()) ^ names))
            raise ManifestError(
                f"{where}: manifest entries missing or unknown ({odd}); make the index again",
            )
        for name, sound in _SOUND.items():
            entry = raw.get(name, OPTIONAL.get(name))
            if not sound(entry):
                raise ManifestError(
                    f"{where}: {name} of the manifest is {str(entry)[:60]!r}; make the index again",
                )
        return cls(**raw)

    def check_arrays(self, arrays: Mapping[str, NDArray[Any]], *, where: str) -> None:
        """Raise ManifestError unless ``arrays`` are those of the manifest."""
        for name, said in self.arrays.items():
            if name not in arrays or describe(arrays[name]) != said:
                raise ManifestError(
                    f"{where}: codec array {name} is missing or changed; make the index again",
                )


def with_query_z(config: dict[str, Any], query_z: int | None) -> dict[str, Any]:
    """Return a configuration of a code with another budget of queries, where a step has one."""
    steps = [
        {**step, "params": {**step["params"], "query_z": query_z}}
        if "query_z" in step["params"]
        else step
        for step in config["steps"]
    ]
    return {**config, "steps": steps}


def describe(array: NDArray[Any]) -> dict[str, Any]:
    """Return the shape, dtype and SHA-256 of the bytes of an array."""
    data = np.ascontiguousarray(array)
    return {
        "shape": list(data.shape),
        "dtype": data.dtype.str,
        "sha256": hashlib.sha256(data.tobytes()).hexdigest(),
    }
