"""Images per second of ``boc extract``: against the bare interpreter on a CPU, and as a share of what a GPU can do.

    python -m bench.speed.extraction_speed cpu PHOTOS WEIGHTS

``cpu PHOTOS WEIGHTS`` takes the first ``--count`` photographs in a folder through a TensorFlow Lite network: by a loop
that does nothing but decode, resize and call the interpreter, and by ``boc extract --regions tflite:WEIGHTS`` in one
process and on one and two workers. All take turns, ``--rounds`` times; each is a separate process, and its start and
the feature file it writes count. Rows on stdout as CSV: setup, threads of the interpreter, images per second (median,
lowest, highest), the ratio to the loop of as many threads in the same round (likewise), and images per second of
processor time (median), for machines that others use too.

``gpu`` takes TERN at its published widths over 36 regions per picture, and CLIP ViT-B/32, both with random weights, in
float32 and bfloat16, not compiled and compiled: the network alone on inputs that lie on the device; ``encode_images``
from arrays in memory to arrays in memory; and ``boc extract`` from JPEG files (TERN with the regions of ``grid``, and
from a file of 36 regions per picture too). Rows: network, precision, compiled, from what, images per second (median,
lowest, highest), TFLOP/s, these as shares of the largest matrix product measured here in that precision and of what
the maker states, and the share of time that the encoder waited for pictures. Floating-point operations are counted by
torch over one batch. ``--device cpu --small`` tries the script itself.
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, cast

import click
import numpy as np

from bench.report.rows import Writer

BOC = [sys.executable, "-c", "from boc.cli import main; main()"]
TOLD = re.compile(r"([\d.]+) images per second.*?(?:pictures (\d+) % of the time)?$", re.MULTILINE)
NOMINAL: dict[str, dict[str, float]] = {  # dense TFLOP/s that NVIDIA states, of the SXM boards
    "H200": {"float32": 67, "bfloat16": 989},
    "H100": {"float32": 67, "bfloat16": 989},
    "A100": {"float32": 19.5, "bfloat16": 312},
}
PRECISIONS = ("float32", "bfloat16")
REGIONS = 36
ON_CPU = (
    "setup", "threads", "images/s", "lowest", "highest", "ratio", "ratio lowest", "ratio highest", "/CPU s",
)  # fmt: skip
ON_GPU = (
    "network", "precision", "compiled", "from", "images/s", "lowest", "highest", "TFLOP/s", "of measured peak",
    "of stated peak", "waiting %",
)  # fmt: skip

# The loop that the library is measured against: what cannot be left out.
BARE = """
import sys, numpy as np
from pathlib import Path
from PIL import Image
from ai_edge_litert.interpreter import Interpreter
model = Interpreter(sys.argv[1], num_threads=int(sys.argv[2]), experimental_preserve_all_tensors=sys.argv[3] == "map")
model.allocate_tensors()
read, found = model.get_input_details()[0], model.get_output_details()[0]
height, width = map(int, read["shape"][1:3])
for path in sorted(Path(sys.argv[4]).iterdir()):
    pixels = Image.open(path).convert("RGB").resize((width, height), Image.Resampling.BILINEAR)
    model.set_tensor(read["index"], np.asarray(pixels)[None])
    model.invoke()
    model.get_tensor(found["index"])
