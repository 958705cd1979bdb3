"""The encoder around two networks, one for pictures and one for sentences."""

from collections.abc import Callable, Sequence
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boc.types import Embeddings, Identity, ImageRef, Ragged, Runtime

from .device import has_cuda
from .hubs import HubBank
from .onnx_record import IMAGE, TEXT, OnnxRecord

Encoded = tuple[NDArray[np.float32], Ragged]
"""Vectors (n, d), and n sets of rows (m_i, d)."""
EncodedTexts = tuple[NDArray[np.float32], Ragged, list[list[str]]]
"""The same with the words of each set."""


class DualEncoder:
    """Two networks as an Encoder. Its concepts are regions and words, without special rows.

    ``images`` encodes prepared pictures, ``texts`` sentences. ``open_preparer`` is called with the
    first picture. ``tokens`` has the ``vocabulary``: the words that have an id of their own.
    Without ``concepts`` embeddings have vectors only. A ``bank`` of queries adds the components
    of offsets.
    """

    def __init__(
        self,
        identity: Identity,
        tokens: Any,
        open_preparer: Callable[[], Callable[[ImageRef], Any]],
        images: Callable[[Sequence[Any]], Encoded],
        texts: Callable[[Sequence[str]], EncodedTexts],
        concepts: bool = True,
        bank: HubBank | None = None,
    ) -> None:
        self.identity = identity
        self.tokens = tokens
        self._open_preparer = open_preparer
        self._images = images
        self._texts = texts
        self._concepts = concepts
        self._bank = bank

    @cached_property
    def preparer(self) -> Callable[[ImageRef], Any]:
        return self._open_preparer()

    @property
    def vocabulary(self) -> frozenset[str]:
        words: frozenset[str] = self.tokens.vocabulary
        return words

    def prepare(self, image: ImageRef) -> Any:
        return self.preparer(image)

    def encode_images(self, prepared: Sequence[Any]) -> Embeddings:
        vectors, sets = self._images(prepared)
        if self._bank is not None:
            vectors, sets = self._bank.extend("image", vectors, sets)
        if not self._concepts:
            return Embeddings("image", vectors)
        boxes = Ragged.from_sets([each.boxes for each in prepared], 4)
        return Embeddings("image", vectors, sets, boxes=boxes)

    def encode_texts(self, texts: Sequence[str]) -> Embeddings:
        vectors, sets, words = self._texts(texts)
        if self._bank is not None:
            vectors, sets = self._bank.extend("text", vectors, sets, texts)
        if not self._concepts:
            return Embeddings("text", vectors)
        return Embeddings("text", vectors, sets, words=words)


def choose_towers(
    record: OnnxRecord | None,
    runtime: Runtime,
    on_onnx: Callable[[OnnxRecord], Any],
    on_torch: Callable[[], Any],
) -> tuple[Any, Callable[[], Any]]:
    """Return the towers that encode sentences, and a function that opens the towers for pictures.

    Sentences go through ONNX Runtime wherever a folder has their network, pictures only where
    there is no GPU.
    """
    open_torch = cache(on_torch)
    if record is None or TEXT not in record.files:
        return open_torch(), open_torch
    towers = on_onnx(record)
    if IMAGE in record.files and (runtime.device == "cpu" or not has_cuda()):
        return towers, lambda: towers
    return towers, open_torch
