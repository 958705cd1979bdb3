"""Regions from an object detector of ``transformers``: DETR and its descendants, YOLOS, RT-DETR and so on."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers import AutoModelForObjectDetection

from boc.errors import EncoderError
from boc.inputs.images import read_image
from boc.types import Identity, ImageRef, Regions

from . import _pretrained
from ._shared import BoxOptions, parse_spec, select, write_spec


def load(argument: str) -> DetectorRegions:
    """Return the source ``NAME_OR_FOLDER?top=36&threshold=0.2``. EncoderError if the detector is not on this disk."""
    name, options = parse_spec(argument, BoxOptions)
    return DetectorRegions(name, options)


class DetectorRegions:
    """The confident boxes of a detector, each with the last hidden state of its query.

    All these detectors have queries (and no region pooling). The state of a query depends on the whole picture and the
    other queries, so features are contextual. A query gives at most one region. Its confidence is that of its most
    likely class: by softmax without the no-object class if the detector has one, else by sigmoid, as in
    ``post_process_object_detection`` of its processor. Overlaps are not suppressed.
    """

    def __init__(self, name: str, options: BoxOptions | None = None) -> None:
        self._options = options or BoxOptions()
        self._model = _pretrained.load(name, AutoModelForObjectDetection, "detector")
        spec = write_spec("detector", self._model.name, self._options)
        decides = f"Kept(top={self._options.top}, threshold={self._options.threshold})"
        digest = hashlib.sha256(f"{self._model.digest} {decides}".encode()).hexdigest()
        try:
            states, _, _ = self._detect(Image.new("RGB", (64, 48)))
        except (AttributeError, TypeError) as error:
            raise EncoderError(f"{name}: gives no boxes by queries ({error}); use a DETR or YOLOS") from error
        self.identity = Identity(spec, digest, states.shape[1])

    def __call__(self, image: ImageRef) -> Regions:
        states, confidence, corners = self._detect(read_image(image.path))
        boxes, rows = select(corners.numpy(), confidence.numpy(), self._options)
        return Regions(states.numpy()[rows].astype(np.float32), boxes)

    def __reduce__(self) -> tuple[Any, ...]:
        return load, (self.identity.spec.partition(":")[2],)

    @torch.inference_mode()
    def _detect(self, picture: Image.Image) -> tuple[Tensor, Tensor, Tensor]:
        """Return the states (q, d), confidences (q,), and corners (q, 4), as fractions of the picture, of all
        queries."""
        output = self._model.network(**self._model.inputs(picture))
        logits = output.logits[0].float()
        config: Any = self._model.network.config
        softmax = logits.shape[1] > config.num_labels or not getattr(config, "use_focal_loss", True)
        scores = logits.softmax(-1)[:, :-1] if softmax else logits.sigmoid()
        states = output.last_hidden_state[0, -len(logits) :].float()  # in YOLOS the queries follow the patches
        centre, size = output.pred_boxes[0].float().split(2, dim=1)
        corners = torch.cat([centre - size / 2, centre + size / 2], dim=1)
        return states.cpu(), scores.amax(1).cpu(), corners.cpu()
