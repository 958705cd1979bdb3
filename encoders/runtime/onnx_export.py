"""Export networks to ONNX, so that sentences and pictures can be encoded without torch."""

import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.onnx import OnnxExporterError

from boc.atomic_files import replacing
from boc.errors import EncoderError
from boc.types import Regions, Runtime
from boc.vectors import Array, Floats

from . import model_config
from .model_folder import load_network
from .onnx_record import IMAGE, RECORD, TEXT, OnnxRecord, read_record
from .onnx_towers import OnnxTowers, image_inputs
from .torch_towers import TorchTowers

LENGTHS = (0, 1, 3, 9)
"""Numbers of regions and words in the random inputs for the comparison."""


class _TowerExport(NamedTuple):
    """Network to export, with example inputs and a function that returns vectors and rows from
    either runtime for comparison."""

    module: nn.Module
    example: dict[str, Array]
    encode: Callable[[Any], Any]


def export(folder: Path) -> Iterator[str]:
    """Write the ONNX networks of a model folder next to its weights, unless valid networks already
    exist.

    The function yields a line before it writes each network. A network with an operation that ONNX
    does not support stays on torch, and a line reports the reason. Raises EncoderError if the
    results of ONNX Runtime and torch differ.
    """
    config = model_config.read_config(folder)
    parts = model_config.parts(folder)
    present = read_record(folder, parts)
    if present is not None and present.is_whole(folder):
        return
    (folder / RECORD).unlink(missing_ok=True)
    network = load_network(folder, config).eval()
    rng = np.random.default_rng(0)
    vocabulary = int(network.text.get("vocab_size") or network.text["vocabulary"])
    texts = [rng.integers(1, vocabulary, 2 + length).tolist() for length in LENGTHS]
    places = [range(len(row)) for row in texts]
    regions = []
    for length in LENGTHS:
        # The first corner of a box is above and to the left of the second.
        corners = np.sort(rng.random((length, 2, 2), np.float32), axis=1)
        features = rng.random((length, network.config.region_dim), np.float32)
        regions.append(Regions(features, corners.reshape(length, 4)))
    towers = {
        TEXT: _TowerExport(
            _Texts(network),
            {"ids": np.array([texts[-1]] * 2)},
            lambda on: on.texts(texts, places)[:2],
        ),
        IMAGE: _TowerExport(
            _Images(network),
            image_inputs([regions[-1]] * 2),
            lambda on: on.images(regions),
        ),
    }
    reference = TorchTowers(network, Runtime("cpu"))
    written = []
    for name, tower in towers.items():
        yield f"writing {name}"
        try:
            with replacing(folder / name) as temporary:
                _write_onnx(tower, temporary)
            written.append(name)
        except OnnxExporterError as error:
            lines = str(error.__cause__ or error).splitlines()
            yield f"{name} still runs on torch: {' '.join(lines[:1])}"
    record = OnnxRecord.of(folder, parts, reference.dim, written)
    runtime = OnnxTowers(folder, record, 2)
    for name in written:
        vectors, sets = towers[name].encode(runtime)
        expected, rows = towers[name].encode(reference)
        if not _are_close(vectors, expected) or not _are_close(sets.values, rows.values):
            raise EncoderError(
                f"{folder / name}: the results of ONNX Runtime and torch differ; report this model",
            )
    record.write(folder)


def _write_onnx(tower: _TowerExport, path: Path) -> None:
    inputs = {name: torch.from_numpy(values) for name, values in tower.example.items()}
    free = {
        name: dict.fromkeys(range(min(2, rows.ndim)), torch.export.Dim.DYNAMIC)
        for name, rows in inputs.items()
    }
    # The exporter's messages are silenced; its result is checked afterwards.
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
    """Tower of a network, with the parameters of the whole network."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network


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
        # All texts in a batch have the same length.
        lengths = torch.zeros(ids.shape[0], dtype=torch.long) + ids.shape[1]
        encoded = self.network.texts(ids, lengths)
        return encoded.vectors, encoded.sets, self.network.word_mask(ids, lengths)


def _are_close(one: Floats, other: Floats) -> bool:
    """Return whether each row differs by at most a hundredth of its length, so that the cosine is
    above .9999. The runtimes sum in different orders."""
    if one.shape != other.shape:
        return False
    differences = np.linalg.norm(one - other, axis=1)
    return bool((differences <= 0.01 * np.linalg.norm(other, axis=1)).all())
