"""Define the settings of a training run."""

from collections.abc import Callable
from dataclasses import dataclass

from boc.errors import EncoderError
from boc.evaluate.metrics import Ndcg, Recalls

from ..networks.base import one_of

CHOICES: dict[str, Callable[[Recalls, Ndcg | None], float]] = {
    "recall": lambda recalls, ndcg: recalls.total,
    "ndcg": lambda recalls, ndcg: 0.0 if ndcg is None else ndcg.text_to_image + ndcg.image_to_text,
    "ndcg-image": lambda recalls, ndcg: 0.0 if ndcg is None else ndcg.text_to_image,
}
"""Validation scores by name."""


@dataclass(frozen=True)
class TrainConfig:
    """Settings of a training run."""

    epochs: int = 30  # maximum number of passes over the pictures
    # parts joined by +: matching, alignment, generation (see objectives.py)
    objective: str = "matching"
    # alignment score computed from the cosines of regions and words (see networks/alignment.py)
    pooling: str = "mrsw"
    # whether to weight the parts by learned uncertainties (Kendall et al., CVPR 2018; TERAN)
    uncertainty: bool = False
    # loss: hinge (triplet loss) or contrast (cross entropy against all negatives in the batch)
    loss: str = "hinge"
    temperature: float = 0.05  # divisor of the matching scores with loss=contrast
    alignment_temperature: float = 0.1  # divisor of alignment scores with loss=contrast
    # probability that a run of words replaces its caption (see fragments.py)
    fragments: float = 0.0
    # weight of the loss that separates a caption from a copy with left and right exchanged
    opposites: float = 0.0
    margin: float = 0.2  # margin of the triplet loss for dot products, which are cosines
    # margin for alignments, which are sums of cosines over words or regions
    alignment_margin: float = 0.2
    # hardest negatives per pair at the start, and after an exponential decay (published: 1, 1)
    negatives_first: int = 100
    negatives_last: int = 1
    # whether to sum the losses of a batch, as published, instead of averaging over captions
    summed: bool = False
    # Sinkhorn iterations before the matching loss (VSRN++, eq. 10-11); 0 for no normalisation
    sinkhorn: int = 0
    sinkhorn_temperature: float = 1.0  # divisor of the scores before Sinkhorn normalisation
    generation_weight: float = 1.0  # weight of the generation loss
    generation_hidden: int = 512  # width of the caption generator's recurrent states
    batch_size: int = 128  # pictures per batch
    captions_per_picture: int = 1  # captions drawn per picture of a batch
    lr: float = 5e-4  # maximum learning rate
    # cosine lowers the rate to 0; steps multiplies it by ``decay`` every ``decay_epochs`` epochs
    schedule: str = "cosine"
    decay: float = 0.1  # factor of the learning rate per step
    decay_epochs: int = 15  # epochs per step
    warmup: int = 200  # steps during which the learning rate rises linearly
    text_lr: float = 0.0  # learning rate of the text tower as a fraction of ``lr``; 0 freezes it
    weight_decay: float = 1e-4  # decoupled weight decay (AdamW); 0 means Adam
    clip: float = 2.0  # maximum norm of the gradients
    region_keep: float = 1.0  # probability that a region is kept in a training batch
    # probability that a component of a region feature is kept in a training batch
    feature_keep: float = 1.0
    warm_start: bool = True  # start from the closed-form solution (see warmstart.py)
    # strength of averaging at a warm start: 8 for global vectors, small values for alignment
    averaging: float = 8.0
    # Decay of the running average of the weights, which is validated and saved; 0 means no average.
    average: float = 0.99
    held_out: int = 500  # random pictures held out for validation, unless pictures are named
    # Validation score that selects the best weights: recall, the sum of the six recalls; ndcg, the
    # sum of both directions' NDCG@25 by ROUGE-L, as used by TERAN's authors; or ndcg-image, the
    # NDCG of sentence to picture, as used by TERN's authors.
    choose: str = "recall"
    # Weights to keep: best in validation, or last, for example if held-out captions are too easy.
    keep: str = "best"
    patience: int = 5  # epochs without improvement before training stops
    # whether to compute in bfloat16 where it is faster; weights and losses stay float32
    mixed: bool = True
    seed: int = 0  # seed of all random choices

    def __post_init__(self) -> None:
        if self.held_out < 1:
            raise EncoderError(f"held_out must be at least 1, got {self.held_out}")
        one_of("schedule", self.schedule, ("cosine", "steps"))
        one_of("loss", self.loss, ("hinge", "contrast"))
        one_of("choose", self.choose, CHOICES)
        one_of("keep", self.keep, ("best", "last"))
        if self.opposites and "alignment" not in self.objective.split("+"):
            raise EncoderError(
                f"opposites need alignment, which objective={self.objective} does not include; set "
                "opposites to 0",
            )
