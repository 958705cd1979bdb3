"""Dual encoders of the ``transformers`` library, on torch: the reference, and on a GPU."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from tokenizers import Encoding, normalizers
from torch import Tensor, nn
from transformers import MODEL_MAPPING, AutoConfig, AutoImageProcessor, AutoTokenizer

from boc.errors import EncoderError
from boc.types import Runtime

from ..networks.dual_tower import Tower
from ..networks.foreign import quiet_transformers, reading_model
from . import device
from .batching import Encode, in_batches, to_device
from .dual_encoder import Encoded
from .dual_inputs import ClipInput, Inputs, Preparer, TextForm

WORKS = (
    "CLIP, SigLIP, SigLIP 2, MetaCLIP 2, Chinese-CLIP, AltCLIP, CLIPSeg, ALIGN, AIMv2, "
    "VisionTextDualEncoder"
)


class DualNetwork:
    """The two towers of a model, on a device, with the forms of their inputs.

    ``form`` says how sentences become ids, ``preparer`` how pictures become pixels, ``grid`` which
    patches they have, ``dim`` is the width of the joint space. ValueError if the towers do not
    belong together.
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
        self.image = Tower(
            model.get_image_features,
            model.vision_model,
            getattr(model, "visual_projection", None),
        )
        self.text = Tower(
            model.get_text_features,
            model.text_model,
            getattr(model, "text_projection", None),
        )
        self.form = self._form(tokenizer)
        self._masked = not self.form.full and "attention_mask" in tokenizer.model_input_names
        self._runtime = runtime
        self.dim, self.grid = self._probe(Preparer(processor, None))
        self.preparer = Preparer(processor, self.grid)

    def images(self, prepared: Sequence[ClipInput]) -> Encoded:
        def encode(batch: Sequence[ClipInput]) -> tuple[Tensor, list[Tensor]]:
            inputs = [each.inputs for each in batch]
            vectors, hidden = self.image(**self._stack(inputs))
            if self.grid is None:
                return vectors, [vectors[:0]] * len(batch)
            # [CLS] and registers come before the patches; NaFlex networks have padding behind them.
            before = hidden.shape[1] - len(batch[0])
            if "spatial_shapes" in inputs[0]:
                before = 0
            tokens = self.image.joint(hidden[:, before:])
            return vectors, [rows[: len(each)] for rows, each in zip(tokens, batch, strict=True)]

        return self._in_batches(prepared, encode)

    def texts(self, encodings: Sequence[Encoding]) -> Encoded:
        def encode(batch: Sequence[Encoding]) -> tuple[Tensor, list[Tensor]]:
            ids, attended, words = self.form.arrays(batch)
            vectors, hidden = self.text(**self._ids(ids, attended))
            if self.grid is None:
                return vectors, [vectors[:0]] * len(batch)
            masks = to_device(torch.from_numpy(words), self.device)
            tokens = self.text.joint(hidden)
            return vectors, [rows[mask] for rows, mask in zip(tokens, masks, strict=True)]

        return self._in_batches(encodings, encode)

    def _in_batches(
        self,
        inputs: Sequence[Any],
        encode: Encode[Any],
    ) -> Encoded:
        lengths = [len(each) for each in inputs]
        return in_batches(
            self.device,
            self._runtime,
            self.dim,
            inputs,
            lengths,
            encode,
        )

    def _form(self, tokenizer: Any) -> TextForm:
        backend = tokenizer.backend_tokenizer
        # SigLIP was trained with lower-case texts padded to full length, and reads the padding.
        full = self.model.config.text_config.model_type.startswith("siglip")
        if full:
            steps = [normalizers.Lowercase(), backend.normalizer]
            backend.normalizer = normalizers.Sequence([each for each in steps if each is not None])
        left = full and tokenizer.padding_side == "left"
        # A text has 512 ids if neither tokenizer nor network has a smaller limit.
        limits = [512, tokenizer.model_max_length]
        for name, table in self.model.text_model.named_modules():
            if isinstance(table, nn.Embedding) and name.endswith(
                ("position_embedding", "position_embeddings"),
            ):
                # RoBERTa counts positions from the one after the padding id.
                first = -1 if table.padding_idx is None else table.padding_idx
                limits.append(table.num_embeddings - first - 1)
        return TextForm(
            backend,
            min(limits),
            tokenizer.pad_token_id or 0,
            full,
            left,
        )

    @torch.inference_mode()
    def _probe(self, preparer: Preparer) -> tuple[int, tuple[int, int] | None]:
        """Run a picture and a sentence through the towers, to learn their token maps; return the
        width of the joint space and the grid of patches, None if tokens have no place in it."""
        inputs = preparer.inputs(Image.radial_gradient("L").convert("RGB"))
        image, patches = self.image(**self._stack([inputs]))
        ids, attended, _ = self.form.arrays(self.form.encode(["a photo"]))
        text, tokens = self.text(**self._ids(ids, attended))
        if image.ndim != 2 or image.shape != text.shape:
            raise ValueError(
                f"vectors of pictures {tuple(image.shape)} and texts {tuple(text.shape)} do not "
                "compare",
            )
        grid = None
        if self.image.learn_pool(image, patches) and self.text.learn_pool(text, tokens):
            patch = getattr(self.model.config.vision_config, "patch_size", None)
            grid = _grid(inputs, patches.shape[1], patch)
        return image.shape[1], grid

    def _stack(self, inputs: Sequence[Inputs]) -> dict[str, Tensor]:
        arrays = {name: np.stack([each[name] for each in inputs]) for name in inputs[0]}
        return self._to_device(arrays)

    def _ids(
        self,
        ids: NDArray[np.int64],
        attended: NDArray[np.int64],
    ) -> dict[str, Tensor]:
        arrays = {"input_ids": ids}
        if self._masked:
            arrays["attention_mask"] = attended
        return self._to_device(arrays)

    def _to_device(self, arrays: dict[str, NDArray[Any]]) -> dict[str, Tensor]:
        return {
            name: to_device(torch.from_numpy(array), self.device) for name, array in arrays.items()
        }


