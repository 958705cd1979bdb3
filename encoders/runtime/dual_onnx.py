"""Dual encoders on ONNX Runtime: on a CPU, without torch and transformers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from .dual_encoder import Encoded
from .dual_inputs import ClipInput, Inputs, PixelForm, Preparer, TextForm
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
        inputs = [{"pixel_values": each.inputs["pixel_values"]} for each in prepared]
        return self._encode(
            self.image,
            "pixel_values",
            inputs,
            [slice(None)] * len(inputs),
        )

    def texts(self, encodings: Sequence[Encoding]) -> Encoded:
        inputs = []
        places = []
        for each in encodings:
            ids, attended, words = self.form.arrays([each])
            inputs.append({"input_ids": ids[0], "attention_mask": attended[0]})
            places.append(words[0])
        return self._encode(self.text, "input_ids", inputs, places)

    def _encode(
        self,
        session: Any,
        name: str,
        inputs: Sequence[Inputs],
        places: Sequence[Any],
    ) -> Encoded:
        """Return the vectors of inputs, whose length is that of ``name``, and the rows ``places``
        of each set."""
        if self.grid is None:
            places = [slice(0)] * len(inputs)

        def stack(batch: list[int]) -> dict[str, NDArray[Any]]:
            return {key: np.stack([inputs[i][key] for i in batch]) for key in inputs[batch[0]]}

        return self.encode(
            session,
            [len(each[name]) for each in inputs],
            stack,
            lambda place, own: own[places[place]],
        )
