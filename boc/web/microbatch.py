"""Micro-batching: sentences that wait at the same time are encoded as one batch; eight cost about
as much as three."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from boc.types import Embeddings


@dataclass(eq=False)
class Waiting:
    """A sentence of a thread that waits for its embedding."""

    text: str
    result: Embeddings | None = None


class Batcher:
    """Encodes sentences for several threads. One thread at a time encodes, for all threads that
    wait by then; ``encoding`` gives it the encoder, also for other work."""

    def __init__(self) -> None:
        self.encoding = threading.Lock()
        self._list = threading.Lock()
        self._waiting: list[Waiting] = []

    def __call__(self, encode: Callable[[Sequence[str]], Embeddings], text: str) -> Embeddings:
        """Encode ``text``. If a batch fails, its thread gets the error; the others then try their
        own sentences."""
        mine = Waiting(text)
        with self._list:
            self._waiting.append(mine)
        with self.encoding:
            if mine.result is not None:
                return mine.result
            batch = [mine]
            with self._list:
                if mine in self._waiting:  # else it was in a batch that failed
                    self._waiting.remove(mine)
                    # A batch has 32 sentences at most.
                    batch += self._waiting[:31]
                    del self._waiting[:31]
            encoded = encode([each.text for each in batch])
            for i, each in enumerate(batch):
                each.result = encoded.take([i])
            return encoded.take([0])
