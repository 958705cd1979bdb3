"""A closed-form start: a TERN whose initial output is canonical correlation analysis (CCA).

From random weights, the two pipelines learn little from a few thousand pictures before they
overfit. So their linear maps start as the regularised CCA (Hardoon et al., Canonical Correlation
Analysis, Neural Computation 2004) of the mean region of a picture and the mean word vector of its
captions, and their attention starts as plain averaging. The architecture of TERN does not change;
training continues from there.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import sparse
from sklearn.utils.extmath import randomized_svd
from torch import Tensor, nn

from ..networks.base import Network
from ..networks.tern import Tern
from ..networks.vsrn import Vsrn

IMAGE_RIDGE = 2.0  # in units of the mean variance
TEXT_RIDGE = 0.2
# steps over which the states of VSRN decay: twice the usual length
REGIONS = 100.0
WORDS = 30.0
LINEAR = 0.4  # size of the input of a tanh, for which it is nearly linear
LEAST = 0.01  # deviation of a feature, relative to the mean one, below which it gets less weight
QUIET = 0.3  # factor of random weights that would disturb the start


@dataclass(frozen=True)
class Projection:
    """x -> (x - mean) @ matrix; ``mean`` (d,), ``matrix`` (d, r)."""

    mean: Tensor
    matrix: Tensor


def cca(X: Tensor, Y: Tensor, rank: int) -> tuple[Projection, Projection]:
    """Return the ``rank`` most correlated directions of X (n, d) and Y (n, e), rows paired.

    Directions are weighted by their correlation, and scaled so that projections have unit variance
    on the whole.
    """
    X = X.double()
    Y = Y.double()
    means = X.mean(dim=0), Y.mean(dim=0)
    X = X - means[0]
    Y = Y - means[1]
    Wx = _whitening(X, IMAGE_RIDGE)
    Wy = _whitening(Y, TEXT_RIDGE)
    U, S, Vt = torch.linalg.svd(Wx @ (X.T @ Y / len(X)) @ Wy, full_matrices=False)
    A = Wx @ U[:, :rank] * S[:rank]
    B = Wy @ Vt[:rank].T * S[:rank]
    A = A / (X @ A).std()
    B = B / (Y @ B).std()
    return Projection(means[0].float(), A.float()), Projection(means[1].float(), B.float())


@torch.no_grad()
def latent_semantics(embedding: nn.Embedding, bags: sparse.csr_array) -> None:
    """Set word vectors so that a caption's mean is its latent semantic analysis: the leading
    singular directions of tf-idf. Pretrained vectors are kept if the columns after them are zero;
    then only these are filled.

    ``bags`` (n, V) has the relative frequency of each word in each caption. Words that all have
    become zero.
    """
    weight = embedding.weight.cpu().numpy().copy()
    free = (weight == 0).all(axis=0)
    known = bags @ weight[:, ~free] if free.any() else np.ones(1)
    columns = np.flatnonzero(free if free.any() else ~free)
    spread = np.log(
        bags.shape[0] / np.maximum(1, np.bincount(bags.indices, minlength=bags.shape[1])),
    )
    rank = min(len(columns), *bags.shape)
    _, _, directions = randomized_svd(bags * spread, rank, random_state=0)
    vectors = (directions * spread).T
    vectors *= (known.std() or 1) / (bags @ vectors).std()  # both parts get equal weight
    weight[:, columns] = 0
    weight[:, columns[:rank]] = vectors
    embedding.weight.copy_(torch.from_numpy(weight))


@torch.no_grad()
def scale(network: Network, regions: Tensor) -> None:
    """Set ``network`` to centre and scale features by the statistics of ``regions`` (n,
    region_dim), raised to its power. Nearly constant features are not amplified."""
    deviation, mean = torch.std_mean(regions, dim=0, correction=0)
    network.region_mean.copy_(mean)
    network.region_deviation.copy_(deviation + LEAST * deviation.mean())


@torch.no_grad()
def warm_start(network: Network, regions: Tensor, words: Tensor, averaging: float) -> None:
    """Set ``network`` so that its output is close to CCA of the paired rows.

    ``regions`` (n, region_dim) are mean regions, after the power of the configuration; ``words``
    (n, h) mean outputs of the text tower. ``averaging`` is the weight of the average of a set
    against the value of each row in the attention of TERN and TERAN; at 0, rows stay separate.
    """
    if isinstance(network, Vsrn):
        _start_vsrn(network, regions, words)
    elif isinstance(network, Tern):
        _start_tern(network, regions, words, averaging)


def _start_tern(network: Tern, regions: Tensor, words: Tensor, averaging: float) -> None:
    """Start TERN; the box and its area are unused at first."""
    config = network.config
    half = config.visual_width // 2
    rank = min(half, config.joint_width, regions.shape[1], words.shape[1])
    images, texts = cca(regions, words, rank)
    _split_rectified(network.img_enc.pos_encoding_image.map, images, half, rank)
    _identity(network.img_proj, rank)
    _project(network.cap_proj.weight, network.cap_proj.bias, texts)
    layers: Any = network.img_enc.transformer_encoder.layers
    for layer in layers:
        _damp(layer)
        layer.self_attn.out_proj.weight.mul_(QUIET)
    stack: Any
    for stack in {network.transformer_encoder_1, network.image_joint}:
        for layer in stack.layers:
            _damp(layer)
            _average(layer.self_attn, averaging)


def _start_vsrn(network: Vsrn, regions: Tensor, words: Tensor) -> None:
    """Start VSRN: reasoning as the identity, also for locations and words; the GRUs as moving
    averages."""
    width = network.config.width
    rank = min(width, regions.shape[1], words.shape[1])
    images, texts = cca(regions, words, rank)
    _project(network.img_enc.fc.weight, network.img_enc.fc.bias, images)
    eye = Projection(torch.zeros(width), torch.eye(width)[:, :rank])
    if network.img_enc.img_rnn is not None:
        _accumulate(
            network.img_enc.img_rnn,
            eye,
            REGIONS,
            LINEAR * rank**0.5,
        )  # its inputs are unit vectors
    if network.txt_rnn is not None:
        _accumulate(
            network.txt_rnn,
            texts,
            WORDS,
            LINEAR / WORDS**0.5,
        )  # means have unit variance, words more
    else:
        _project(network.txt_fc.weight, network.txt_fc.bias, texts)


def _whitening(X: Tensor, ridge: float) -> Tensor:
    """Return the inverse square root of the covariance of the centred X, plus ``ridge`` times its
    mean variance."""
    C = X.T @ X / len(X)
    values, vectors = torch.linalg.eigh(
        C + ridge * C.diagonal().mean() * torch.eye(len(C), dtype=C.dtype),
    )
    root: Tensor = vectors / values.clamp(min=1e-12).sqrt() @ vectors.T
    return root


def _split_rectified(fusion: Any, projection: Projection, half: int, rank: int) -> None:
    """Pass a projection through Linear, ReLU, Linear: as its positive and its negative part,
    recombined."""
    first = fusion[0]
    last = fusion[2]
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


def _project(weight: Tensor, bias: Tensor, projection: Projection) -> None:
    """Set the weight (out, in) and bias (out,) of a linear map to the projection, with weak noise
    in the rest."""
    rank = projection.matrix.shape[1]
    weight.mul_(QUIET)
    bias.zero_()
    weight[:rank] = projection.matrix.T
    bias[:rank] = -(projection.mean @ projection.matrix)


def _accumulate(rnn: Any, projection: Projection, length: float, scale: float) -> None:
    """Set a GRU so that its state is an average of its inputs, decaying over ``length`` steps,
    times ``scale``."""
    width = rnn.hidden_size
    update = slice(width, 2 * width)
    new = slice(2 * width, 3 * width)
    for parameter in rnn.parameters():
        parameter.mul_(QUIET)
    rnn.bias_ih_l0.zero_()
    rnn.bias_hh_l0.zero_()
    rnn.bias_ih_l0[update] = math.log(length - 1)
    _project(
        rnn.weight_ih_l0[new],
        rnn.bias_ih_l0[new],
        Projection(projection.mean, projection.matrix * scale),
    )


def _identity(linear: nn.Linear, rank: int) -> None:
    linear.weight.mul_(QUIET)
    linear.bias.zero_()
    linear.weight[:rank] = 0
    linear.weight[torch.arange(rank), torch.arange(rank)] = 1


def _damp(layer: Any) -> None:
    """Make the attention nearly uniform, and the feed-forward part nearly zero."""
    width = layer.self_attn.embed_dim
    layer.self_attn.in_proj_weight[: 2 * width] *= QUIET
    layer.linear2.weight.mul_(QUIET)
    layer.linear2.bias.zero_()


def _average(attention: nn.MultiheadAttention, weight: float) -> None:
    """Pass values unchanged, ``weight`` times as strong as the row: with uniform attention rows
    become the mean."""
    if weight == 0:
        attention.out_proj.weight.mul_(QUIET)
        return
    width = attention.embed_dim
    attention.in_proj_weight[2 * width :] = torch.eye(width)
    attention.out_proj.weight.copy_(weight * torch.eye(width))
