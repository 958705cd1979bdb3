"""Export of networks to ONNX, so that sentences and pictures are encoded without torch."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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

# largest difference of a row by its length: the cosine is above .9999; the runtimes add in another
# order
CLOSE = 0.01
LENGTHS = (0, 1, 3, 9)  # of the random inputs that are compared
SIZES = ((320, 200), (90, 131), (256, 256))  # of pictures that are compared
SENTENCES = ("a photo", "a dog", "two dogs play in the snow", "")


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
    dual = not is_model(folder)
    parts = clip.parts(str(folder), folder) if dual else model_config.parts(folder)
    present = read_record(folder, parts)
    if present is not None and present.is_whole(folder):
        return
    (folder / RECORD).unlink(missing_ok=True)
    yield from _export_dual(folder, parts) if dual else _export_sets(folder, parts)


def _export_sets(folder: Path, parts: ModelFiles) -> Iterator[str]:
    network = load_network(folder, model_config.read_config(folder)).eval()
    rng = np.random.default_rng(0)
    vocabulary = int(network.text.get("vocab_size") or network.text["vocabulary"])
    texts = [rng.integers(1, vocabulary, 2 + length).tolist() for length in LENGTHS]
    regions = [_random_regions(rng, length, network.config.region_dim) for length in LENGTHS]
    places = [range(len(row)) for row in texts]
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
    reference = TorchTowers(network, Runtime("cpu"))
    yield from _write(folder, parts, towers, reference, network.dim, OnnxTowers)


def _export_dual(folder: Path, parts: ModelFiles) -> Iterator[str]:
    """As ``export``. Pictures that are prepared in another way than that of ``PixelForm`` are left
    to torch."""
    network = clip.open_network(str(folder), folder, Runtime("cpu"))
    encodings = network.form.encode(SENTENCES)
    form = network.form
    free = 1 if form.full else 2
    towers = {
        TEXT: _TowerExport(
            _DualTexts(network),
            {"input_ids": form.arrays(encodings[:1] * 2)[0]},
            free,
            lambda on: on.texts(encodings),
        ),
    }
    details: dict[str, Any] = {"grid": network.preparer.grid, "pixels": None}
    details["text"] = {"limit": form.limit, "pad": form.pad, "full": form.full, "left": form.left}
    pictures = [Image.radial_gradient("L").convert("RGB").resize(size) for size in SIZES]
    inputs = [network.preparer.inputs(picture) for picture in pictures]
    boxes = patch_boxes((0, 0, 1, 1), *(network.preparer.grid or (0, 0)))
    prepared = [ClipInput(each, boxes) for each in inputs]
    pixels = _pixel_form(network.preparer.processor, pictures, inputs)
    if pixels is None:
        yield f"{IMAGE} is left to torch: its pictures are prepared in a way of their own"
    else:
        details["pixels"] = asdict(pixels)
        example = {"pixel_values": np.stack([each["pixel_values"] for each in inputs[:2]])}
        towers[IMAGE] = _TowerExport(
            _DualImages(network),
            example,
            1,
            lambda on: on.images(prepared),
        )
    write_text(folder / TOKENIZER, form.tokenizer.to_str())
    yield from _write(folder, parts, towers, network, network.dim, DualOnnx, [TOKENIZER], **details)


def _write(
    folder: Path,
    parts: ModelFiles,
    towers: dict[str, _TowerExport],
    reference: Any,
    dim: int,
    runtime: Callable[[Path, OnnxRecord, int], Any],
    names: list[str] | None = None,
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
            yield (
                f"{name} is left to torch: "
                f"{next(iter(str(error.__cause__ or error).splitlines()), '')}"
            )
    record = OnnxRecord.of(folder, parts, dim, [*written, *(names or [])], **details)
    for name in written:
        results = (towers[name].encode(on) for on in (runtime(folder, record, 2), reference))
        (vectors, sets), (expected, rows) = results
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
    with _quiet():
        program = torch.onnx.export(
            tower.module.eval(),
            kwargs=inputs,
            dynamic_shapes=free,
            dynamo=True,
            verbose=False,
            opset_version=18,
        )
    assert program is not None
    program.save(path)


class _ExportedTower(nn.Module):
    """A tower of a network, with the parameters of all of it."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network
        self.model = getattr(network, "model", None)


class _Images(_ExportedTower):
    def forward(self, features: Tensor, boxes: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        encoded = self.network.images(features, boxes, lengths)
        before, behind = self.network.region_margins
        return encoded.vectors, encoded.sets[:, before : encoded.sets.shape[1] - behind]


class _Texts(_ExportedTower):
    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        lengths = torch.zeros(ids.shape[0], dtype=torch.long) + ids.shape[1]  # there is no padding
        encoded = self.network.texts(ids, lengths)
        return encoded.vectors, encoded.sets, self.network.word_mask(ids, lengths)


class _DualTexts(_ExportedTower):
    def forward(self, input_ids: Tensor) -> tuple[Tensor, Tensor]:
        vectors, hidden = self.network.text(input_ids=input_ids)
        return vectors, hidden if self.network.preparer.grid is None else self.network.text.joint(
            hidden,
        )


class _DualImages(_ExportedTower):
    def forward(self, pixel_values: Tensor) -> tuple[Tensor, Tensor]:
        vectors, hidden = self.network.image(pixel_values=pixel_values)
        grid = self.network.preparer.grid
        if grid is None:
            return vectors, hidden
        return vectors, self.network.image.joint(hidden[:, hidden.shape[1] - grid[0] * grid[1] :])


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


def _random_regions(rng: np.random.Generator, count: int, width: int) -> Regions:
    corners = np.sort(
        rng.random((count, 2, 2), np.float32),
        axis=1,
    )  # the first one is above and left of the second
    return Regions(rng.random((count, width), np.float32), corners.reshape(count, 4))


def _are_close(one: NDArray[np.float32], other: NDArray[np.float32]) -> bool:
    if one.shape != other.shape:
        return False
    return bool(
        (np.linalg.norm(one - other, axis=1) <= CLOSE * np.linalg.norm(other, axis=1)).all(),
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter, which reports each step; what it makes is compared."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
