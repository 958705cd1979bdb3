"""A closed-form start: TERN whose first answer is canonical correlation analysis (CCA).

From random weights, a few thousand pictures teach the two pipelines little before they overfit. So their linear maps
begin as the regularised CCA (Hardoon et al., Canonical Correlation Analysis, Neural Computation 2004) of the mean
region of a picture and the mean word vector of its captions, and their attention begins as plain averaging. The
network is TERN's, untouched; training goes on from there.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..tern import Tern

IMAGE_RIDGE = 2.0  # in units of the mean variance
TEXT_RIDGE = 0.2
AVERAGING = 8.0  # weight of the average of a set against each row's own value
QUIET = 0.3  # what is left of random weights that would disturb the start


@dataclass(frozen=True)
class Projection:
    """x -> (x - mean) @ matrix; ``mean`` (d,), ``matrix`` (d, r)."""

    mean: Tensor
    matrix: Tensor


def cca(X: Tensor, Y: Tensor, rank: int) -> tuple[Projection, Projection]:
    """The ``rank`` most correlated directions of X (n, d) and Y (n, e), rows paired.

    Directions are weighted by their correlation, and scaled so that projections have unit variance on the whole.
    """
    X, Y = X.double(), Y.double()
    means = X.mean(dim=0), Y.mean(dim=0)
    X, Y = X - means[0], Y - means[1]
    Wx, Wy = _whitening(X, IMAGE_RIDGE), _whitening(Y, TEXT_RIDGE)
    U, S, Vt = torch.linalg.svd(Wx @ (X.T @ Y / len(X)) @ Wy, full_matrices=False)
    A, B = Wx @ U[:, :rank] * S[:rank], Wy @ Vt[:rank].T * S[:rank]
    A, B = A / (X @ A).std(), B / (Y @ B).std()
    return Projection(means[0].float(), A.float()), Projection(means[1].float(), B.float())


@torch.no_grad()
def warm_start(model: Tern, regions: Tensor, words: Tensor) -> None:
    """Set ``model`` so that it answers about as CCA of the paired rows does.

    ``regions`` (n, region_dim) are mean regions, after the power of the configuration; ``words`` (n, h) mean outputs
    of the text tower. The area and the box start unused.
    """
    config = model.config
    half = config.visual_width // 2
    rank = min(half, config.joint_width, regions.shape[1], words.shape[1])
    images, texts = cca(regions, words, rank)
    _split_rectified(model.img_enc.pos_encoding_image.map, images, half, rank)
    _identity(model.img_proj, rank)
    model.cap_proj.weight.mul_(QUIET)
    model.cap_proj.bias.zero_()
    model.cap_proj.weight[:rank] = texts.matrix.T
    model.cap_proj.bias[:rank] = -(texts.mean @ texts.matrix)
    for layer in model.img_enc.transformer_encoder.layers:
        _quieten(layer)
        layer.self_attn.out_proj.weight.mul_(QUIET)
    for layer in model.transformer_encoder_1.layers:
        _quieten(layer)
        _average(layer.self_attn)


def _whitening(X: Tensor, ridge: float) -> Tensor:
    """Inverse square root of the covariance of the centred X, plus ``ridge`` times its mean variance."""
    C = X.T @ X / len(X)
    values, vectors = torch.linalg.eigh(C + ridge * C.diagonal().mean() * torch.eye(len(C), dtype=C.dtype))
    return vectors / values.clamp(min=1e-12).sqrt() @ vectors.T


def _split_rectified(fusion: nn.Sequential, projection: Projection, half: int, rank: int) -> None:
    """Pass a projection through Linear, ReLU, Linear: as its positive and its negative part, joined again."""
    first, last = fusion[0], fusion[2]
    width = len(projection.mean)
    shift = projection.mean @ projection.matrix
    for start, sign in ((0, 1.0), (half, -1.0)):
        rows = slice(start, start + rank)
        first.weight[rows, :width] = sign * projection.matrix.T
        first.weight[rows, width:] *= QUIET
        first.bias[rows] = -sign * shift
    last.weight.mul_(QUIET)
    last.bias.zero_()
    unit = torch.arange(rank)
    last.weight[:rank] = 0
    last.weight[unit, unit] = 1
    last.weight[unit, half + unit] = -1


def _identity(linear: nn.Linear, rank: int) -> None:
    linear.weight.mul_(QUIET)
    linear.bias.zero_()
    linear.weight[:rank] = 0
    linear.weight[torch.arange(rank), torch.arange(rank)] = 1


def _quieten(layer: nn.TransformerEncoderLayer) -> None:
    """Nearly uniform attention, nearly silent feed-forward."""
    width = layer.self_attn.embed_dim
    layer.self_attn.in_proj_weight[: 2 * width] *= QUIET
    layer.linear2.weight.mul_(QUIET)
    layer.linear2.bias.zero_()


def _average(attention: nn.MultiheadAttention) -> None:
    """Values pass as they are and outweigh the row's own: under uniform attention, every row becomes the mean."""
    width = attention.embed_dim
    attention.in_proj_weight[2 * width :] = torch.eye(width)
    attention.out_proj.weight.copy_(AVERAGING * torch.eye(width))
