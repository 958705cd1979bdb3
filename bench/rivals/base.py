"""Base class of codes by other authors, which convert the largest weights of each row to
frequencies."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from boc.codecs.frequencies import ScalarQuantizer, TopZ, UnitNorm
from boc.types import Embeddings, TermMatrix
from boc.vectors import Floats


class Code(Protocol):
    """Fitted code of boc or of other authors."""

    def encode_documents(self, embeddings: Embeddings) -> TermMatrix: ...

    def encode_queries(self, embeddings: Embeddings) -> TermMatrix: ...


class Largest:
    """Code that keeps the ``z`` largest weights of an item, and the ``query_z`` largest weights of
    a query (None keeps all weights). Rows are scaled to the length ``scale``. Subclasses compute
    the weights."""

    def __init__(self, width: int, z: int | None, query_z: int | None, scale: int) -> None:
        self.chain: list[Any] = [
            TopZ(z and min(z, width), query_z and min(query_z, width)),
            UnitNorm(),
            ScalarQuantizer(scale),
        ]
        for step in self.chain:
            step.fit(np.zeros((1, width), np.float32))
        self.known: dict[int, tuple[Embeddings, Floats]] = {}

    def once(self, embeddings: Embeddings) -> Floats:
        """Return the weights, which are computed only once for all budgets."""
        if id(embeddings) not in self.known:
            self.known[id(embeddings)] = embeddings, self.weights(embeddings)
        return self.known[id(embeddings)][1]

    def weights(self, embeddings: Embeddings) -> Floats:
        """Return non-negative weights, float32 (n, width)."""
        raise NotImplementedError

    def encode_documents(self, embeddings: Embeddings) -> TermMatrix:
        """Encode items -> int32 csr (n, width)."""
        return self._encode(embeddings, "encode_documents")

    def encode_queries(self, embeddings: Embeddings) -> TermMatrix:
        """Encode queries -> int32 csr (n, width)."""
        return self._encode(embeddings, "encode_queries")

    def _encode(self, embeddings: Embeddings, side: str) -> TermMatrix:
        rows: Any = self.once(embeddings)
        for step in self.chain:
            rows = getattr(step, side)(rows, embeddings.modality)
        return rows
