"""Seconds and memory of commands at the sizes of the papers, over drawn numbers.

    python -m bench.paper.published_sizes --work FOLDER
    python -m bench.paper.published_sizes --work FOLDER --only alignment-5k

The files of a task are drawn into FOLDER, unless they are there: vectors of 5,000 pictures and 25,000 captions (COCO's
5K) with 36 regions and about twelve words each, and published features for two batches of a training. A row holds the
task, what it reads, seconds by the clock, seconds of processors, and the largest memory of the process in GB. Time does
not depend on what the numbers are, except for NDCG, whose captions have words as frequent as English ones.

The memory of ``step`` is that of the whole command, which also keeps the weights that it averages and the best ones,
and saves all of them.

``alignment-5k`` takes 25 times as long as ``alignment-1k`` and is run only if it is named.
"""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bench.report.rows import Writer
from bench.stages import BOC
from boc.inputs.feature_writer import FeatureWriter
from boc.inputs.features import Header
from boc.inputs.sources import Source
from boc.types import Batch, Embeddings, Item, Modality, Ragged

COLUMNS = ("task", "reads", "seconds", "processor seconds", "GB")
CAPTIONS = 5  # per picture
REGIONS, REGION_DIM, WORDS = 36, 2048, (8, 16)
VOCABULARY = 9956  # words of COCO's captions in VSRN
PIECES = 30_522
CHUNK = 250  # pictures
SIZE = (640, 480)
ONLY_BY_NAME = ("alignment-5k",)


@dataclass(frozen=True)
class Sizes:
    """``pictures`` of a gallery and of its ``fold``, ``width`` of vectors, ``clusters`` of a codebook; ``settings`` of
    the training for ``boc train --set``, whose batches have ``batch`` pictures and whose BERT ``layers``."""

    pictures: int = 5000
    fold: int = 1000
    width: int = 1024
    clusters: int = 1000
    settings: tuple[str, ...] = ()
    batch: int = 80
    layers: int = 12
    hidden: int = 768


def sentence(rng: np.random.Generator) -> str:
    """Words by Zipf's law."""
    drawn = np.minimum(rng.zipf(1.3, rng.integers(*WORDS)), VOCABULARY)
    return " ".join(f"w{number}" for number in drawn)


