"""Every network against the outputs of its authors' own code, and what must break that
agreement."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from boc import plugins
from boc.types import ImageRef, Runtime
from encoders.conversion.checkpoints import read_published
from encoders.conversion.convert import from_published
from encoders.networks.alignment import pool_cosines
from encoders.runtime.model_config import read_config
from encoders.runtime.model_folder import load_network
from encoders.runtime.set_encoder import SetEncoder
from encoders.runtime.torch_towers import TorchTowers
from encoders.training.losses import hinge
from tests.helpers import SHARED, run

pytestmark = pytest.mark.usefixtures("left_to_torch")
Arrays = dict[str, NDArray[Any]]
Pool = Callable[..., Tensor]
# on unit vectors; on everything else
UNIT = 1e-6
RAW = 1e-5
FOLDER = Path(os.environ.get("BOC_FIXTURES", SHARED / "fixtures" / "reference"))
FILES = sorted(FOLDER.glob("*.npz"))
"""Inputs and outputs of one network each, beside the checkpoint that gave them."""
every_file = pytest.mark.parametrize(
    "file",
    FILES,
    ids=lambda file: file.stem,
)


@cache
def arrays(file: Path) -> Arrays:
    with np.load(file, allow_pickle=False) as found:
        given = dict(found)
    count, rows, _ = given["features"].shape
    return {
        "boxes": np.zeros((count, rows, 4), np.float32),
        "n_regions": np.full(count, rows),
        **given,
    }


def checkpoint_of(file: Path) -> Path:
    return next(
        path
        for path in file.parent.iterdir()
        if path.name in {f"{file.stem}.pth", f"{file.stem}.pth.tar"}
    )


read = cache(read_published)


def network_of(file: Path) -> Any:
    """The authors' network: the global vector of their TERAN is its special row, which alignment
    does not train."""
    kind, network = from_published(read(checkpoint_of(file)))
    if kind == "teran":
        assert network.config.vector == "mean"
        network.config = replace(network.config, vector="first")
    return network


@torch.inference_mode()
def encode(
    network: Any,
    given: Arrays,
    dtype: torch.dtype = torch.float32,
) -> list[Tensor]:
    """Global vectors and sets of the pictures, and of the sentences."""
    features, boxes = (torch.from_numpy(given[name]).to(dtype) for name in ("features", "boxes"))
    images = network.images(
        features,
        boxes,
        torch.from_numpy(given["n_regions"]),
    )
    return [
        *images,
        *network.texts(torch.from_numpy(given["token_ids"]), torch.from_numpy(given["n_tokens"])),
    ]


def outputs(
    network: Any,
    given: Arrays,
    spoiled: Arrays | None = None,
    pool: Pool = pool_cosines,
) -> Arrays:
    """All that a file may expect, by name. Spoiled inputs go into the network only."""
    inputs = {**given, **(spoiled or {})}
    images, regions, texts, words = encode(network, inputs)
    found = {
        "expected_image_global": images,
        "expected_text_global": texts,
        "expected_region_set": regions,
        "expected_image_set": regions,
        "expected_text_set": words,
        "expected_loss": loss(images @ texts.T),
    }
    modes = {
        name.removeprefix("expected_scores_")
        for name in given
        if name.startswith("expected_scores_")
    }
    if modes:
        # In double precision: a score adds up so many cosines that single rounds by as much as the
        # tolerance. What is left is the rounding of the authors' own.
        _, regions, _, words = encode(
            network.double(),
            inputs,
            torch.float64,
        )
        network.float()
    for mode in sorted(modes):
        count = given[f"expected_scores_{mode}"].shape[1]
        scores = scored(
            network,
            given,
            regions,
            words[:count],
            mode,
            pool,
        )
        found |= {f"expected_scores_{mode}": scores, f"expected_loss_{mode}": loss(scores)}
    return {name: array.numpy() for name, array in found.items()}


def scored(
    network: Any,
    given: Arrays,
    regions: Tensor,
    words: Tensor,
    mode: str,
    pool: Pool,
) -> Tensor:
    """Pooled scores of all pictures and the first sentences, from buffers as the authors' are:
    without the rows that are special in every picture, or in the longest sentence."""
    lengths, ids = (
        torch.from_numpy(given[name])[: len(words)] for name in ("n_tokens", "token_ids")
    )
    region_mask = network.region_mask(torch.from_numpy(given["n_regions"]), regions.shape[1])
    word_mask = network.word_mask(ids, lengths)
    rows = slice(network.region_margins[0], regions.shape[1] - network.region_margins[1])
    columns = slice(network.word_margins[0], words.shape[1] - network.word_margins[1])
    name = mode.lower().replace("scan-sentences", "scan")
    return pool(
        regions[:, rows],
        region_mask[:, rows],
        words[:, columns],
        word_mask[:, columns],
        name,
    )


def loss(scores: Tensor) -> Tensor:
    """The published loss of the sentences that were scored and as many pictures."""
    square = scores[: scores.shape[1]]
    return hinge(square, torch.eye(len(square), dtype=torch.bool))


def missed(
    found: Arrays,
    given: Arrays,
) -> dict[str, float]:
    """By how much each expected array is missed, in tolerances; padding does not count."""
    by_name = {}
    for name in (name for name in given if name.startswith("expected_")):
        assert name in found, f"nothing is known of {name}"
        assert found[name].shape == given[name].shape, name
        difference = np.abs(found[name] - given[name])
        if name.endswith("_set"):
            lengths = given["n_tokens" if name == "expected_text_set" else "n_regions"]
            lengths = lengths + (name == "expected_image_set")  # I-CLS goes before the regions
            difference = difference[np.arange(difference.shape[1]) < lengths[:, None]]
        by_name[name] = float(difference.max()) / (UNIT if is_unit(name, given[name]) else RAW)
    return by_name


def is_unit(
    name: str,
    expected: NDArray[np.float32],
) -> bool:
    """Global vectors are unit vectors, and so are the channels of VSRN's regions and the rows of
    TERAN's sets."""
    if name.endswith("_set") and name != "expected_region_set":
        return bool(np.abs(np.linalg.norm(expected[:, 0], axis=-1) - 1).max() < 1e-3)
    return name.endswith(("_set", "_global"))


