"""Export of the networks of a model folder to ONNX, so that sentences and pictures are encoded without torch."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.onnx import OnnxExporterError

from boc.atomic_files import replacing
from boc.errors import EncoderError
from boc.types import Ragged, Regions, Runtime

from ..networks.base import Network
from .model_config import parts, read_config
from .model_folder import load_network
from .onnx_record import IMAGE, RECORD, TEXT, OnnxRecord, read_record
from .onnx_towers import OnnxTowers, image_inputs
from .set_encoder import Towers
from .torch_towers import TorchTowers

OPSET = 18
CLOSE = 1e-3  # of values that are about 1; the runtimes add in another order
LENGTHS = (0, 1, 3, 9)  # of the random inputs that are compared


class _Images(nn.Module):
    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, features: Tensor, boxes: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        encoded = self.network.images(features, boxes, lengths)
        before, behind = self.network.region_margins
        return encoded.vectors, encoded.sets[:, before : encoded.sets.shape[1] - behind]


class _Texts(nn.Module):
    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        lengths = torch.zeros(ids.shape[0], dtype=torch.long) + ids.shape[1]  # there is no padding
        encoded = self.network.texts(ids, lengths)
        return encoded.vectors, encoded.sets, self.network.word_mask(ids, lengths)


def export(folder: Path) -> Iterator[str]:
    """Write the networks of a model folder in ONNX beside its weights, unless they are there.

    Yields a line before each. A network with an operation that ONNX lacks is left to torch, with a line that says so.
    EncoderError if ONNX Runtime computes something else than torch.
    """
    config = read_config(folder)
    present = read_record(folder, parts(folder))
    if present is not None and present.is_whole(folder):
        return
    network = load_network(folder, config).eval()
    rng = np.random.default_rng(0)
    texts = [rng.integers(1, _vocabulary(network), 2 + length).tolist() for length in LENGTHS]
    regions = [_random_regions(rng, length, network.config.region_dim) for length in LENGTHS]
    encode: dict[str, Callable[[Towers], tuple[NDArray[np.float32], Ragged]]] = {
        TEXT: lambda towers: towers.texts(texts, [range(len(row)) for row in texts])[:2],
        IMAGE: lambda towers: towers.images(regions),
    }
    examples: dict[str, tuple[nn.Module, dict[str, NDArray[Any]]]] = {
        TEXT: (_Texts(network), {"ids": np.array([texts[-1]] * 2)}),
        IMAGE: (_Images(network), image_inputs([regions[-1]] * 2)),
    }
    (folder / RECORD).unlink(missing_ok=True)
    names: list[str] = []
    for name, (module, example) in examples.items():
        yield f"writing {name}"
        try:
            with replacing(folder / name) as temporary:
                write_onnx(module, example, temporary)
            names.append(name)
        except OnnxExporterError as error:
            yield f"{name} is left to torch: {next(iter(str(error.__cause__ or error).splitlines()), '')}"
    record = OnnxRecord.of(folder, parts(folder), network.dim, names)
    reference = TorchTowers(network, Runtime("cpu"))
    for name in names:
        (vectors, sets), (expected, rows) = (encode[name](each) for each in (OnnxTowers(folder, record, 2), reference))
        if not _are_close(vectors, expected) or not _are_close(sets.values, rows.values):
            raise EncoderError(f"{folder / name}: ONNX Runtime computes something else than torch; report this model")
    record.write(folder)


def write_onnx(module: nn.Module, example: dict[str, NDArray[Any]], path: Path) -> None:
    """Export ``module`` to a file; the first two axes of its inputs, such as those of ``example``, have any length."""
    inputs = {name: torch.from_numpy(values) for name, values in example.items()}
    free = {
        name: dict.fromkeys(range(min(2, values.ndim)), torch.export.Dim.DYNAMIC) for name, values in inputs.items()
    }
    with _quiet():
        program = torch.onnx.export(
            module.eval(), kwargs=inputs, dynamic_shapes=free, dynamo=True, verbose=False,
            opset_version=OPSET,
        )  # fmt: skip
    assert program is not None
    program.save(path)


def _vocabulary(network: Network) -> int:
    return int(network.text.get("vocab_size") or network.text["vocabulary"])


def _random_regions(rng: np.random.Generator, count: int, width: int) -> Regions:
    corners = np.sort(rng.random((count, 2, 2), np.float32), axis=1)  # the first one is above and left of the second
    return Regions(rng.random((count, width), np.float32), corners.reshape(count, 4))


def _are_close(one: NDArray[np.float32], other: NDArray[np.float32]) -> bool:
    return bool(np.abs(one - other).max() <= CLOSE * max(1, np.abs(other).max()))


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
