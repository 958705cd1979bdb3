"""Recognise the text inside pictures (OCR) as metadata for full-text search.

The package rapidocr runs the PP-OCR networks (Cui et al., PaddleOCR 3.0 Technical Report,
arXiv:2507.05595). The wheel of the package includes the networks, and boc passes their file names,
so that no files are downloaded.
"""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from boc.errors import BocError, ImageError, note
from boc.inputs.images import decoding, read_image
from boc.paths import printable
from boc.types import FieldType, ImageRef

FIELDS: dict[str, FieldType] = {"ocr": "text"}
"""Type of the field that ``words_inside`` returns."""

NETWORKS = {"Det": "*_det_*.onnx", "Cls": "*_cls_*.onnx", "Rec": "*_rec_*.onnx"}
"""Network files of rapidocr. Det detects lines of text, Cls rotates them upright, and Rec
recognises the text."""


def check_installed() -> None:
    """Raise BocError, which explains the next step, if the OCR packages are not installed."""
    for name in ("rapidocr", "onnxruntime"):
        if find_spec(name) is None:
            raise BocError(
                f"recognising text in pictures needs the package {name}; install it with: "
                "pip install 'boc[ocr]'",
            )


def words_inside(image: ImageRef) -> dict[str, str]:
    """Return the text in a picture as ``ocr``, with the lines joined from top to bottom. The text
    is empty if the picture contains none.

    If a picture cannot be read, the text is empty and a warning is issued, so that other pictures
    are still processed.
    """
    import numpy as np

    lines = ()
    try:
        with decoding(str(image.path)):
            # The networks expect an upright picture as a uint8 array (h, w, 3), in BGR order.
            pixels = np.asarray(read_image(image.path))[:, :, ::-1]
            lines = _engine()(np.ascontiguousarray(pixels)).txts or ()
    except ImageError as error:
        note(f"text in a picture was not recognised: {error}")
    return {"ocr": printable(" ".join(lines))}


@cache
def _engine() -> Any:
    """Return the OCR engine of this process, which uses as many threads as NumPy."""
    # Otherwise, onnxruntime stores a device id and contacts its telemetry server.
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    import rapidocr

    folder = Path(rapidocr.__file__).parent / "models"
    files = {part: next(folder.glob(pattern), None) for part, pattern in NETWORKS.items()}
    if None in files.values():
        raise BocError(
            f"{folder} does not contain the networks; install a version that does: pip install -U "
            "'boc[ocr]'",
        )
    threads = int(os.environ.get("OMP_NUM_THREADS") or -1)
    return rapidocr.RapidOCR(
        params={
            "Global.log_level": "critical",
            "EngineConfig.onnxruntime.intra_op_num_threads": threads,
            **{f"{part}.model_path": str(file) for part, file in files.items()},
        },
    )
