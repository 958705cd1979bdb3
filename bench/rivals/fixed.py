"""MUVERA's fixed-dimensional encoding of a set (Dhulipala et al., NeurIPS 2024), on posting lists.

Each repetition draws random hyperplanes, which partition the space into 2 ** bits parts by sign. In
each part, a sentence is represented by the sum of its words, and a picture by the mean of its
regions. For a part without regions, the region with the most similar signs is used. The dot product
of the two representations approximates MrSw, because each word is multiplied by the mean of nearby
regions. Rows are projected to ``width`` components by random signs. Posting lists store the c-ReLU
of these components.
"""

from __future__ import annotations

import numpy as np

from bench.rivals.base import Largest
from boc.types import Embeddings, Ragged
from boc.vectors import Floats, unit_rows

SCALE = 10_000  # large, because all components can be nonzero and therefore small


class FixedEncoding(Largest):
    """Fixed-dimensional encoding of concept sets with ``dim`` components, without learning."""

    def __init__(
        self,
        dim: int,
        bits: int,
        repetitions: int,
        width: int,
        z: int | None = None,
        query_z: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(2 * repetitions * 2**bits * width, z, query_z, SCALE)
        rng = np.random.default_rng(seed)
        self.planes = rng.standard_normal((repetitions, dim, bits)).astype(np.float32)
        if width < dim:
            signs = rng.choice(np.array([-1, 1], np.float32), (repetitions, dim, width))
            self.projections = signs / np.float32(np.sqrt(width))
        else:
            whole = np.eye(dim, dtype=np.float32)
            self.projections = np.broadcast_to(whole, (repetitions, dim, dim))

    def weights(self, embeddings: Embeddings) -> Floats:
        """Return the c-ReLU of the encodings, float32 (n, 2 * repetitions * 2 ** bits * width)."""
        rows = self.dense(embeddings, mean=embeddings.modality == "image")
        return np.concatenate([np.maximum(rows, 0), np.maximum(-rows, 0)], axis=1)

    def dense(self, embeddings: Embeddings, *, mean: bool) -> Floats:
        """Return the encodings, float32 (n, repetitions * 2 ** bits * width), from sums or, with
        ``mean``, from means with empty parts filled."""
        assert embeddings.concepts is not None
        sets = Ragged(unit_rows(embeddings.concepts.values), embeddings.concepts.offsets)
        return np.concatenate(
            [self._repetition(sets, number, mean) for number in range(len(self.planes))],
            axis=1,
        )

    def _repetition(self, sets: Ragged, number: int, mean: bool) -> Floats:
        bits = self.planes.shape[2]
        sides = sets.values @ self.planes[number] > 0
        parts = sides @ (1 << np.arange(bits))
        numbers = np.arange(1 << bits)
        values = sets.values @ self.projections[number]
        owners = np.repeat(np.arange(len(sets)), np.diff(sets.offsets))
        rows = np.zeros((len(sets), len(numbers), values.shape[1]), np.float32)
        np.add.at(rows, (owners, parts), values)
        if mean:
            counts = np.zeros((len(sets), len(numbers)), np.int64)
            np.add.at(counts, (owners, parts), 1)
            rows /= np.maximum(counts, 1)[:, :, None]
            differing = np.bitwise_count(parts[:, None] ^ numbers)
            for place in np.flatnonzero(np.diff(sets.offsets)):
                members = slice(*sets.offsets[place : place + 2])
                empty = np.flatnonzero(counts[place] == 0)
                closest = differing[members, empty].argmin(axis=0)
                rows[place, empty] = values[members][closest]
        return rows.reshape(len(sets), -1)