def read_model(
    name: str,
    folder: Path,
    runtime: Runtime,
) -> DualNetwork:
    """Read the model in a folder. EncoderError for one that cannot be used."""
    again = f"get it again, or take one of {WORKS}"
    unusable = f"{name}: no dual encoder that can be used"
    with quiet_transformers(), reading_model(lambda reason: f"{unusable} ({reason}); {again}"):
        return DualNetwork(*_transformers(name, folder), runtime)


def _transformers(name: str, folder: Path) -> tuple[Any, Any, Any]:
    """Return the network, the tokenizer and the image processor of a folder of the transformers
    library."""
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    kind: Any = MODEL_MAPPING.get(type(config), None)
    if not (hasattr(kind, "get_image_features") and hasattr(kind, "get_text_features")):
        raise EncoderError(
            f"{name}: a model of type {config.model_type!r} has no vectors of pictures and of "
            "texts, each on "
            f"its own; take one of {WORKS}",
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
    # Pillow resizes as the models' authors did; torchvision, the default where it is installed,
    # differs a little.
    processor = AutoImageProcessor.from_pretrained(folder, local_files_only=True, backend="pil")
    return model, tokenizer, processor


def _grid(
    inputs: Inputs,
    tokens: int,
    patch: Any,
) -> tuple[int, int] | None:
    """Return the rows and columns of patches among the tokens of a picture, None without a grid."""
    if "spatial_shapes" in inputs:
        rows, columns = inputs["spatial_shapes"].tolist()
        return rows, columns
    height, width = inputs["pixel_values"].shape[-2:]
    if patch:
        down, across = patch if isinstance(patch, (list, tuple)) else (patch, patch)
        rows = height // down
        columns = width // across
        # [CLS] and registers come before the patches.
        if rows * columns <= tokens <= rows * columns + 16:
            return rows, columns
    side = round(tokens**0.5)
    if height == width and side * side == tokens:
        return side, side
    return None
