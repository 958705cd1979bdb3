"""Export of networks to ONNX, so that sentences and pictures are encoded without torch."""

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.onnx import OnnxExporterError

from boc.atomic_files import replacing, write_text
from boc.errors import EncoderError
from boc.types import Regions, Runtime

from .. import clip
from . import model_config
from .dual_inputs import ClipInput, Inputs, PixelForm, patch_boxes
from .dual_onnx import TOKENIZER, DualOnnx
from .model_folder import is_model, load_network
from .onnx_record import IMAGE, RECORD, TEXT, ModelFiles, OnnxRecord, read_record
from .onnx_towers import OnnxTowers, image_inputs
from .torch_towers import TorchTowers

LENGTHS = (0, 1, 3, 9)
"""Numbers of regions and words of the random inputs that are compared."""


class _TowerExport(NamedTuple):
    """A network to export: an example of its inputs, how many of their axes have any length, and a
    function that gives vectors and rows by either runtime, for comparison."""

    module: nn.Module
    example: dict[str, NDArray[Any]]
    free: int
    encode: Callable[[Any], Any]


def export(folder: Path) -> Iterator[str]:
    """Write the networks of a model folder, or of a folder with a dual encoder, in ONNX beside its
    weights, unless they are there.

    Yields a line before each. A network with an operation that ONNX lacks is left to torch, with a
    line that says so. EncoderError if ONNX Runtime computes something else than torch.
    """
    if is_model(folder):
        parts = model_config.parts(folder)
        write = _export_sets
    else:
        parts = clip.parts(str(folder), folder)
        write = _export_dual
    present = read_record(folder, parts)
    if present is not None and present.is_whole(folder):
        return
    (folder / RECORD).unlink(missing_ok=True)
    yield from write(folder, parts)


def _export_sets(folder: Path, parts: ModelFiles) -> Iterator[str]:
    network = load_network(folder, model_config.read_config(folder)).eval()
    rng = np.random.default_rng(0)
    vocabulary = int(network.text.get("vocab_size") or network.text["vocabulary"])
    texts = [rng.integers(1, vocabulary, 2 + length).tolist() for length in LENGTHS]
    places = [range(len(row)) for row in texts]
    regions = []
    for length in LENGTHS:
        # The first corner of a box is above and left of the second.
        corners = np.sort(rng.random((length, 2, 2), np.float32), axis=1)
        features = rng.random((length, network.config.region_dim), np.float32)
        regions.append(Regions(features, corners.reshape(length, 4)))
    towers = {
        TEXT: _TowerExport(
            _Texts(network),
            {"ids": np.array([texts[-1]] * 2)},
            2,
            lambda on: on.texts(texts, places)[:2],
        ),
        IMAGE: _TowerExport(
            _Images(network),
            image_inputs([regions[-1]] * 2),
            2,
            lambda on: on.images(regions),
        ),
    }
    yield from _write(folder, parts, towers, TorchTowers(network, Runtime("cpu")), OnnxTowers)


def _export_dual(folder: Path, parts: ModelFiles) -> Iterator[str]:
    """As ``export``. Pictures that are prepared in another way than that of ``PixelForm`` are left
    to torch."""
    network = clip.open_network(str(folder), folder, Runtime("cpu"))
    form = network.form
    encodings = form.encode(("a photo", "a dog", "two dogs play in the snow", ""))
    towers = {
        TEXT: _TowerExport(
            _DualTexts(network),
            {"input_ids": form.arrays(encodings[:1] * 2)[0]},
            1 if form.full else 2,
            lambda on: on.texts(encodings),
        ),
    }
    picture = Image.radial_gradient("L").convert("RGB")
    pictures = [picture.resize(size) for size in ((320, 200), (90, 131), (256, 256))]
    inputs = [network.preparer.inputs(picture) for picture in pictures]
    boxes = patch_boxes((0, 0, 1, 1), *(network.grid or (0, 0)))
    prepared = [ClipInput(each, boxes) for each in inputs]
    pixels = _pixel_form(network.preparer.processor, pictures, inputs)
    if pixels is None:
        yield f"{IMAGE} is left to torch: its pictures are prepared in a way of their own"
    else:
        towers[IMAGE] = _TowerExport(
            _DualImages(network),
            {"pixel_values": np.stack([each["pixel_values"] for each in inputs[:2]])},
            1,
            lambda on: on.images(prepared),
        )
    write_text(folder / TOKENIZER, form.tokenizer.to_str())
    details = {
        "grid": network.grid,
        "pixels": pixels and asdict(pixels),
        "text": {"limit": form.limit, "pad": form.pad, "full": form.full, "left": form.left},
    }
    yield from _write(folder, parts, towers, network, DualOnnx, [TOKENIZER], **details)


