"""Initialise networks in closed form, so that their first output is canonical correlation analysis
(CCA).

With random initial weights, the two towers learn little from a few thousand pictures before they
overfit. Therefore, their linear maps start as the regularised CCA (Hardoon et al., Canonical
Correlation Analysis, Neural Computation 2004) between the mean region of a picture and the mean
word vector of its captions, and their attention starts as plain averaging. The network architecture
does not change, and training continues from these weights.
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

# Ridges in units of the mean variance.
IMAGE_RIDGE = 2.0
TEXT_RIDGE = 0.2
# Factor that reduces random weights, which would otherwise disturb the initial projection.
QUIET = 0.3


@dataclass(frozen=True)
class Projection:
    """Projection x -> (x - mean) @ matrix, with ``mean`` (d,) and ``matrix`` (d, r)."""

    mean: Tensor
    matrix: Tensor


def cca(
    X: Tensor,
    Y: Tensor,
    rank: int,
) -> tuple[Projection, Projection]:
    """Return projections to the ``rank`` most correlated directions of X (n, d) and Y (n, e), which
    have paired rows.

    Directions are weighted by their correlation and scaled so that projections have unit total
    variance.
    """
    X = X.double()
    Y = Y.double()
    x = X.mean(dim=0)
    y = Y.mean(dim=0)
    X = X - x
    Y = Y - y
    Wx = _whitening(X, IMAGE_RIDGE)
    Wy = _whitening(Y, TEXT_RIDGE)
    C = X.T @ Y / len(X)
    U, S, Vt = torch.linalg.svd(Wx @ C @ Wy, full_matrices=False)
    A = Wx @ U[:, :rank] * S[:rank]
    B = Wy @ Vt[:rank].T * S[:rank]
    A = A / (X @ A).std()
    B = B / (Y @ B).std()
    return Projection(x.float(), A.float()), Projection(y.float(), B.float())


@torch.no_grad()
def latent_semantics(embedding: nn.Embedding, bags: sparse.csr_array) -> None:
    """Set word vectors so that their mean over a caption is the latent semantic analysis of the
    caption, based on the leading singular directions of tf-idf. If some columns are zero, as after
    pretrained vectors, only these columns are filled.

    ``bags`` (n, V) contains the relative frequency of each word in each caption. Words that occur
    in all captions become zero.
    """
    weight = embedding.weight.cpu().numpy().copy()
    columns = np.arange(weight.shape[1])
    deviation = 1.0
    free = (weight == 0).all(axis=0)
    if free.any():
        columns = columns[free]
        # Both parts get the same weight.
        deviation = (bags @ weight[:, ~free]).std()
    captions, words = bags.shape
    frequencies = np.bincount(bags.indices, minlength=words)
    spread = np.log(captions / np.maximum(1, frequencies))
    rank = min(len(columns), captions, words)
    _, _, directions = randomized_svd(bags * spread, rank, random_state=0)
    vectors = (directions * spread).T
    vectors *= deviation / (bags @ vectors).std()
    weight[:, columns] = 0
    weight[:, columns[:rank]] = vectors
    embedding.weight.copy_(torch.from_numpy(weight))


@torch.no_grad()
def scale(network: Network, regions: Tensor) -> None:
    """Set the statistics by which ``network`` centres and scales features, computed from
    ``regions`` (n, region_dim), which are already raised to the configured power. Nearly constant
    features are not amplified."""
    deviation, mean = torch.std_mean(regions, dim=0, correction=0)
    network.region_mean.copy_(mean)
    network.region_deviation.copy_(deviation + 0.01 * deviation.mean())


@torch.no_grad()
def warm_start(
    network: Network,
    regions: Tensor,
    words: Tensor,
    averaging: float,
) -> None:
    """Set ``network`` so that its output approximates the CCA of the paired rows.

    ``regions`` (n, region_dim) contains mean regions, raised to the configured power; ``words`` (n,
    h) contains mean outputs of the text tower. ``averaging`` is the weight of a set's average
    relative to each row's value in the attention of TERN and TERAN; at 0, rows stay separate.
    """
    if isinstance(network, Vsrn):
        _start_vsrn(network, regions, words)
    elif isinstance(network, Tern):
        _start_tern(network, regions, words, averaging)


def _start_tern(
    network: Tern,
    regions: Tensor,
    words: Tensor,
    averaging: float,
) -> None:
    """Initialise a TERN or TERAN. Boxes and their areas have little effect at first."""
    config = network.config
    half = config.visual_width // 2
    rank = min(half, config.joint_width, regions.shape[1], words.shape[1])
    images, texts = cca(regions, words, rank)
    # The layers Linear, ReLU, Linear pass the positive and negative parts of the projection
    # separately.
    fusion: Any = network.img_enc.pos_encoding_image.map
    first, _, last = fusion
    width = len(images.mean)
    shift = images.mean @ images.matrix
    for start, sign in ((0, 1.0), (half, -1.0)):
        rows = slice(start, start + rank)
        first.weight[rows, :width] = sign * images.matrix.T
        first.weight[rows, width:] *= QUIET
        first.bias[rows] = -sign * shift
    last.weight.mul_(QUIET)
    last.bias.zero_()
    unit = torch.arange(rank)
    last.weight[:rank] = 0
    last.weight[unit, unit] = 1
    last.weight[unit, half + unit] = -1
    width = config.visual_width
    identity = Projection(torch.zeros(width), torch.eye(width, rank))
    _project(network.img_proj.weight, network.img_proj.bias, identity)
    _project(network.cap_proj.weight, network.cap_proj.bias, texts)
    layers: Any = network.img_enc.transformer_encoder.layers
    for layer in layers:
        _damp(layer)
        layer.self_attn.out_proj.weight.mul_(QUIET)
    stack: Any
    for stack in {network.transformer_encoder_1, network.image_joint}:
        for layer in stack.layers:
            _damp(layer)
            attention = layer.self_attn
            # Values count ``averaging`` times, so uniform attention turns rows into the mean.
            width = attention.embed_dim
            attention.in_proj_weight[2 * width :] = torch.eye(width)
            attention.out_proj.weight.copy_(averaging * torch.eye(width))


def _start_vsrn(network: Vsrn, regions: Tensor, words: Tensor) -> None:
    """Initialise a VSRN or VSRN++, with all reasoning as the identity and the GRUs as moving
    averages."""
    width = network.config.width
    rank = min(width, regions.shape[1], words.shape[1])
    images, texts = cca(regions, words, rank)
    _project(
        network.img_enc.fc.weight,
        network.img_enc.fc.bias,
        images,
    )
    # Tanh is nearly linear for inputs of this size.
    linear = 0.4
    if network.img_enc.img_rnn is not None:
        # The inputs are unit vectors. States decay over twice the usual number of regions.
        identity = Projection(torch.zeros(width), torch.eye(width, rank))
        _accumulate(network.img_enc.img_rnn, identity, 100, linear * rank**0.5)
    if network.txt_rnn is not None:
        # States decay over twice the usual number of words.
        _accumulate(network.txt_rnn, texts, 30, linear / 30**0.5)
    else:
        _project(network.txt_fc.weight, network.txt_fc.bias, texts)


def _whitening(X: Tensor, ridge: float) -> Tensor:
    """Return the inverse square root of the covariance of the centred X plus ``ridge`` times its
    mean variance."""
    C = X.T @ X / len(X)
    eye = torch.eye(len(C), dtype=C.dtype)
    values, vectors = torch.linalg.eigh(C + ridge * C.diagonal().mean() * eye)
    root: Tensor = vectors / values.clamp(min=1e-12).sqrt() @ vectors.T
    return root


def _project(weight: Tensor, bias: Tensor, projection: Projection) -> None:
    """Set a linear map's weight (out, in) and bias (out,) to the projection, with weak noise in the
    remaining rows."""
    rank = projection.matrix.shape[1]
    weight.mul_(QUIET)
    bias.zero_()
    weight[:rank] = projection.matrix.T
    bias[:rank] = -(projection.mean @ projection.matrix)


def _accumulate(
    rnn: Any,
    projection: Projection,
    length: float,
    scale: float,
) -> None:
    """Set a GRU so that its state is ``scale`` times an average of its inputs that decays over
    ``length`` steps."""
    width = rnn.hidden_size
    update = slice(width, 2 * width)
    new = slice(2 * width, 3 * width)
    for parameter in rnn.parameters():
        parameter.mul_(QUIET)
    rnn.bias_ih_l0.zero_()
    rnn.bias_hh_l0.zero_()
    rnn.bias_ih_l0[update] = math.log(length - 1)
    scaled = Projection(projection.mean, projection.matrix * scale)
    _project(rnn.weight_ih_l0[new], rnn.bias_ih_l0[new], scaled)


def _damp(layer: Any) -> None:
    """Make attention nearly uniform, and the feed-forward part nearly zero."""
    width = layer.self_attn.embed_dim
    layer.self_attn.in_proj_weight[: 2 * width] *= QUIET
    layer.linear2.weight.mul_(QUIET)
    layer.linear2.bias.zero_()
