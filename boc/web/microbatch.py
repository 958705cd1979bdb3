"""Encode sentences that are waiting at the same time as a batch. Eight sentences take about as long
as three."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from boc.types import Embeddings


@dataclass(eq=False)
class Waiting:
    """Sentence of a thread that is waiting for the embedding."""

    text: str
    result: Embeddings | None = None


class Batcher:
    """Encode sentences for several threads. One thread at a time encodes the sentences of all
    waiting threads. Whoever holds the lock ``encoding`` has exclusive use of the encoder, for other
    work as well."""

    def __init__(self) -> None:
        self.encoding = threading.Lock()
        self._list = threading.Lock()
        self._waiting: list[Waiting] = []

    def __call__(self, encode: Callable[[Sequence[str]], Embeddings], text: str) -> Embeddings:
        """Encode ``text``. If a batch fails, the thread that ran the batch raises the error, and
        the other threads try again with their own sentences."""
        mine = Waiting(text)
        with self._list:
            self._waiting.append(mine)
        with self.encoding:
            if mine.result is not None:
                return mine.result
            batch = [mine]
            with self._list:
                if mine in self._waiting:  # otherwise, its batch has failed
                    self._waiting.remove(mine)
                    # A batch contains at most 32 sentences.
                    batch += self._waiting[:31]
                    del self._waiting[:31]
            encoded = encode([each.text for each in batch])
            for i, each in enumerate(batch):
                each.result = encoded.take([i])
            return encoded.take([0])
