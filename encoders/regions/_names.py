"""Names under which published features know a picture."""

from __future__ import annotations

import json
import re
from pathlib import Path, PurePosixPath

from boc.errors import EncoderError

COCO = re.compile(r"(?:COCO_[a-z]+[0-9]{4}_)?([0-9]{12})")


def known_as(image_id: str) -> list[str]:
    """The id of a picture without folder and suffix; then, if it is a name of COCO
    (``COCO_val2014_000000391895``, or those twelve digits alone), its number, ``391895``."""
    stem = PurePosixPath(image_id).stem
    number = COCO.fullmatch(stem)
    return [stem, *([str(int(number[1]))] if number else [])]


def karpathy_places(path: Path) -> dict[str, str]:
    """The place from 0 of each file name in the ``images`` of a Karpathy file, such as ``dataset_flickr30k.json``: the
    authors of TERAN number the features of Flickr30k by it. EncoderError if it is no such file."""
    try:
        images = json.loads(path.read_text(encoding="utf-8"))["images"]
        return {str(image["filename"]): str(place) for place, image in enumerate(images)}
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else type(error).__name__
        raise EncoderError(
            f"{path}: no list of images with their filename ({reason}); give Karpathy's dataset_flickr30k.json"
        ) from error
