"""Images per second of `boc extract` and of `boc train` on a GPU, as a share of what the device can do.

    python -m bench.speed.extraction_speed > gpu.csv
    python -m bench.speed.extraction_speed --device cpu --small       # tries the script itself

TERN at its published widths over 36 regions per picture, and CLIP ViT-B/32, both with random weights, in float32 and
bfloat16: the network alone on inputs that lie on the device, and ``boc extract``, of TERN from a file of regions, of
CLIP from JPEG files; with --compiled also the compiled network alone, in bfloat16. "TERN training" is a step of the
recipe ``tern`` with a BERT of random weights, pictures read from a file of regions. A row has the network, precision,
compiled, its source, images per second (median, lowest, highest), TFLOP/s, these as shares of the largest matrix
product measured here in that precision and of the maker's figure, and the share of time that the encoder waited for
pictures. Floating-point operations are counted by torch over one batch.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np
import torch
import transformers
from PIL import Image
from tokenizers import pre_tokenizers
from torch.utils.flop_counter import FlopCounterMode

from bench.report.rows import Writer
from boc.inputs.feature_writer import FeatureWriter
from boc.inputs.features import Header
from boc.plugins import trainer
from boc.types import Identity, ImageRef, Item, Ragged, RegionBatch, Regions
from encoders import regions
from encoders.networks import text_towers
from encoders.networks.tern import TernConfig
from encoders.runtime import model_folder

BOC = [sys.executable, "-c", "from boc.cli import main; main()"]
PRINTED = re.compile(r"([\d.]+) images per second.*?(?:pictures (\d+) % of the time)?$", re.MULTILINE)
NOMINAL: dict[str, dict[str, float]] = {  # dense TFLOP/s that NVIDIA states, of the SXM boards
    "H200": {"float32": 67, "bfloat16": 989},
    "H100": {"float32": 67, "bfloat16": 989},
    "A100": {"float32": 19.5, "bfloat16": 312},
}
SETTINGS = (("float32", False), ("bfloat16", False), ("bfloat16", True))
"""Precisions, and whether the network is compiled."""
REGIONS = 36
CAPTIONS = 5  # of a picture to learn from
WARM = 5  # training steps that do not count
WORDS = ("a", "the", "dog", "man", "boat", "red", "runs", "over", "water", "grass", "with", "two")
COLUMNS = (
    "network", "precision", "compiled", "from", "images/s", "lowest", "highest", "TFLOP/s", "of measured peak",
    "of stated peak", "waiting %",
)  # fmt: skip


class FileRegions:
    """The name of a region source, whose regions come from a file."""

    def __init__(self, width: int) -> None:
        self.identity = Identity("grid", "0" * 64, width)

    def __call__(self, image: ImageRef) -> Regions:
        raise NotImplementedError


@dataclass
class Subject:
    """A network: ``forward`` takes ``inputs``, a batch on the device; ``encoder`` is the spec of a folder that holds
    it, and ``source`` the pictures that `boc extract` takes."""

    name: str
    forward: Callable[..., Any]
    inputs: tuple[Any, ...]
    encoder: str
    source: Path

    @property
    def operations(self) -> float:
        """Floating-point operations per picture."""
        fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)  # it hides its products from the counter
        with torch.inference_mode(), FlopCounterMode(display=False) as counter:
            self.forward(*self.inputs)
        torch.backends.mha.set_fastpath_enabled(fast)
        return float(counter.get_total_flops() / len(self.inputs[0]))

    def rates(self, precision: str, compiled: bool, rounds: int) -> Iterator[float]:
        """Yield images per second of the network alone."""
        forward = torch.compile(self.forward) if compiled else self.forward
        device, dtype = self.inputs[0].device.type, getattr(torch, precision)
        repeats = 20 if device == "cuda" else 1
        with torch.inference_mode(), torch.autocast(device, dtype, enabled=precision != "float32"):
            for number in range(rounds + 1):
                start = now(device)
                for _ in range(repeats):
                    forward(*self.inputs)
                if number:  # the first one warms up
                    yield repeats * len(self.inputs[0]) / (now(device) - start)


def tern(folder: Path, device: str, batch: int, count: int, small: bool) -> Subject:
    """Make TERN's picture side over random regions; its text side is a table of words, which no picture passes."""
    sizes = {"visual_width": 32, "joint_width": 32, "feedforward": 32, "visual_layers": 1} if small else {}
    source = FileRegions(64 if small else TernConfig.region_dim)
    tower = text_towers.load_tower("words", 1, ["a photograph"])
    width = source.identity.dim
    network = model_folder.make("tern", sizes | {"region_dim": width}, tower.text)
    model_folder.create_folder(folder / "tern", "tern", network, tower.tokens, source)
    model_folder.save_weights(folder / "tern", network.state_dict())
    config = json.loads((folder / "tern" / "config.json").read_text())
    config["regions"]["digest"] = regions.load("grid").identity.digest  # so that the folder can be opened
    (folder / "tern" / "config.json").write_text(json.dumps(config))
    features = torch.randn(batch, REGIONS, width, device=device)
    boxes, lengths = torch.rand(batch, REGIONS, 4, device=device), torch.full((batch,), REGIONS, device=device)
    network = network.eval().to(device)
    path = write_regions(folder / "regions.h5", width, count)
    return Subject("TERN", network.images, (features, boxes, lengths), f"tern:{folder / 'tern'}", path)


