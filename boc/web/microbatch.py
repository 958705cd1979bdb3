"""Encode sentences that wait at the same time as one batch: eight sentences take about as long as
three."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from boc.types import Embeddings


@dataclass(eq=False)
class Waiting:
    """Hold a thread's sentence until its embedding is ready."""

    text: str
    result: Embeddings | None = None


class Batcher:
    """Encode sentences for several threads. One thread at a time encodes the sentences of all
    waiting threads. The lock ``encoding`` reserves the encoder for one thread, including for other
    work."""

    def __init__(self) -> None:
        self.encoding = threading.Lock()
        self._list = threading.Lock()
        self._waiting: list[Waiting] = []

    def __call__(self, encode: Callable[[Sequence[str]], Embeddings], text: str) -> Embeddings:
        """Encode ``text``. If a batch fails, the thread that ran it gets the error; the other
        threads then retry with their own sentences."""
        mine = Waiting(text)
        with self._list:
            self._waiting.append(mine)
        with self.encoding:
            if mine.result is not None:
                return mine.result
            batch = [mine]
            with self._list:
                if mine in self._waiting:  # otherwise its batch failed
                    self._waiting.remove(mine)
                    # A batch has at most 32 sentences.
                    batch += self._waiting[:31]
                    del self._waiting[:31]
            encoded = encode([each.text for each in batch])
            for i, each in enumerate(batch):
                each.result = encoded.take([i])
            return encoded.take([0])