def _write(
    folder: Path,
    parts: ModelFiles,
    towers: dict[str, _TowerExport],
    reference: Any,
    runtime: Callable[[Path, OnnxRecord, int], Any],
    names: Sequence[str] = (),
    **details: Any,
) -> Iterator[str]:
    """Write the networks, compare each with ``reference``, and write the record of these and of the
    files ``names``."""
    written = []
    for name, tower in towers.items():
        yield f"writing {name}"
        try:
            with replacing(folder / name) as temporary:
                _write_onnx(tower, temporary)
            written.append(name)
        except OnnxExporterError as error:
            lines = str(error.__cause__ or error).splitlines()
            yield f"{name} is left to torch: {' '.join(lines[:1])}"
    record = OnnxRecord.of(
        folder,
        parts,
        reference.dim,
        [*written, *names],
        **details,
    )
    for name in written:
        vectors, sets = towers[name].encode(runtime(folder, record, 2))
        expected, rows = towers[name].encode(reference)
        if not _are_close(vectors, expected) or not _are_close(sets.values, rows.values):
            raise EncoderError(
                f"{folder / name}: ONNX Runtime computes something else than torch; report this "
                "model",
            )
    record.write(folder)


def _write_onnx(tower: _TowerExport, path: Path) -> None:
    inputs = {name: torch.from_numpy(values) for name, values in tower.example.items()}
    free = {
        name: dict.fromkeys(range(min(tower.free, rows.ndim)), torch.export.Dim.DYNAMIC)
        for name, rows in inputs.items()
    }
    # The exporter reports each step; its result is compared afterwards.
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                tower.module.eval(),
                kwargs=inputs,
                dynamic_shapes=free,
                dynamo=True,
                verbose=False,
                opset_version=18,
            )
    finally:
        logging.disable(logging.NOTSET)
    assert program is not None
    program.save(path)


class _ExportedTower(nn.Module):
    """A tower of a network, with the parameters of all of it."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network
        self.model = getattr(network, "model", None)


class _Images(_ExportedTower):
    def forward(
        self,
        features: Tensor,
        boxes: Tensor,
        lengths: Tensor,
    ) -> tuple[Tensor, Tensor]:
        encoded = self.network.images(features, boxes, lengths)
        before, behind = self.network.region_margins
        return encoded.vectors, encoded.sets[:, before : encoded.sets.shape[1] - behind]


class _Texts(_ExportedTower):
    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # There is no padding.
        lengths = torch.zeros(ids.shape[0], dtype=torch.long) + ids.shape[1]
        encoded = self.network.texts(ids, lengths)
        return encoded.vectors, encoded.sets, self.network.word_mask(ids, lengths)


class _DualTexts(_ExportedTower):
    def forward(self, input_ids: Tensor) -> tuple[Tensor, Tensor]:
        vectors, hidden = self.network.text(input_ids=input_ids)
        if self.network.grid is None:
            return vectors, hidden
        return vectors, self.network.text.joint(hidden)


class _DualImages(_ExportedTower):
    def forward(self, pixel_values: Tensor) -> tuple[Tensor, Tensor]:
        vectors, hidden = self.network.image(pixel_values=pixel_values)
        if self.network.grid is None:
            return vectors, hidden
        rows, columns = self.network.grid
        patches = hidden[:, hidden.shape[1] - rows * columns :]
        return vectors, self.network.image.joint(patches)


def _pixel_form(
    processor: Any,
    pictures: list[Image.Image],
    expected: list[Inputs],
) -> PixelForm | None:
    """Return the form of a processor, None if it prepares pictures in another way."""
    try:
        form = PixelForm.of(processor)
        for picture, inputs in zip(pictures, expected, strict=True):
            (pixels,) = inputs.values()
            if not np.allclose(form(picture)["pixel_values"][0], pixels, atol=1e-5):
                return None
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    return form


def _are_close(one: NDArray[np.float32], other: NDArray[np.float32]) -> bool:
    """Return whether each row differs by at most a hundredth of its length, so that the cosine is
    above .9999: the runtimes add in another order."""
    if one.shape != other.shape:
        return False
    differences = np.linalg.norm(one - other, axis=1)
    return bool((differences <= 0.01 * np.linalg.norm(other, axis=1)).all())
