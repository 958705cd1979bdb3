"""Micro-batching: sentences that wait at the same time are encoded as one batch; eight cost about
as much as three."""

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from boc.types import Embeddings, Ragged


@dataclass(eq=False)
class Waiting:
    """A sentence of a thread that waits for its embedding."""

    text: str
    result: Embeddings | None = None


class Batcher:
    """Encodes sentences for several threads. One thread at a time encodes, for all threads that
    wait by then."""

    def __init__(self) -> None:
        self._encoding = threading.Lock()
        self._list = threading.Lock()
        self._waiting: list[Waiting] = []

    def alone(self) -> AbstractContextManager[object]:
        """Return a lock that gives one thread the encoder, for other work than sentences."""
        return self._encoding

    def __call__(self, encode: Callable[[Sequence[str]], Embeddings], text: str) -> Embeddings:
        """Encode ``text``. If a batch fails, its thread gets the error; the others then try their
        own sentences."""
        mine = Waiting(text)
        with self._list:
            self._waiting.append(mine)
        with self._encoding:
            if mine.result is not None:
                return mine.result
            others: list[Waiting] = []
            with self._list:
                if mine in self._waiting:  # else it was in a batch that failed
                    self._waiting.remove(mine)
                    # A batch has 32 sentences at most.
                    others = self._waiting[:31]
                    self._waiting = self._waiting[31:]
            encoded = encode([mine.text, *(other.text for other in others)])
            for i, each in enumerate([mine, *others]):
                concepts = encoded.concepts
                if concepts is not None:
                    concepts = Ragged.from_sets([concepts[i]], concepts.values.shape[1])
                each.result = Embeddings(
                    encoded.modality,
                    encoded.vectors[i : i + 1],
                    concepts,
                    words=encoded.words and [encoded.words[i]],
                )
            assert mine.result is not None
            return mine.result
