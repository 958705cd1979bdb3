"""Sentences that wait at the same time are encoded in one go: eight cost about as much as three."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from boc.types import Embeddings, Ragged

MOST = 32  # sentences encoded at a time


class _Waiting:
    def __init__(self, text: str) -> None:
        self.text = text
        self.found: Embeddings | None = None


class Together:
    """Encodes one sentence for each of several threads. One thread encodes at a time, for all that wait by then."""

    def __init__(self) -> None:
        self._encoding = threading.Lock()
        self._list = threading.Lock()
        self._waiting: list[_Waiting] = []

    def alone(self) -> AbstractContextManager[object]:
        """Keeps the encoder to one thread, for something else than sentences."""
        return self._encoding

    def __call__(self, encode: Callable[[Sequence[str]], Embeddings], text: str) -> Embeddings:
        """``text`` by ``encode``. If that fails for several it fails for the thread that did it; the others then try
        each its own."""
        mine = _Waiting(text)
        with self._list:
            self._waiting.append(mine)
        with self._encoding:
            if mine.found is not None:
                return mine.found
            others: list[_Waiting] = []
            with self._list:
                if mine in self._waiting:  # otherwise it was tried with others, and that failed
                    self._waiting.remove(mine)
                    others, self._waiting = self._waiting[: MOST - 1], self._waiting[MOST - 1 :]
            encoded = encode([mine.text, *(other.text for other in others)])
            for i, each in enumerate([mine, *others]):
                each.found = _row(encoded, i)
            assert mine.found is not None
            return mine.found


def _row(encoded: Embeddings, i: int) -> Embeddings:
    sets = encoded.concepts
    concepts = None if sets is None else Ragged.from_sets([sets[i]], sets.values.shape[1])
    words = None if encoded.words is None else [encoded.words[i]]
    return Embeddings(encoded.modality, encoded.vectors[i : i + 1], concepts, words=words)