def write_regions(path: Path, width: int, count: int, captions: int = 0) -> Path:
    """Write a feature file of random regions, 36 per picture, and of random sentences, ``captions`` per picture."""
    rng, grid = np.random.default_rng(0), regions.load("grid").identity
    with FeatureWriter(path, Header("regions", grid.spec, grid.digest, width, "float16", "drawn")) as writer:
        for start in range(0, count, 256):
            names = [f"{i:06d}.jpg" for i in range(start, min(start + 256, count))]
            sets = rng.standard_normal((len(names) * REGIONS, width), np.float32)
            offsets = np.arange(len(names) + 1, dtype=np.int64) * REGIONS
            boxes = rng.random((len(sets), 4), np.float32)
            items = [Item(n, "image", n, n) for n in names]
            sentences = [
                Item(f"{name}#{i}", "text", " ".join(rng.choice(WORDS, 10)), name)
                for name in names
                for i in range(captions)
            ]
            batches = [RegionBatch(items, Ragged(sets, offsets), Ragged(boxes, offsets)), RegionBatch(sentences)]
            writer.append(len(names), batches if captions else batches[:1])
        writer.finish()
    return path


def training_rates(folder: Path, device: str, mixed: bool, steps: int, small: bool) -> tuple[int, list[float]]:
    """Return the pictures of a batch, and pictures per second of ``steps`` steps of the recipe ``tern``."""
    text = folder / "bert"
    if not text.exists():
        config = transformers.BertConfig(
            vocab_size=len(WORDS) + 5, num_hidden_layers=6, **({"hidden_size": 48} if small else {})
        )
        transformers.BertModel(config).save_pretrained(text)
        pieces = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS)
        (text / "vocab.txt").write_text("\n".join(pieces), encoding="utf-8")
    sizes = {"visual_width": "32", "joint_width": "32", "feedforward": "32", "batch_size": "4"} if small else {}
    settings = {"text": str(text), "held_out": "8", "mixed": str(int(mixed)), **sizes}
    recipe = trainer().Recipe.of("tern", settings)
    batch = recipe.train.batch_size
    width = 64 if small else TernConfig.region_dim
    path = write_regions(folder / "captioned.h5", width, batch * (WARM + steps + 2) + 8, CAPTIONS)
    source = FileRegions(width)
    source.identity = regions.load("grid").identity
    run = trainer().Training(folder / f"run-{mixed}", path, source, recipe, {}, ids=None, device=device)
    rates: list[float] = []
    start = now(device)
    for progress in run.run():
        end = now(device)
        if progress.step > WARM:
            rates.append(batch / (end - start))
        if progress.step == WARM + steps:
            break
        start = end
    path.unlink()
    return batch, rates