def unit(rng: np.random.Generator, count: int, width: int) -> NDArray[np.float32]:
    rows = rng.standard_normal((count, width), dtype=np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows


def draw_vectors(path: Path, pictures: int, width: int) -> None:
    """A feature file of pictures and captions with concept sets."""
    rng = np.random.default_rng(0)
    images = [Item(f"{i:06}.jpg", "image", f"{i:06}.jpg", f"{i:06}.jpg") for i in range(pictures)]
    captions = [Item(f"{p.id}#{n}", "text", sentence(rng), p.id) for p in images for n in range(CAPTIONS)]
    header = Header("embeddings", "drawn:0", "0", width, "float16", Source([*images, *captions]).digest)
    with FeatureWriter(path, header) as writer:
        for batch in (*_batches(images, "image", rng, width), *_batches(captions, "text", rng, width)):
            writer.append(len(batch.items), [batch])
        writer.finish()


def _batches(items: list[Item], modality: Modality, rng: np.random.Generator, width: int) -> Iterator[Batch]:
    for start in range(0, len(items), CHUNK):
        part = items[start : start + CHUNK]
        counts = [REGIONS if modality == "image" else len(item.content.split()) for item in part]
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        sets = Ragged(unit(rng, int(offsets[-1]), width), offsets)
        yield Batch(part, Embeddings(modality, unit(rng, len(part), width), sets))


def draw_training(folder: Path, sizes: Sizes) -> None:
    """Published features, their pictures and captions, and a BERT with random weights."""
    from transformers import BertConfig, BertModel

    rng = np.random.default_rng(1)
    for name in ("cocobu_att", "cocobu_box", "images", "bert"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    with (folder / "captions.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["image", "caption"])
        for number in range(2 * sizes.batch):
            Image.new("RGB", SIZE).save(folder / "images" / f"{number}.png")
            np.savez(folder / "cocobu_att" / f"{number}.npz", feat=rng.random((REGIONS, REGION_DIM), dtype=np.float32))
            corners = np.sort(rng.random((REGIONS, 2, 2), dtype=np.float32), axis=1).reshape(REGIONS, 4)
            np.save(folder / "cocobu_box" / f"{number}.npy", corners * np.array(SIZE * 2, np.float32))
            table.writerows([f"images/{number}.png", sentence(rng)] for _ in range(CAPTIONS))
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(1, PIECES - 4))]
    (folder / "bert" / "vocab.txt").write_text("\n".join(names) + "\n", encoding="utf-8")
    config = BertConfig(
        vocab_size=PIECES,
        num_hidden_layers=sizes.layers,
        hidden_size=sizes.hidden,
        num_attention_heads=12,
        intermediate_size=4 * sizes.hidden,
    )
    BertModel(config).save_pretrained(folder / "bert")


@dataclass(frozen=True)
class Task:
    """What a row measures: ``words`` of a command, over files that ``draw`` makes at ``draws``."""

    reads: str
    draws: tuple[Path, partial[None]]
    words: tuple[object, ...]


def tasks(work: Path, sizes: Sizes) -> dict[str, Task]:
    """By name, in an order in which what one makes is there for the next."""
    many, few, training = work / "5k.h5", work / "1k.h5", work / "training"
    whole = (many, partial(draw_vectors, many, sizes.pictures, sizes.width))
    fold = (few, partial(draw_vectors, few, sizes.fold, sizes.width))
    batches = (training / "bert" / "config.json", partial(draw_training, training, sizes))
    book, at = work / "codebook.npz", ("--at", f"file:{work / 'index'}")
    gallery = f"{sizes.pictures:,} pictures, {CAPTIONS * sizes.pictures:,} captions, {sizes.width:,} wide"
    part = f"{sizes.fold:,} pictures, {CAPTIONS * sizes.fold:,} captions, {sizes.width:,} wide"
    learn = ("train", training / "captions.csv", "--regions", f"files:{training}", "--recipe", "tern", "--text",
             training / "bert", "--batch-size", sizes.batch, "--epochs", 1, "--set", f"held_out={sizes.batch}",
             *(word for setting in sizes.settings for word in ("--set", setting)))  # fmt: skip
    codes = {
        "scalar": "scalar",
        "permutation": "permutation",
        "hard": f"hard(codebook='{book}')",
        "soft": f"soft(z=8, codebook='{book}')",
    }
    return {
        "evaluation": Task(gallery, whole, ("evaluate", many, "--ndcg", "rouge-l", "--fold", sizes.fold)),
        "alignment-1k": Task(part, fold, ("evaluate", few, "--score", "mrsw", "--fold", sizes.fold)),
        "codebook": Task(gallery, whole, ("build-codebook", many, "-o", book, "--clusters", sizes.clusters)),
        **{
            f"index-{name}": Task(gallery, whole, ("index", name, many, "--code", code, *at))
            for name, code in codes.items()
        },
        "step": Task(f"{sizes.batch} pictures", batches, (*learn, "-o", work / "step")),
        "step-recompute": Task(
            f"{sizes.batch} pictures", batches, (*learn, "-o", work / "step-recompute", "--set", "recompute=1")
        ),
        "alignment-5k": Task(gallery, whole, ("evaluate", many, "--score", "mrsw", "--fold", sizes.fold)),
    }


def measured(task: Task, log: Path) -> tuple[float, float, float]:
    """Seconds by the clock, seconds of processors, and GB. A failed command ends the script."""
    begun = time.perf_counter()
    with log.open("wb") as out:
        process = subprocess.Popen((*BOC, *map(str, task.words)), stdout=out, stderr=subprocess.STDOUT)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        last = log.read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]
        raise click.ClickException(f"{' '.join(map(str, task.words[:2]))}: {last} ({log})")
    return time.perf_counter() - begun, used.ru_utime + used.ru_stime, used.ru_maxrss / 1e6


def run(work: Path, names: tuple[str, ...], sizes: Sizes) -> None:
    """Draw, measure, and print rows."""
    known = tasks(work, sizes)
    chosen = names or tuple(name for name in known if name not in ONLY_BY_NAME)
    unknown = sorted(set(chosen) - set(known))
    if unknown:
        raise click.UsageError(f"no task {unknown[0]!r}; known: {', '.join(known)}")
    work.mkdir(parents=True, exist_ok=True)
    with Writer(sys.stdout, __file__, {"only": names}, COLUMNS, extras=("torch",)) as out:
        for name in chosen:
            path, draw = known[name].draws
            if not path.exists():
                # In another process: what this one has ever held counts as memory of those that it starts.
                drawing = get_context("spawn").Process(target=draw)
                drawing.start()
                drawing.join()
                if drawing.exitcode:
                    raise click.ClickException(f"{path} could not be drawn; see above")
            seconds, processors, memory = measured(known[name], work / f"{name}.log")
            out.write(name, known[name].reads, f"{seconds:.1f}", f"{processors:.1f}", f"{memory:.2f}")


@click.command()
@click.option("--work", default="published-sizes", show_default=True, type=click.Path(file_okay=False, path_type=Path))
@click.option("--only", "names", multiple=True, help="Only this task, by its name; can be repeated.")
def main(work: Path, names: tuple[str, ...]) -> None:
    """Measure commands at the sizes of the papers."""
    run(work.resolve(), names, Sizes())


if __name__ == "__main__":
    main()