@every_file
def test_every_expected_array_is_reproduced(file: Path):
    misses = missed(outputs(network_of(file), arrays(file)), arrays(file))
    assert {"expected_image_global", "expected_text_global"} < set(misses)
    assert max(misses.values()) <= 1, misses


def strings_of(
    given: Arrays,
    size: int,
) -> list[str]:
    """One string an id: the special ones where the sentences show that they are, words
    otherwise."""
    names = [f"t{number}" for number in range(size)]
    if "expected_region_set" in given:  # VSRN
        names[:4] = ["<pad>", "<start>", "<end>", "<unk>"]
        return names
    names[:2] = ["[PAD]", "[UNK]"]
    names[given["token_ids"][0, 0]] = "[CLS]"
    names[given["token_ids"][0, given["n_tokens"][0] - 1]] = "[SEP]"
    return names


def write_features(
    folder: Path,
    given: Arrays,
) -> list[ImageRef]:
    """The regions as bottom-up files, boxes in pixels of pictures that are not square."""
    for name in ("bu_att", "bu_box", "images"):
        (folder / name).mkdir(parents=True)
    images = []
    for i, count in enumerate(given["n_regions"]):
        size = (70 + i, 40)
        np.savez(folder / "bu_att" / f"{i}.npz", feat=given["features"][i, :count])
        np.save(
            folder / "bu_box" / f"{i}.npy",
            given["boxes"][i, :count] * np.array(size * 2, np.float64),
        )
        images.append(ImageRef(f"{i}.png", folder / "images" / f"{i}.png"))
        Image.new("RGB", size).save(images[i].path)
    return images


@pytest.fixture(scope="module")
def converted(
    tmp_path_factory,
) -> Callable[[Path], tuple[str, list[ImageRef], list[str]]]:
    """Of a file: the spec of its converted checkpoint, its pictures, and its sentences."""

    @cache
    def make(file):
        given = arrays(file)
        home = tmp_path_factory.mktemp(file.stem)
        images = write_features(home / "features", given)
        text = network_of(file).text
        strings = strings_of(given, text.get("vocab_size") or text.get("vocabulary"))
        tokens = home / "vocab.txt"
        tokens.write_text(
            "\n".join(strings) + "\n" if text["kind"] == "bert" else json.dumps(strings),
        )
        result = run(
            "convert",
            checkpoint_of(file),
            "-o",
            home / "model",
            "--tokens",
            tokens,
            "--regions",
            f"files:{home / 'features'}",
        )
        spec = result.stdout.split("--encoder ")[1].strip()
        ids = (
            row[1 : n - 1]
            for row, n in zip(
                given["token_ids"],
                given["n_tokens"],
                strict=True,
            )
        )
        return spec, images, [" ".join(strings[id] for id in row) for row in ids]

    return make


@pytest.mark.slow
@every_file
def test_converted_checkpoint_matches_reference(
    file: Path,
    converted: Any,
):
    given = arrays(file)
    (spec, images, texts) = converted(file)
    sets = {
        "image": given.get("expected_image_set", given.get("expected_region_set")),
        "text": given.get("expected_text_set"),
    }
    whole = plugins.encoder(spec, "cpu")
    folder = Path(spec.partition(":")[2])
    network = load_network(folder, read_config(folder))
    towers = TorchTowers(network, Runtime("cpu"))
    encoder = SetEncoder(
        whole.identity,
        whole.tokens,
        lambda: whole.preparer,
        towers,
        lambda: towers,
    )
    if spec.startswith("teran"):
        network.config = replace(
            network.config,
            vector="first",
        )  # that of the authors; nothing trains it
    assert missed(outputs(network, given), given) == missed(outputs(network_of(file), given), given)
    for found in (
        encoder.encode_images([encoder.prepare(image) for image in images]),
        encoder.encode_texts(texts),
    ):
        side = found.modality
        assert np.abs(found.vectors - given[f"expected_{side}_global"]).max() <= UNIT
        expected = sets[side]
        if expected is None:
            continue
        before, behind = network.region_margins if side == "image" else network.word_margins
        lengths = given["n_regions"] + before + behind if side == "image" else given["n_tokens"]
        tolerance = UNIT if is_unit(f"expected_{side}_set", expected) else RAW
        for i, n in enumerate(lengths):
            wanted = expected[i, before : max(n - behind, before)]
            assert found.concepts[i].shape == wanted.shape
            assert np.abs(found.concepts[i] - wanted).max(initial=0) <= tolerance


@every_file
def test_an_image_without_regions_has_a_vector(file: Path):
    network = network_of(file)
    width = network.config.region_dim
    with torch.inference_mode():
        vectors, _ = network.images(
            torch.zeros(2, 0, width),
            torch.zeros(2, 0, 4),
            torch.tensor([0, 0]),
        )
        padded, _ = network.images(
            torch.ones(1, 3, width),
            torch.ones(1, 3, 4),
            torch.tensor([0]),
        )
    assert float((vectors.norm(dim=1) - 1).abs().max()) <= UNIT
    assert float((vectors[0] - padded[0]).abs().max()) <= UNIT
