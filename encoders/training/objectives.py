"""Training objectives: matching global vectors, aligning concepts, generating captions, or a
combination."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from boc.errors import EncoderError

from ..networks.alignment import POOLINGS, pool_cosines
from ..networks.base import Encodings, Network, one_of
from ..networks.sinkhorn import sinkhorn
from .caption_tensors import CaptionTensors, Chunk, in_order
from .captioning import CaptionBranch, caption_targets
from .losses import contrast, hinge

if TYPE_CHECKING:
    from .config import TrainConfig


class Objective(nn.Module):
    """Loss of a batch, and scores that rank pictures and sentences. An objective may have weights
    that are used only in training.

    ``config.objective`` joins parts by +: ``matching``, the loss on dot products of global vectors
    (TERN, VSRN; with Sinkhorn normalisation in VSRN++); ``alignment``, the loss on pooled
    region-word cosines (TERAN); ``generation``, the negative log-likelihood of a caption given the
    regions (VSRN)."""

    def __init__(
        self,
        config: TrainConfig,
        network: Network,
        captions: CaptionTensors,
        *,
        mixed: bool = False,
    ) -> None:
        super().__init__()
        self.config = config
        self.mixed = mixed
        self.parts = config.objective.split("+")
        unknown = set(self.parts) - {"matching", "alignment", "generation"}
        if unknown or self.parts == ["generation"]:
            raise EncoderError(
                "objective must be matching or alignment, or a combination such as "
                f"matching+generation, got {config.objective!r}",
            )
        one_of("pooling", config.pooling, POOLINGS)
        # Validation ranks by global vectors if they are trained.
        self.ranking = "matching" if "matching" in self.parts else "alignment"
        self._margins = network.region_margins
        if config.uncertainty:
            self.log_variances = nn.Parameter(torch.zeros(len(self.parts)))
        if "generation" in self.parts:
            self.generation = _CaptionGeneration(config, network, captions)

    def forward(
        self,
        images: Encodings,
        lengths: Tensor,
        region_mask: Tensor,
        chunks: Sequence[Chunk],
        numbers: Sequence[int],
        positive: Tensor,
        negatives: int,
        apart: Tensor | None = None,
        turned: Sequence[int] = (),
    ) -> Tensor:
        """Compute the loss of pictures with ``lengths`` regions and the captions ``numbers``.
        ``positive`` (pictures, captions) marks captions that describe a picture, ``apart`` marks
        negatives (see losses.py), and ``negatives`` is the number of negatives that count (see
        ``hinge``). The chunks contain the captions, followed by reversed copies of the captions at
        ``turned``."""
        losses = []
        for part in self.parts:
            if part == "generation":
                # Special rows of the sets are excluded.
                before, behind = self._margins
                regions = images.sets[:, before : images.sets.shape[1] - behind]
                with torch.autocast(lengths.device.type, dtype=torch.bfloat16, enabled=self.mixed):
                    loss = self.generation(regions, lengths, numbers, positive)
                losses.append(self.config.generation_weight * loss)
                continue
            scores = self.scores(part, images, region_mask, chunks)
            loss = self._ranking_loss(part, scores[:, : len(numbers)], positive, negatives, apart)
            if turned and part == "alignment":
                opposites = self._opposites_loss(scores, positive, turned)
                loss = loss + len(numbers) * self.config.opposites * opposites
            if not self.config.summed:
                loss = loss / len(numbers)
            losses.append(loss)
        if not self.config.uncertainty:
            return torch.stack(losses).sum()
        weighted = torch.exp(-self.log_variances) * torch.stack(losses) + self.log_variances
        return 0.5 * weighted.sum()

    def _ranking_loss(
        self,
        part: str,
        scores: Tensor,
        positive: Tensor,
        negatives: int,
        apart: Tensor | None,
    ) -> Tensor:
        config = self.config
        temperature = config.alignment_temperature
        margin = config.alignment_margin
        if part == "matching":
            temperature = config.temperature
            margin = config.margin
            if config.sinkhorn:
                scores = sinkhorn(scores, config.sinkhorn, config.sinkhorn_temperature)
        if config.loss == "contrast":
            return contrast(scores, positive, temperature, apart)
        return hinge(scores, positive, margin, negatives, apart)

    def _opposites_loss(
        self,
        scores: Tensor,
        positive: Tensor,
        turned: Sequence[int],
    ) -> Tensor:
        """Compute the loss of captions against their reversed copies, for their own pictures."""
        places = torch.tensor(turned, device=scores.device)
        own = positive.int().argmax(dim=0)[places]
        captions = positive.shape[1]
        others = scores[own, torch.arange(captions, captions + len(turned))]
        excess = (others - scores[own, places]) / self.config.alignment_temperature
        return nn.functional.softplus(excess).mean()

    def scores(
        self,
        part: str,
        images: Encodings,
        region_mask: Tensor,
        chunks: Sequence[Chunk],
    ) -> Tensor:
        """Score pictures and captions (pictures, captions) by ``matching`` or ``alignment``."""
        columns = []
        mixed = self.mixed and self.training
        for chunk in chunks:
            vectors, sets = chunk.encoded
            if part == "matching":
                columns.append(images.vectors.float() @ vectors.float().T)
                continue
            with torch.autocast(sets.device.type, dtype=torch.bfloat16, enabled=mixed):
                # Rows of TERN's sets do not have unit length.
                regions = nn.functional.normalize(images.sets, dim=-1)
                words = nn.functional.normalize(sets, dim=-1)
                pooling = self.config.pooling
                columns.append(pool_cosines(regions, region_mask, words, chunk.mask, pooling))
        return in_order(chunks, columns)


class _CaptionGeneration(nn.Module):
    """Generator of captions from regions, word by word, over the ids that occur in captions."""

    def __init__(
        self,
        config: TrainConfig,
        network: Network,
        captions: CaptionTensors,
    ) -> None:
        super().__init__()
        # The padding id 0 keeps its number.
        used = np.unique(np.concatenate([[0], *captions.ids]))
        self._ids = captions.ids
        self._number = {int(id): number for number, id in enumerate(used)}
        self.branch = CaptionBranch(network.dim, len(used), config.generation_hidden)

    def forward(
        self,
        regions: Tensor,
        lengths: Tensor,
        numbers: Sequence[int],
        positive: Tensor,
    ) -> Tensor:
        rows = [[self._number[id] for id in self._ids[number]] for number in numbers]
        targets = caption_targets(rows).to(regions.device)
        loss: Tensor = self.branch(
            regions,
            lengths,
            targets,
            positive.int().argmax(dim=0),
        )
        return loss
