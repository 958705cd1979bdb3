"""Dual encoders on ONNX Runtime: on a CPU, without torch and transformers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from boc.types import Ragged

from .dual_inputs import ClipInput, PixelForm, Preparer, TextForm
from .onnx_record import IMAGE, OnnxRecord
from .onnx_towers import OnnxSessions

if TYPE_CHECKING:
    from tokenizers import Encoding

TOKENIZER = "onnx-tokenizer.json"


class DualOnnx(OnnxSessions):
    """The towers that ``onnx_export`` wrote beside the weights of a model."""

    def __init__(self, folder: Path, record: OnnxRecord, batch: int) -> None:
        from tokenizers import Tokenizer

        super().__init__(folder, record, batch)
        details = record.details
        tokenizer = Tokenizer.from_str(record.check(folder, TOKENIZER).read_text(encoding="utf-8"))
        self.form = TextForm(tokenizer, **details["text"])
        self._concepts = details["grid"] is not None
        grid = tuple(details["grid"]) if self._concepts else None
        self.preparer = (
            Preparer(PixelForm(**details["pixels"]), grid) if IMAGE in record.files else None
        )

    def images(self, prepared: Sequence[ClipInput]) -> tuple[NDArray[np.float32], Ragged]:
        pixels = [each.inputs["pixel_values"] for each in prepared]
        return self._of(self.image, "pixel_values", pixels, [slice(None)] * len(pixels))

    def texts(self, encodings: Sequence[Encoding]) -> tuple[NDArray[np.float32], Ragged]:
        arrays = [self.form.arrays([each]) for each in encodings]
        return self._of(
            self.text,
            "input_ids",
            [ids[0] for ids, _, _ in arrays],
            [own[0] for *_, own in arrays],
        )

    def _of(
        self,
        session: Any,
        name: str,
        inputs: Sequence[NDArray[Any]],
        places: Sequence[Any],
    ) -> tuple[NDArray[np.float32], Ragged]:
        """Return the vectors of inputs, and the rows ``places`` of each set."""
        kept = places if self._concepts else [slice(0)] * len(places)
        return self.encode(
            session,
            [len(each) for each in inputs],
            lambda batch: {name: np.stack([inputs[i] for i in batch])},
            lambda place, own: own[kept[place]],
        )