"""


@click.group()
def main() -> None:
    """Images per second of boc extract."""


@main.command()
@click.argument("photos", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("weights", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--count", default=1000, show_default=True, help="Photographs.")
@click.option("--rounds", default=3, show_default=True)
def cpu(photos: Path, weights: Path, count: int, rounds: int) -> None:
    """boc extract beside the bare interpreter, on the same photographs."""
    cores = os.cpu_count() or 1
    paths = sorted(path for path in photos.iterdir() if path.suffix.lower() == ".jpg")[:count]
    settings = {"photos": photos, "weights": weights, "count": len(paths), "rounds": rounds}
    with (
        tempfile.TemporaryDirectory() as name,
        Writer(sys.stdout, __file__, settings, ON_CPU, extras=("ai-edge-litert", "pillow")) as out,
    ):
        folder = Path(name)
        chosen = folder / "photos"
        chosen.mkdir()
        for path in paths:
            (chosen / path.name).symlink_to(path.resolve())
        bare = [sys.executable, "-c", BARE, str(weights)]
        extract = [*BOC, "extract", str(chosen), "-o", str(folder / "f.h5"), "--regions", f"tflite:{weights}"]
        setups = {
            ("bare loop", cores): [*bare, str(cores), "output", str(chosen)],
            ("bare loop", 1): [*bare, "1", "output", str(chosen)],
            ("bare loop, inner maps kept", 1): [*bare, "1", "map", str(chosen)],
            ("boc extract, one process", cores): [*extract, "--workers", "0"],
            ("boc extract, 1 worker", 1): [*extract, "--workers", "1"],
            ("boc extract, 2 workers", 1): [*extract, "--workers", "2"],
        }
        rates: dict[tuple[str, int], list[float]] = {setup: [] for setup in setups}
        thrift: dict[tuple[str, int], list[float]] = {setup: [] for setup in setups}
        for number in range(rounds):
            for setup, command in setups.items():
                (folder / "f.h5").unlink(missing_ok=True)
                began, used = time.perf_counter(), processor_time()
                subprocess.run(command, check=True, capture_output=True)
                rates[setup].append(len(paths) / (time.perf_counter() - began))
                thrift[setup].append(len(paths) / (processor_time() - used))
                click.echo(f"round {number + 1}: {setup[0]}, {rates[setup][-1]:.1f} images per second", err=True)
        for setup, found in rates.items():
            ratios = [rate / floor for rate, floor in zip(found, rates["bare loop", setup[1]], strict=True)]
            out.write(*setup, *spread(found, ".1f"), *spread(ratios, ".3f"), f"{median(thrift[setup]):.1f}")


@main.command()
@click.option("--device", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True)
@click.option("--photos", type=click.Path(exists=True, file_okay=False, path_type=Path), help="JPEGs [default: drawn].")
@click.option("--count", default=4096, show_default=True, help="Pictures of the runs from files.")
@click.option("--batch", default=256, show_default=True, help="Pictures of the network alone.")
@click.option("--rounds", default=5, show_default=True)
@click.option(
    "--precision", "precisions", type=click.Choice(PRECISIONS), multiple=True, default=PRECISIONS, show_default=True,
    help="Of the network; repeatable.",
)  # fmt: skip
@click.option("--small", is_flag=True, help="Tiny networks and few pictures, to try the script.")
def gpu(
    device: str, photos: Path | None, count: int, batch: int, rounds: int, precisions: Sequence[str], small: bool
) -> None:
    """Networks of published size, as shares of the device's peak."""
    if small:
        count, batch, rounds = 24, 8, 2
    settings = {
        "device": device_name(device), "photos": photos, "count": count, "batch": batch, "rounds": rounds,
        "precisions": precisions, "small": small,
    }  # fmt: skip
    with (
        tempfile.TemporaryDirectory() as name,
        Writer(sys.stdout, __file__, settings, ON_GPU, extras=("torch", "transformers")) as out,
    ):
        folder = Path(name)
        files = photos or drawn(folder / "photos", count)
        subjects = [tern(folder, device, batch, small), clip(folder, device, batch, small)]
        region_file = stored_regions(folder, subjects[0], count)
        for precision in precisions:
            best, stated = peak(device, precision, 512 if small else 8192), nominal(device, precision)
            click.echo(f"{precision}: measured peak {best / 1e12:.1f} TFLOP/s, stated {stated or '?'}", err=True)
            for compiled in (False, True) if device == "cuda" else (False,):
                for subject in subjects:
                    label = [subject.name, precision, compiled]
                    alone = list(subject.network(precision, compiled, rounds))
                    rate = spread(alone, ".1f")
                    speed = median(alone) * subject.flops
                    shares = [f"{speed / best:.3f}", f"{speed / stated / 1e12:.3f}" if stated else ""]
                    out.write(*label, "the device", *rate, f"{speed / 1e12:.2f}", *shares, "")
                    arrays = list(subject.arrays(precision, compiled, rounds))
                    out.write(*label, "arrays", *spread(arrays, ".1f"), "", "", "", "")
                    sources = {"JPEG files": (files, subject.files_encoder)}
                    if subject.name == "TERN":
                        sources["a regions file"] = (region_file, subject.encoder)
                    for source, (path, encoder) in sources.items():
                        runs = [extracted(folder, path, encoder, device, precision, compiled) for _ in range(2)]
                        rates = spread([rate for rate, _ in runs], ".1f")
                        out.write(*label, source, *rates, "", "", "", median(wait for _, wait in runs))


