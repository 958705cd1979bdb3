"""Sparse heads over frozen vectors, trained on pictures and their captions.

``Autoencoder`` keeps the ``z`` largest latents of a vector, from which a decoder reconstructs the
vector (top-k sparse autoencoder; Gao et al., ICLR 2025). With a contrastive weight, it is also
trained to place a caption nearer to its own picture than to other pictures (CSR; Wen et al., ICML
2025). ``WordPieces`` uses the word pieces of captions as terms, as in D2S (Nguyen et al., ECIR
2024). The weights are log(1 + ReLU) of a linear head, trained with a contrastive loss and the FLOPS
penalty. At first, a caption activates only its own pieces. As training progresses, it also
activates other pieces (the authors' expansion control).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import normalize, relu

from bench.rivals.base import Largest
from boc.types import Embeddings, Modality
from boc.vectors import Floats, unit_rows
from encoders.training.losses import contrast

BATCH = 128  # pictures, with one caption each
TEMPERATURE = 0.05
SCALE = 255


@dataclass(frozen=True)
class Pairs:
    """Pictures and captions, with the number of each caption's picture."""

    image: Embeddings
    text: Embeddings
    owners: NDArray[np.int64]

    def batches(
        self,
        epochs: int,
        seed: int,
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Yield picture numbers, and the number of a random caption for each picture, epoch after
        epoch."""
        rng = np.random.default_rng(seed)
        order = np.argsort(self.owners, kind="stable")
        pictures, starts, counts = np.unique(
            self.owners[order],
            return_index=True,
            return_counts=True,
        )
        for _ in range(epochs):
            places = rng.permutation(len(pictures))
            for first in range(0, len(places), BATCH):
                chosen = places[first : first + BATCH]
                yield pictures[chosen], order[starts[chosen] + rng.integers(counts[chosen])]


class Head(nn.Module, Largest):
    """Linear map from centred unit vectors to latents, with a bias per modality."""

    def __init__(
        self,
        pairs: Pairs,
        width: int,
        z: int | None,
        query_z: int | None,
        seed: int,
    ) -> None:
        nn.Module.__init__(self)
        Largest.__init__(self, width, z, query_z, SCALE)
        torch.manual_seed(seed)
        self.means = {
            each.modality: unit_rows(each.vectors).mean(axis=0)
            for each in (pairs.image, pairs.text)
        }
        self.encode = nn.Linear(pairs.image.vectors.shape[1], width, bias=False)
        self.biases = nn.ParameterDict(
            {name: nn.Parameter(torch.zeros(width)) for name in self.means},
        )

    def rows(self, embeddings: Embeddings) -> Tensor:
        """Return centred unit vectors, float32 (n, d)."""
        return torch.from_numpy(
            unit_rows(unit_rows(embeddings.vectors) - self.means[embeddings.modality]),
        )

    def latents(self, rows: Tensor, modality: Modality) -> Tensor:
        """Return the non-negative latents, float32 (n, width)."""
        return relu(self.encode(rows) + self.biases[modality])

    def weights(self, embeddings: Embeddings) -> Floats:
        """Return the latents, float32 (n, width)."""
        with torch.no_grad():
            latents: Floats = self.latents(self.rows(embeddings), embeddings.modality).numpy()
        return latents

    def learn(
        self,
        pairs: Pairs,
        loss: Callable[..., Tensor],
        epochs: int,
        seed: int,
        rate: float,
    ) -> None:
        """Minimise ``loss``, a function of the picture rows, the caption rows, the caption numbers,
        and the finished fraction of the training."""
        sides = [self.rows(each) for each in (pairs.image, pairs.text)]
        batches = list(pairs.batches(epochs, seed))
        adam = torch.optim.Adam(self.parameters(), lr=rate)
        schedule = torch.optim.lr_scheduler.OneCycleLR(adam, rate, total_steps=len(batches))
        for number, (images, texts) in enumerate(batches):
            adam.zero_grad()
            loss(sides[0][images], sides[1][texts], texts, number / len(batches)).backward()
            adam.step()
            schedule.step()


def kept(latents: Tensor, z: int) -> Tensor:
    """Keep the ``z`` largest latents of each row, and set all other latents to zero."""
    values, places = latents.topk(min(z, latents.shape[1]), dim=1)
    return torch.zeros_like(latents).scatter(1, places, values)


def matching(images: Tensor, texts: Tensor) -> Tensor:
    """Return the contrastive loss per pair for a batch of pictures and captions, by cosine."""
    cosines = normalize(images, eps=1e-6) @ normalize(texts, eps=1e-6).T
    return contrast(cosines, torch.eye(len(cosines), dtype=torch.bool), TEMPERATURE) / len(cosines)


class Autoencoder(Head):
    """Top-k sparse autoencoder with ``width`` latents. It is trained to reconstruct vectors from
    the top ``trained_z`` latents and, with one eighth of the weight, from the top ``4 * trained_z``
    latents, which prevents most latents from dying. ``weight`` is the weight of the contrastive
    loss."""

    def __init__(
        self,
        pairs: Pairs,
        width: int,
        trained_z: int,
        weight: float,
        seed: int = 0,
        epochs: int = 40,
    ) -> None:
        super().__init__(pairs, width, trained_z, trained_z, seed)
        self.decode = nn.Linear(width, self.encode.in_features, bias=False)
        self.decode.weight.data = normalize(self.encode.weight.data.T, dim=0)
        self.encode.weight.data = self.decode.weight.data.T.clone()

        def loss(images: Tensor, texts: Tensor, numbers: NDArray[np.int64], over: float) -> Tensor:
            latents = [self.latents(images, "image"), self.latents(texts, "text")]
            total = images.new_zeros(())
            if weight:
                largest = [kept(each, trained_z) for each in latents]
                total = weight * matching(*largest)
            for rows, each in zip((images, texts), latents, strict=True):
                for z, share in ((trained_z, 1.0), (4 * trained_z, 0.125)):
                    apart = rows - self.decode(kept(each, z))
                    squares = apart.square().sum(dim=1)
                    total = total + share * squares.mean()
            return total

        self.learn(pairs, loss, epochs, seed, 1e-3)


class WordPieces(Head):
    """Head whose terms are the word pieces of the training captions. ``flops`` is the weight of the
    FLOPS penalty."""

    def __init__(
        self,
        pairs: Pairs,
        z: int | None,
        query_z: int | None,
        flops: float,
        seed: int = 0,
        epochs: int = 40,
    ) -> None:
        assert pairs.text.words is not None
        self.pieces = sorted({piece for words in pairs.text.words for piece in words})
        super().__init__(pairs, len(self.pieces), z, query_z, seed)
        number = {piece: place for place, piece in enumerate(self.pieces)}
        own = torch.zeros(len(pairs.text.words), len(self.pieces), dtype=torch.bool)
        for row, words in zip(own, pairs.text.words, strict=True):
            row[[number[piece] for piece in words]] = True

        def loss(images: Tensor, texts: Tensor, numbers: NDArray[np.int64], over: float) -> Tensor:
            terms = [self.latents(images, "image"), self.latents(texts, "text")]
            free = torch.rand(len(numbers), 1) < over
            terms[1] = terms[1] * (own[numbers] | free)
            means = [normalize(each).mean(dim=0) for each in terms]
            return matching(*terms) + flops * sum(mean.square().sum() for mean in means)

        self.learn(pairs, loss, epochs, seed, 3e-3)

    def latents(self, rows: Tensor, modality: Modality) -> Tensor:
        """Return the weights of the pieces, float32 (n, p)."""
        return torch.log1p(super().latents(rows, modality))