def clip(folder: Path, device: str, batch: int, count: int, small: bool) -> Subject:
    """Make CLIP ViT-B/32, the sizes that its configuration has by default; texts are of letters."""
    place = folder / "clip"
    place.mkdir()
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    (place / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}), encoding="utf-8")
    (place / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
    names = (str(place / "vocab.json"), str(place / "merges.txt"))
    transformers.CLIPTokenizerFast(*names, model_max_length=77).save_pretrained(place)
    end = len(pieces) - 1
    text: dict[str, Any] = {"bos_token_id": end - 1, "eos_token_id": end, "pad_token_id": end}
    tiny = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.CLIPConfig(text_config=text | (tiny if small else {}), vision_config=tiny if small else {})
    torch.manual_seed(0)
    model = transformers.CLIPModel(config).eval()
    model.save_pretrained(place)
    kind = getattr(transformers, "CLIPImageProcessorPil", transformers.CLIPImageProcessor)
    kind(size={"shortest_edge": 224}, crop_size={"height": 224, "width": 224}).save_pretrained(place)
    pixels = torch.randn(batch, 3, 224, 224, device=device)
    model = model.to(device)
    source = photographs(folder / "photos", count)
    return Subject(
        "CLIP ViT-B/32", lambda x: model.get_image_features(pixel_values=x), (pixels,), f"clip:{place}", source
    )


def photographs(folder: Path, count: int) -> Path:
    """Write JPEG files of 500 x 375 pixels of clouds, about as large and as hard to decode as photographs of that
    size."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for i in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (94, 125, 3), dtype=np.uint8))
        coarse.resize((500, 375), Image.Resampling.BICUBIC).save(folder / f"{i:06d}.jpg", quality=90)
    return folder


def extract_rate(folder: Path, subject: Subject, device: str, precision: str) -> tuple[float, float]:
    """Return images per second that `boc extract` prints, and the share of time (%) that the encoder waited."""
    output = folder / "out.h5"
    output.unlink(missing_ok=True)
    command = [*BOC, "extract", str(subject.source), "-o", str(output), "--encoder", subject.encoder]
    command += ["--device", device, "--set", f"precision={precision}"]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    printed = PRINTED.search(process.stderr)
    if process.returncode or printed is None:
        raise click.ClickException(process.stderr)
    return float(printed[1]), float(printed[2])


def peak(device: str, precision: str, size: int) -> float:
    """Measure floating-point operations per second of the best of some products of two square matrices."""
    left, right = (torch.randn(size, size, device=device, dtype=getattr(torch, precision)) for _ in range(2))
    best = 0.0
    for _ in range(5):
        repeats = 10 if device == "cuda" else 1
        start = now(device)
        for _ in range(repeats):
            left @ right
        best = max(best, repeats * 2 * size**3 / (now(device) - start))
    return best


def device_name(device: str) -> str:
    """Return the name that torch has for the device. UsageError without a GPU."""
    if device == "cpu":
        return device
    if not torch.cuda.is_available():
        raise click.UsageError("torch finds no GPU; --device cpu --small tries the script")
    return torch.cuda.get_device_name()


def now(device: str) -> float:
    """Return the time when all work that was given to the device is done."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def summary(values: Sequence[float]) -> list[str]:
    """Return median, lowest, highest."""
    return [f"{value:.1f}" for value in (median(values), min(values), max(values))]


@click.command()
@click.option("--device", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True)
@click.option("--count", default=4096, show_default=True, help="Pictures that boc extract takes.")
@click.option("--batch", default=256, show_default=True, help="Pictures of the network alone.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--compiled", "with_compiled", is_flag=True, help="Compile the networks too: some minutes.")
@click.option("--small", is_flag=True, help="Tiny networks and few pictures, to try the script.")
def main(device: str, count: int, batch: int, rounds: int, with_compiled: bool, small: bool) -> None:
    """Measure networks of published size, as shares of the device's peak."""
    if small:
        count, batch, rounds = 24, 8, 2
    board = device_name(device)
    stated: dict[str, float] = next((peaks for key, peaks in NOMINAL.items() if key in board), {})
    settings = {"device": board, "count": count, "batch": batch, "rounds": rounds, "small": small}
    with (
        tempfile.TemporaryDirectory() as name,
        Writer(sys.stdout, __file__, settings, COLUMNS, extras=("torch", "transformers")) as out,
    ):
        folder = Path(name)
        subjects = [make(folder, device, batch, count, small) for make in (tern, clip)]
        peaks = {precision: peak(device, precision, 512 if small else 8192) for precision in ("float32", "bfloat16")}
        for precision, compiled in SETTINGS if with_compiled else SETTINGS[:2]:
            best = peaks[precision]
            for subject in subjects:
                label = [subject.name, precision, compiled]
                alone = list(subject.rates(precision, compiled, rounds))
                speed = median(alone) * subject.operations
                of_stated = f"{speed / stated[precision] / 1e12:.3f}" if stated else ""
                cells = [f"{speed / 1e12:.2f}", f"{speed / best:.3f}", of_stated, ""]
                out.write(*label, "the device", *summary(alone), *cells)
                if not compiled:
                    rate, waiting = extract_rate(folder, subject, device, precision)
                    out.write(*label, "boc extract", f"{rate:.1f}", "", "", "", "", "", waiting)
            if not compiled:
                batch, rates = training_rates(folder, device, precision == "bfloat16", 4 * rounds, small)
                label = ["TERN training", precision, compiled, f"boc train, {batch} a step"]
                out.write(*label, *summary(rates), "", "", "", "")


if __name__ == "__main__":
    main()