class Subject:
    """A network on one batch of inputs.

    ``forward`` takes ``inputs``, tensors on the device; its encoder takes ``prepared``. ``encoder`` is the spec of a
    folder that holds it, ``files_encoder`` that of one which reads JPEG files.
    """

    def __init__(
        self,
        name: str,
        forward: Callable[..., Any],
        inputs: Sequence[Any],
        prepared: Sequence[Any],
        encoder: str,
        files_encoder: str,
    ) -> None:
        import torch
        from torch.utils.flop_counter import FlopCounterMode

        self.name, self.encoder, self.files_encoder = name, encoder, files_encoder
        self._forward, self._inputs, self._prepared = forward, inputs, prepared
        self._device = inputs[0].device.type
        fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)  # it hides its products from the counter
        with torch.inference_mode(), FlopCounterMode(display=False) as counter:
            forward(*inputs)
        torch.backends.mha.set_fastpath_enabled(fast)
        self.flops = counter.get_total_flops() / len(inputs[0])  # of one picture

    def network(self, precision: str, compiled: bool, rounds: int) -> Iterator[float]:
        """Images per second of the network alone."""
        import torch

        forward = torch.compile(self._forward) if compiled else self._forward
        dtype = getattr(torch, precision)
        with torch.inference_mode(), torch.autocast(self._device, dtype, enabled=precision != "float32"):
            repeats = 20 if self._device == "cuda" else 1
            for number in range(rounds + 1):
                began = now(self._device)
                for _ in range(repeats):
                    forward(*self._inputs)
                if number:  # the first one warms up
                    yield repeats * len(self._inputs[0]) / (now(self._device) - began)

    def arrays(self, precision: str, compiled: bool, rounds: int) -> Iterator[float]:
        """Images per second of the encoder, from arrays to arrays."""
        from boc import plugins
        from boc.types import Runtime

        runtime = Runtime(self._device, cast("Any", precision), compiled)
        encoder = plugins.encoder(self.encoder, runtime=runtime)
        for number in range(rounds + 1):
            began = time.perf_counter()
            encoder.encode_images(self._prepared)
            if number:
                yield len(self._prepared) / (time.perf_counter() - began)


def tern(folder: Path, device: str, batch: int, small: bool) -> Subject:
    """TERN's picture side over random regions; its text side is a table of words, which no picture passes."""
    import torch

    from boc.types import Identity, ImageRef, Regions
    from encoders import regions
    from encoders.networks import text_towers
    from encoders.networks.tern import TernConfig
    from encoders.runtime import model_folder

    class Given:
        """A region source in name only: its regions come from a file."""

        identity = Identity("grid", "0" * 64, 64 if small else TernConfig.region_dim)

        def __call__(self, image: ImageRef) -> Regions:
            raise NotImplementedError

    sizes = {"visual_width": 32, "joint_width": 32, "feedforward": 32, "visual_layers": 1} if small else {}
    grid = regions.load("grid")
    tower = text_towers.load_tower("words", 1, ["a photograph"])
    made = {}
    for name, source in (("tern", Given()), ("tern-grid", grid)):
        network = model_folder.make("tern", sizes | {"region_dim": source.identity.dim}, tower.text)
        model_folder.create_folder(folder / name, "tern", network, tower.tokens, source)
        model_folder.save_weights(folder / name, network.state_dict())
        made[name] = network.eval().to(device)
    rng = np.random.default_rng(0)
    width = Given.identity.dim
    prepared = [
        Regions(rng.standard_normal((REGIONS, width), np.float32), rng.random((REGIONS, 4), np.float32))
        for _ in range(4 * batch)
    ]
    features = torch.from_numpy(np.stack([r.features for r in prepared[:batch]])).to(device)
    boxes = torch.from_numpy(np.stack([r.boxes for r in prepared[:batch]])).to(device)
    lengths = torch.full((batch,), REGIONS, device=device)
    config = json.loads((folder / "tern" / "config.json").read_text())
    config["regions"]["digest"] = grid.identity.digest  # so that the folder can be opened
    (folder / "tern" / "config.json").write_text(json.dumps(config))
    specs = f"tern:{folder / 'tern'}", f"tern:{folder / 'tern-grid'}"
    return Subject("TERN", made["tern"].images, (features, boxes, lengths), prepared, *specs)


