"""What a training step of each published recipe costs, computed without running it at its size.

    python -m bench.paper.training_cost
    python -m bench.paper.training_cost --recipe tern --regions 36 --words 14

A row holds the recipe, pictures per batch, millions of weights, those that learn, teraflops of a step (forwards and
backwards), and the memory in GB: weights, gradients and the two moments of Adam in float32 (``fixed``), and what is
kept for the way back (``activations``), also with ``recompute=1``. Torch counts products of matrices; activations are
the bytes of saved tensors; both in steps of two and of four pictures. Both are a B + c B^2 in the number of pictures B,
so these two steps tell that of the recipe. What the allocator and the libraries of a GPU take is not counted.
"""

from __future__ import annotations

import sys

import click
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig

from bench.report.rows import Writer
from encoders.networks import text_towers
from encoders.networks.alignment import pooled
from encoders.networks.base import Network
from encoders.networks.layers import recompute
from encoders.runtime.model_folder import make
from encoders.training.config import TrainConfig
from encoders.training.losses import hinge
from encoders.training.train import Recipe

PUBLISHED = ("tern", "tern-align", "teran", "vsrn", "vsrnpp")
REGION_DIM = 2048
WORD_VECTORS = {"kind": "embedding", "vocabulary": 9956, "width": 300}  # of COCO in VSRN
COLUMNS = (
    "recipe", "pictures", "weights (M)", "learning (M)", "teraflops per step", "fixed (GB)", "activations (GB)",
    "with recompute (GB)",
)  # fmt: skip


def network_of(recipe: Recipe) -> Network:
    """The network of a recipe, with random weights; a BERT has the sizes of bert-base-uncased."""
    text = WORD_VECTORS
    if recipe.text != "words":
        text = text_towers.describe(BertConfig(num_hidden_layers=recipe.text_layers))
    network = make(recipe.kind, {"region_dim": REGION_DIM, **recipe.sizes}, text)
    network.txt_enc.requires_grad_(recipe.train.text_lr > 0)
    return network.train()


def step(network: Network, config: TrainConfig, count: int, regions: int, words: int) -> tuple[int, int]:
    """Floating-point operations of a step of ``count`` pictures, and bytes that are kept for the way back. Matching and
    alignment count; of VSRN not the generation of captions."""
    owned = {parameter.untyped_storage().data_ptr() for parameter in network.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in owned:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    corners = torch.rand(count, regions, 2, 2).sort(dim=2).values.flatten(2)
    ids = torch.randint(5, 1000, (count, words))
    with FlopCounterMode(display=False) as counter:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            images = network.images(torch.randn(count, regions, REGION_DIM), corners, torch.full((count,), regions))
            texts = network.texts(ids, torch.full((count,), words))
            parts = config.objective.split("+")
            scores = [images.vectors @ texts.vectors.T] if "matching" in parts else []
            if "alignment" in parts:
                masks = [torch.ones(sets.shape[:2], dtype=torch.bool) for sets in (images.sets, texts.sets)]
                scores.append(pooled(images.sets, masks[0], texts.sets, masks[1], config.pooling))
            own = torch.eye(count, dtype=torch.bool)
            loss = torch.stack([hinge(each, own, config.margin, config.negatives_last) for each in scores]).sum()
        loss.backward()
    network.zero_grad(set_to_none=True)
    return counter.get_total_flops(), sum(kept.values())


def extended(two: float, four: float, count: int) -> float:
    """a B + c B^2 at ``count``, from its values at 2 and 4."""
    c = (four - 2 * two) / 8
    return (two / 2 - 2 * c) * count + c * count**2


@click.command()
@click.option("--recipe", "names", multiple=True, type=click.Choice(PUBLISHED), help="Only this one [default: all].")
@click.option("--regions", default=36, show_default=True, help="Regions per picture.")
@click.option("--words", default=14, show_default=True, help="Word-pieces per caption.")
def main(names: tuple[str, ...], regions: int, words: int) -> None:
    """Compute what a training step costs."""
    with Writer(sys.stdout, __file__, {"regions": regions, "words": words}, COLUMNS, extras=("torch",)) as out:
        for name in names or PUBLISHED:
            recipe = Recipe.of(name, {})
            network = network_of(recipe)
            found = [step(network, recipe.train, count, regions, words) for count in (2, 4)]
            recompute(network)
            found += [step(network, recipe.train, count, regions, words) for count in (2, 4)]
            batch = recipe.train.batch_size
            flops, activations = (extended(two, four, batch) for two, four in zip(*found[:2], strict=True))
            less = extended(found[2][1], found[3][1], batch)
            weights = sum(p.numel() for p in network.parameters())
            learning = sum(p.numel() for p in network.parameters() if p.requires_grad)
            fixed = 4 * (weights + 3 * learning)
            sizes = (f"{size / 1e9:.2f}" for size in (fixed, activations, less))
            millions = (f"{count / 1e6:.0f}" for count in (weights, learning))
            out.write(name, batch, *millions, f"{flops / 1e12:.2f}", *sizes)


if __name__ == "__main__":
    main()
