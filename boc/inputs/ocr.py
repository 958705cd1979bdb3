"""Read the words inside pictures (optical character recognition) as metadata for full-text search.

The package rapidocr runs the networks of PP-OCR (Cui et al., PaddleOCR 3.0 Technical Report,
arXiv:2507.05595). Its wheel includes the networks, and boc passes it their file names, so nothing
is downloaded.
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
"""Network files of rapidocr: Det finds lines of text, Cls turns them upright, and Rec reads
them."""


def check_installed() -> None:
    """Raise BocError with the next step if words cannot be read here."""
    for name in ("rapidocr", "onnxruntime"):
        if find_spec(name) is None:
            raise BocError(
                f"reading the words inside pictures needs the package {name}; install it with: "
                "pip install 'boc[ocr]'",
            )


def words_inside(image: ImageRef) -> dict[str, str]:
    """Return the text in a picture as ``ocr``: its lines from top to bottom, joined into one line;
    empty if there is no text.

    For a picture that cannot be read, the text is empty and a warning is shown; other pictures are
    still read.
    """
    import numpy as np

    lines = ()
    try:
        with decoding(str(image.path)):
            # The networks take the upright picture as uint8 (h, w, 3), blue first.
            pixels = np.asarray(read_image(image.path))[:, :, ::-1]
            lines = _engine()(np.ascontiguousarray(pixels)).txts or ()
    except ImageError as error:
        note(f"its words are not read: {error}")
    return {"ocr": printable(" ".join(lines))}


@cache
def _engine() -> Any:
    """Return the OCR reader of this process, which uses as many threads as numpy."""
    # Otherwise onnxruntime stores a device id and looks up its telemetry server.
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    import rapidocr

    folder = Path(rapidocr.__file__).parent / "models"
    files = {part: next(folder.glob(pattern), None) for part, pattern in NETWORKS.items()}
    if None in files.values():
        raise BocError(
            f"{folder} lacks networks; install a version that brings them: pip install -U "
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
