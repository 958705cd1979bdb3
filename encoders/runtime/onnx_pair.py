"""Run pairs of published ONNX networks, such as CLIP and SigLIP, on a CPU without torch.

Settings files beside a network describe the preprocessing of pictures, in the format of
transformers or open_clip, and of sentences. The network itself declares the names, types and shapes
of its inputs, and the names of its outputs.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tokenizers import Encoding, Regex, Tokenizer, normalizers

from boc.errors import EncoderError
from boc.foreign import read_json
from boc.models import Pair
from boc.vectors import Array, Floats, unit_rows

from ..networks.foreign import reading_model
from .dual_inputs import Inputs, PixelForm, Preparer, TextForm
from .onnx_record import ModelFiles, OnnxRecord, read_record
from .onnx_towers import OnnxSessions
from .sessions import open_session

VECTORS = ("text_embeds", "image_embeds", "embedding", "sentence_embedding", "pooler_output")
"""Names of outputs that contain vectors, with projected vectors first."""
TYPES = {
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
}
INPUTS = {"text": "input_ids", "image": "pixel_values"}
"""Names of inputs in open_clip networks, and the corresponding names in transformers."""


class PairOnnx(OnnxSessions):
    """Networks of a ``pair`` in ``folder``, described by ``record``."""

    def __init__(
        self,
        folder: Path,
        record: OnnxRecord,
        batch: int,
        pair: Pair,
    ) -> None:
        super().__init__(folder, record, batch)
        self.names = (pair.image, pair.text)
        details = record.details
        with reading_model(lambda reason: f"{folder / pair.tokenizer}: no tokenizer ({reason})"):
            tokenizer = Tokenizer.from_file(str(record.check(folder, pair.tokenizer)))
        steps = [tokenizer.normalizer] if tokenizer.normalizer else []
        if details["plain"]:
            # open_clip also removes punctuation for networks with this training.
            steps.insert(0, normalizers.Replace(Regex(r"[!-/:-@\[-`{-~]"), ""))
        if details["lower"]:
            steps.insert(0, normalizers.Lowercase())
        if steps:
            tokenizer.normalizer = normalizers.Sequence(steps)
        self.form = TextForm(tokenizer, **details["text"])
        self.preparer = Preparer(PixelForm(**details["pixels"]))

    def images(self, prepared: Sequence[Inputs]) -> Floats:
        return self._vectors(self.image, "pixel_values", prepared)

    def texts(self, encodings: Sequence[Encoding]) -> Floats:
        inputs = []
        for each in encodings:
            ids, attended = self.form.arrays([each])
            inputs.append({"input_ids": ids[0], "attention_mask": attended[0]})
        return self._vectors(self.text, "input_ids", inputs)

    def _vectors(
        self,
        session: Any,
        name: str,
        inputs: Sequence[Inputs],
    ) -> Floats:
        """Return the vectors of inputs. The array ``name`` determines the length of an input."""

        def stack(batch: list[int]) -> dict[str, Array]:
            return {key: np.stack([inputs[i][key] for i in batch]) for key in inputs[0]}

        no_rows = np.empty((0, self.dim), np.float32)
        lengths = [len(each[name]) for each in inputs]
        vectors, _ = self.encode(session, lengths, stack, lambda place: no_rows)
        return vectors

    def _run(
        self,
        session: Any,
        inputs: Mapping[str, Array],
    ) -> list[Array]:
        """Run a network and return vectors of unit length."""
        feed = {}
        for each in session.get_inputs():
            name = INPUTS.get(each.name, each.name)
            if name not in inputs:
                raise EncoderError(
                    f"an ONNX network has an input {each.name!r}, which boc does not provide",
                )
            feed[each.name] = inputs[name].astype(TYPES[each.type])
        names = [each.name for each in session.get_outputs()]
        output = next((name for name in VECTORS if name in names), names[0])
        with reading_model(lambda reason: f"an ONNX network cannot be run ({reason})"):
            (vectors,) = session.run([output], feed)
        if vectors.ndim != 2 or (self.dim and vectors.shape[1] != self.dim):
            raise EncoderError(
                f"an ONNX network returns {output} of shape {vectors.shape} instead of one vector "
                "per input with the width of the other network; use another model",
            )
        return [unit_rows(vectors.astype(np.float32))]


def describe(
    folder: Path,
    pair: Pair,
    parts: ModelFiles,
) -> OnnxRecord:
    """Return the record of a pair from ``folder``. If there is no valid record, create a new record
    and write it to the folder if possible. Raises EncoderError for networks or settings that boc
    cannot use."""
    record = read_record(folder, parts)
    if record is not None:
        return record
    with reading_model(lambda reason: f"{folder}: settings that boc cannot use ({reason})"):
        details = {
            "pixels": asdict(pixel_form(read_json(folder / pair.pixels))),
            **_text_details(folder, pair),
        }
    files = [name for name in (*pair.weights, pair.tokenizer) if (folder / name).is_file()]
    record = OnnxRecord.of(folder, parts, 1, files, **details)
    towers = PairOnnx(folder, record, 1, pair)
    # The first run determines the width of vectors; the second run must return the same width.
    towers.dim = 0
    ids, attended = towers.form.arrays(towers.form.encode(["a photo"]))
    (vectors,) = towers._run(towers.text, {"input_ids": ids, "attention_mask": attended})
    towers.dim = vectors.shape[1]
    (pixels,) = towers.preparer.inputs(Image.radial_gradient("L").convert("RGB")).values()
    towers._run(towers.image, {"pixel_values": pixels[None]})
    record = replace(record, dim=towers.dim)
    with suppress(OSError):
        record.write(folder)
    return record


def pixel_form(settings: Mapping[str, Any]) -> PixelForm:
    """Return the picture preprocessing for the settings of a CLIP or SigLIP processor of
    transformers, or of an open_clip processor. Raises ValueError for another kind."""
    if "interpolation" in settings:
        # open_clip settings consist of a size and two names.
        side = settings["size"]
        height, width = side if isinstance(side, list) else (side, side)
        whole = {"squash": True, "shortest": False}[settings.get("resize_mode", "shortest")]
        sides = {"height": height, "width": width}
        settings = {
            "size": sides if whole else {"shortest_edge": min(height, width)},
            "resample": Image.Resampling[settings["interpolation"].upper()],
            "do_center_crop": not whole,
            "crop_size": sides,
            "image_mean": settings["mean"],
            "image_std": settings["std"],
        }
    kind = settings.get("image_processor_type") or settings.get("feature_extractor_type") or "CLIP"
    square = kind.startswith(("Siglip", "ViT"))
    if "max_num_patches" in settings or not (square or "CLIP" in kind):
        raise ValueError(f"its processor {kind} is not supported")
    size = settings["size"]
    if isinstance(size, int):
        size = {"height": size, "width": size} if square else {"shortest_edge": size}
    crop = settings.get("crop_size") or {}
    if isinstance(crop, int):
        crop = {"height": crop, "width": crop}
    scaled = settings.get("do_normalize", True)
    return PixelForm(
        settings.get("do_resize", True),
        size,
        int(settings["resample"]),
        bool(settings.get("do_center_crop")),
        crop,
        settings.get("rescale_factor") or 1 / 255,
        settings["image_mean"] if scaled else [0.0] * 3,
        settings["image_std"] if scaled else [1.0] * 3,
    )


def _text_details(folder: Path, pair: Pair) -> dict[str, Any]:
    """Return the details of sentence preprocessing, from the settings next to the tokenizer and
    from the network."""
    beside = folder / pair.tokenizer
    own = beside.with_name("config.json")
    config = read_json(own if own.is_file() else folder / "config.json")
    text = config.get("text_config") or config.get("text_cfg") or config
    kind = str(text.get("model_type") or config.get("model_type"))
    siglip = kind.startswith("siglip")
    marks = beside.with_name("tokenizer_config.json")
    tokens = read_json(marks) if marks.is_file() else {}
    (_, fixed, *_) = open_session(folder / pair.text).get_inputs()[0].shape
    stated = [text.get("max_position_embeddings"), text.get("context_length")]
    limits = [fixed, tokens.get("model_max_length"), *stated]
    if stated == [None, None]:
        limits.append(64 if siglip else 77)
    full = siglip or isinstance(fixed, int)
    pad = tokens.get("pad_token") or ""
    name = pad["content"] if isinstance(pad, dict) else pad
    plain = (text.get("tokenizer_kwargs") or {}).get("clean") == "canonicalize"
    return {
        "text": {
            "limit": min(each for each in limits if isinstance(each, int)),
            "pad": Tokenizer.from_file(str(beside)).token_to_id(name) or 0,
            "full": full,
            "left": full and tokens.get("padding_side") == "left",
        },
        "lower": siglip or plain,
        "plain": plain,
    }
