"""The manifest of an index: everything needed to open and search it without other files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timezone
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boc import __version__
from boc.errors import ManifestError
from boc.names import Metric
from boc.types import FieldType, Identity

FORMAT = 4


@dataclass(frozen=True)
class Manifest:
    """Format and maker, encoder (spec, weights digest, dimension), codec (steps, parameters), its arrays (digest,
    shape, dtype of each), digest of the list of items, number of items by modality, number of postings, the
    default re-rank multiplier and metric, the type of the stored concept sets, None if there are none, and the
    metadata fields of the items with their types."""

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

    @property
    def identity(self) -> Identity:
        return Identity(**self.encoder)

    @classmethod
    def new(
        cls,
        encoder: Identity,
        codec: Mapping[str, Any],
        arrays: Mapping[str, NDArray[Any]],
        *,
        rm: float,
        dtype: str,
        source: str,
        rerank: Metric = "dot",
        concept_dtype: str | None = None,
        fields: Mapping[str, FieldType] | None = None,
    ) -> Manifest:
        """The manifest of an empty index."""
        return cls(
            encoder=asdict(encoder),
            codec=dict(codec),
            arrays={name: describe(array) for name, array in arrays.items()},
            vector_dtype=dtype,
            source=source,
            rm=rm,
            rerank=rerank,
            concept_dtype=concept_dtype,
            fields=dict(fields or {}),
            items={},
            postings=0,
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            maker=f"boc {__version__}, numpy {np.__version__}",
        )

    def same_contents(self, other: Manifest) -> bool:
        """Whether two indexes hold the same items, encoded by the same encoder and code."""
        parts = ("codec", "arrays", "vector_dtype", "source", "rm", "rerank", "concept_dtype", "fields")
        same_encoder = self.identity.digest == other.identity.digest
        return same_encoder and all(getattr(self, part) == getattr(other, part) for part in parts)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: str, *, where: str) -> Manifest:
        """Parse JSON and call ``from_dict``; ManifestError for invalid JSON."""
        try:
            raw = json.loads(text)
        except json.JSONDecodeError as error:
            raise ManifestError(f"{where}: damaged manifest ({error}); make the index again") from error
        return cls.from_dict(raw, where=where)

    @classmethod
    def from_dict(cls, raw: Any, *, where: str) -> Manifest:
        """Read a manifest strictly: ManifestError for another format, and for missing or unknown entries."""
        if not isinstance(raw, dict) or not isinstance(raw.get("format"), int):
            raise ManifestError(f"{where}: not a manifest of boc; make the index with boc index")
        if raw["format"] > FORMAT:
            raise ManifestError(
                f"{where}: index format {raw['format']}, this boc reads format {FORMAT}; upgrade boc, or make the "
                "index again with boc index --replace"
            )
        if raw["format"] < FORMAT:
            raise ManifestError(
                f"{where}: index format {raw['format']}, this boc reads format {FORMAT}; make the index again with "
                "boc index --replace"
            )
        names = {f.name for f in fields(cls)}
        if set(raw) != names:
            odd = ", ".join(sorted(set(raw) ^ names))
            raise ManifestError(f"{where}: manifest entries missing or unknown ({odd}); make the index again")
        return cls(**raw)

    def check_arrays(self, arrays: Mapping[str, NDArray[Any]], *, where: str) -> None:
        """ManifestError unless ``arrays`` are those of the manifest."""
        for name, said in self.arrays.items():
            if name not in arrays or describe(arrays[name]) != said:
                raise ManifestError(f"{where}: codec array {name} is missing or changed; make the index again")


def describe(array: NDArray[Any]) -> dict[str, Any]:
    """Shape, dtype and SHA-256 of the bytes of an array."""
    data = np.ascontiguousarray(array)
    return {"shape": list(data.shape), "dtype": data.dtype.str, "sha256": hashlib.sha256(data.tobytes()).hexdigest()}
