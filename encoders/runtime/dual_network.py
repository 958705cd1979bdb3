"""Run dual encoders from the ``transformers`` library on torch, as the reference for ONNX networks
and for use on a GPU."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tokenizers import Encoding, normalizers
from torch import Tensor, nn
from transformers import MODEL_MAPPING, AutoConfig, AutoImageProcessor, AutoTokenizer

from boc.errors import EncoderError
from boc.types import Runtime
from boc.vectors import Array, Floats

from ..networks.foreign import quiet_transformers, reading_model
from . import device
from .batching import Encode, in_batches, to_device
from .dual_inputs import Inputs, Preparer, TextForm

WORKS = (
    "CLIP, SigLIP, SigLIP 2, MetaCLIP 2, Chinese-CLIP, AltCLIP, CLIPSeg, ALIGN, AIMv2, "
    "VisionTextDualEncoder"
)


class DualNetwork:
    """Two towers of a model on a device, with their input formats.

    ``form`` converts sentences to ids, ``preparer`` converts pictures to pixels, and ``dim`` is the
    width of the joint space. Raises ValueError if the towers do not match.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        processor: Any,
        runtime: Runtime,
    ) -> None:
        self.device = device.pick(runtime.device)
        self.model = model.float().eval().to(self.device)
        self.form = self._form(tokenizer)
        self._masked = not self.form.full and "attention_mask" in tokenizer.model_input_names
        self._runtime = runtime
        self.preparer = Preparer(processor)
        picture = self.preparer.inputs(Image.radial_gradient("L").convert("RGB"))
        with torch.inference_mode():
            image, _ = self._pictures([picture])
            text, _ = self._sentences(self.form.encode(["a photo"]))
        if image.ndim != 2 or image.shape != text.shape:
            raise ValueError(
                f"vectors of pictures {tuple(image.shape)} and texts {tuple(text.shape)} are not "
                "comparable",
            )
        self.dim = image.shape[1]

    def images(self, prepared: Sequence[Inputs]) -> Floats:
        return self._in_batches(prepared, self._pictures)

    def texts(self, encodings: Sequence[Encoding]) -> Floats:
        return self._in_batches(encodings, self._sentences)

    def _in_batches(
        self,
        inputs: Sequence[Any],
        encode: Encode[Any],
    ) -> Floats:
        vectors, _ = in_batches(
            self.device,
            self._runtime,
            self.dim,
            inputs,
            [len(each) for each in inputs],
            encode,
        )
        return vectors

    def _pictures(self, batch: Sequence[Inputs]) -> tuple[Tensor, list[Tensor]]:
        arrays = {name: np.stack([each[name] for each in batch]) for name in batch[0]}
        return self._run(self.model.get_image_features, arrays)

    def _sentences(self, batch: Sequence[Encoding]) -> tuple[Tensor, list[Tensor]]:
        ids, attended = self.form.arrays(batch)
        arrays = {"input_ids": ids}
        if self._masked:
            arrays["attention_mask"] = attended
        return self._run(self.model.get_text_features, arrays)

    def _run(
        self,
        features: Any,
        arrays: dict[str, Array],
    ) -> tuple[Tensor, list[Tensor]]:
        """Return unit vectors (B, dim), and B sets without rows."""
        inputs = {
            name: to_device(torch.from_numpy(array), self.device) for name, array in arrays.items()
        }
        vectors = nn.functional.normalize(features(**inputs).pooler_output.float(), dim=-1)
        return vectors, [vectors[:0]] * len(vectors)

    def _form(self, tokenizer: Any) -> TextForm:
        backend = tokenizer.backend_tokenizer
        # SigLIP was trained with lower-case texts padded to full length, and reads the padding.
        config = self.model.config.text_config
        full = config.model_type.startswith("siglip")
        if full:
            steps = [normalizers.Lowercase(), backend.normalizer]
            backend.normalizer = normalizers.Sequence([each for each in steps if each is not None])
        # A text has at most 512 ids, unless the tokenizer or the network sets a lower limit.
        return TextForm(
            backend,
            min(512, tokenizer.model_max_length, config.max_position_embeddings),
            tokenizer.pad_token_id or 0,
            full,
            full and tokenizer.padding_side == "left",
        )


def read_model(
    name: str,
    folder: Path,
    runtime: Runtime,
) -> DualNetwork:
    """Read the model in a folder. Raises EncoderError for an unusable model."""
    again = f"get it again, or use one of {WORKS}"
    unusable = f"{name}: not a usable dual encoder"
    with quiet_transformers(), reading_model(lambda reason: f"{unusable} ({reason}); {again}"):
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        kind: Any = MODEL_MAPPING.get(type(config), None)
        if not (hasattr(kind, "get_image_features") and hasattr(kind, "get_text_features")):
            raise EncoderError(
                f"{name}: a model of type {config.model_type!r} does not encode pictures and texts "
                f"separately; use one of {WORKS}",
            )
        model, info = kind.from_pretrained(
            folder,
            config=config,
            local_files_only=True,
            output_loading_info=True,
        )
        absent = sorted(info["missing_keys"])
        if absent:
            raise ValueError(f"{len(absent)} weights are missing, such as {absent[0]}")
        tokenizer = AutoTokenizer.from_pretrained(
            folder,
            local_files_only=True,
            trust_remote_code=False,
        )
        # Pillow resizes pictures as the authors of the models did, whereas torchvision differs
        # slightly.
        processor = AutoImageProcessor.from_pretrained(folder, local_files_only=True, backend="pil")
        return DualNetwork(model, tokenizer, processor, runtime)
