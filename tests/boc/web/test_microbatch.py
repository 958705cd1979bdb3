"""Several threads, one encoder."""

import threading
from collections.abc import Sequence

import numpy as np
import pytest

from boc.types import Embeddings, Ragged

pytest.importorskip("fastapi", reason="the page needs the extra web")

from boc.web.microbatch import Batcher


class Encoder:
    """Encodes a sentence as its length; waits in its first call until it may go on."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.inside = threading.Event()
        self.go_on = threading.Event()
        self.at_once = 0

    def __call__(self, texts: Sequence[str]) -> Embeddings:
        self.at_once += 1
        assert self.at_once == 1
        self.calls.append(list(texts))
        if len(self.calls) == 1:
            self.inside.set()
            assert self.go_on.wait(300)
        self.at_once -= 1
        if "bad" in texts:
            raise ValueError("bad")
        sets = [
            np.full(
                (len(text), 2),
                len(text),
                np.float32,
            )
            for text in texts
        ]
        vectors = np.array(
            [[len(text)] for text in texts],
            np.float32,
        )
        return Embeddings(
            "text",
            vectors,
            Ragged.from_sets(sets, 2),
            words=[list(text) for text in texts],
        )


def run(texts: Sequence[str]) -> tuple[Encoder, dict[str, Embeddings | str]]:
    """What each of ``texts`` gave, the others being asked for while the first is encoded."""
    encoder = Encoder()
    together = Batcher()
    found = {}

    def ask(text):
        try:
            found[text] = together(encoder, text)
        except ValueError as error:
            found[text] = str(error)

    threads = [threading.Thread(target=ask, args=(text,)) for text in texts]
    threads[0].start()
    assert encoder.inside.wait(300)
    for thread in threads[1:]:
        thread.start()
    while len(together._waiting) < len(texts) - 1:
        threading.Event().wait(0.01)
    encoder.go_on.set()
    for thread in threads:
        thread.join()
    return encoder, found


def test_waiting_sentences_share_a_batch():
    texts = ["x" * n for n in range(1, 45)]
    encoder, found = run(texts)
    assert [len(call) for call in encoder.calls] == [1, 32, 11]
    for text in texts:
        own = found[text]
        assert isinstance(own, Embeddings)
        assert own.vectors.tolist() == [[len(text)]]
        assert own.concepts[0].tolist() == [[len(text)] * 2] * len(text)
        assert own.words == [list(text)]


def test_one_that_fails_spares_the_others():
    _, found = run(["first", "bad", "good", "better"])
    assert found["bad"] == "bad"
    assert len(found) == 4
    assert isinstance(found["first"], Embeddings)
    assert sum(found[text] == "bad" for text in ("good", "better")) <= 1  # who tried for all