def clip(folder: Path, device: str, batch: int, small: bool) -> Subject:
    """CLIP ViT-B/32, the sizes that its configuration has by default; texts are of letters."""
    import torch
    import transformers
    from PIL import Image
    from tokenizers import pre_tokenizers

    from encoders.clip import Prepared, Preparer

    place = folder / "clip"
    place.mkdir()
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    (place / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}), encoding="utf-8")
    (place / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
    tokenizer = transformers.CLIPTokenizerFast(
        str(place / "vocab.json"), str(place / "merges.txt"), model_max_length=77
    )
    tokenizer.save_pretrained(place)
    end = len(pieces) - 1
    text: dict[str, Any] = {"bos_token_id": end - 1, "eos_token_id": end, "pad_token_id": end}
    tiny = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.CLIPConfig(text_config=text | (tiny if small else {}), vision_config=tiny if small else {})
    torch.manual_seed(0)
    model = transformers.CLIPModel(config).eval()
    model.save_pretrained(place)
    kind = getattr(transformers, "CLIPImageProcessorPil", transformers.CLIPImageProcessor)
    processor = kind(size={"shortest_edge": 224}, crop_size={"height": 224, "width": 224})
    processor.save_pretrained(place)
    rng = np.random.default_rng(0)
    picture = Image.fromarray(rng.integers(0, 256, (224, 224, 3), dtype=np.uint8))
    inputs = Preparer(processor, (7, 7)).inputs(picture)
    prepared = [Prepared(inputs, np.zeros((49, 4), np.float32))] * (4 * batch)
    pixels = torch.from_numpy(np.stack([inputs["pixel_values"]] * batch)).to(device)
    model = model.to(device)
    spec = f"clip:{place}"
    return Subject("CLIP ViT-B/32", lambda x: model.get_image_features(pixel_values=x), (pixels,), prepared, spec, spec)


def stored_regions(folder: Path, subject: Subject, count: int) -> Path:
    """A feature file of random regions, 36 per picture, for the encoder ``subject.encoder``."""
    from boc import plugins
    from boc.inputs.feature_writer import FeatureWriter
    from boc.inputs.features import Header
    from boc.types import Item, Ragged, RegionBatch

    source = plugins.encoder(subject.encoder, "cpu").regions.identity  # type: ignore[attr-defined]
    width = json.loads((folder / "tern" / "config.json").read_text())["network"]["region_dim"]
    rng = np.random.default_rng(0)
    path = folder / "regions.h5"
    with FeatureWriter(path, Header("regions", source.spec, source.digest, width, "float16", "synthetic")) as writer:
        for start in range(0, count, 256):
            names = [f"{i:06d}.jpg" for i in range(start, min(start + 256, count))]
            sets = rng.standard_normal((len(names) * REGIONS, width), np.float32)
            offsets = np.arange(len(names) + 1, dtype=np.int64) * REGIONS
            boxes = rng.random((len(sets), 4), np.float32)
            items = [Item(n, "image", n, n) for n in names]
            writer.append(len(names), [RegionBatch(items, Ragged(sets, offsets), Ragged(boxes, offsets))])
        writer.finish()
    return path


def drawn(folder: Path, count: int) -> Path:
    """JPEG files of 500 x 375 pixels of clouds, about as large and as hard to decode as photographs of that size."""
    from PIL import Image

    folder.mkdir()
    rng = np.random.default_rng(0)
    for i in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (94, 125, 3), dtype=np.uint8))
        coarse.resize((500, 375), Image.Resampling.BICUBIC).save(folder / f"{i:06d}.jpg", quality=90)
    return folder


def extracted(
    folder: Path, source: Path, encoder: str, device: str, precision: str, compiled: bool
) -> tuple[float, float]:
    """Images per second that boc extract prints, and the share of time (%) that the encoder waited."""
    output = folder / "out.h5"
    output.unlink(missing_ok=True)
    command = [*BOC, "extract", str(source), "-o", str(output), "--encoder", encoder, "--device", device]
    command += ["--precision", precision, *(["--compile"] if compiled else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = TOLD.search(done.stderr)
    if done.returncode or found is None:
        raise click.ClickException(done.stderr)
    return float(found[1]), float(found[2])


def peak(device: str, precision: str, size: int) -> float:
    """Floating-point operations per second of the best of some products of two square matrices."""
    import torch

    left, right = (torch.randn(size, size, device=device, dtype=getattr(torch, precision)) for _ in range(2))
    best = 0.0
    for _ in range(5):
        repeats = 10 if device == "cuda" else 1
        began = now(device)
        for _ in range(repeats):
            left @ right
        best = max(best, repeats * 2 * size**3 / (now(device) - began))
    return best


def device_name(device: str) -> str:
    import torch

    if device == "cpu":
        return device
    if not torch.cuda.is_available():
        raise click.UsageError("torch finds no GPU; --device cpu --small tries the script")
    return torch.cuda.get_device_name()


def nominal(device: str, precision: str) -> float | None:
    """TFLOP/s that the maker of the device states, if known."""
    return next((stated[precision] for key, stated in NOMINAL.items() if key in device_name(device)), None)


def processor_time() -> float:
    """Seconds that processors have worked for the processes started here, those that they started included."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def now(device: str) -> float:
    """The time when all that the device was asked for is done."""
    if device == "cuda":
        import torch

        torch.cuda.synchronize()
    return time.perf_counter()


def spread(values: Sequence[float], form: str) -> list[str]:
    """Median, lowest, highest."""
    return [format(value, form) for value in (median(values), min(values), max(values))]


if __name__ == "__main__":
    main()
