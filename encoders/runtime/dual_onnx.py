"""Dual encoders on ONNX Runtime: on a CPU, without torch and transformers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from .dual_encoder import Encoded
from .dual_inputs import ClipInput, PixelForm, Preparer, TextForm
from .onnx_record import OnnxRecord
from .onnx_towers import OnnxSessions

TOKENIZER = "onnx-tokenizer.json"


class DualOnnx(OnnxSessions):
    """The towers that ``onnx_export`` wrote beside the weights of a model."""

    def __init__(
        self,
        folder: Path,
        record: OnnxRecord,
        batch: int,
    ) -> None:
        super().__init__(folder, record, batch)
        details = record.details
        tokenizer = Tokenizer.from_str(record.check(folder, TOKENIZER).read_text(encoding="utf-8"))
        self.form = TextForm(tokenizer, **details["text"])
        self.grid = details["grid"]

    @property
    def preparer(self) -> Preparer:
        return Preparer(PixelForm(**self.record.details["pixels"]), self.grid)

    def images(self, prepared: Sequence[ClipInput]) -> Encoded:
        pixels = [each.inputs["pixel_values"] for each in prepared]
        return self._encode(
            self.image,
            "pixel_values",
            pixels,
            [slice(None)] * len(pixels),
        )

    def texts(self, encodings: Sequence[Encoding]) -> Encoded:
        arrays = [self.form.arrays([each]) for each in encodings]
        ids = [ids[0] for ids, _, _ in arrays]
        words = [words[0] for _, _, words in arrays]
        return self._encode(self.text, "input_ids", ids, words)

    def _encode(
        self,
        session: Any,
        name: str,
        inputs: Sequence[NDArray[Any]],
        places: Sequence[Any],
    ) -> Encoded:
        """Return the vectors of inputs, and the rows ``places`` of each set."""
        if self.grid is None:
            places = [slice(0)] * len(inputs)
        return self.encode(
            session,
            [len(each) for each in inputs],
            lambda batch: {name: np.stack([inputs[i] for i in batch])},
            lambda place, own: own[places[place]],
        )
