"""Learns terms from pictures and their captions: a codebook in the loop of the training.

The head (``boc.clustering.learned_head``) begins as a codebook, spherical k-means over the rows of both modalities, and
is then trained like an encoder: an item has its ``z`` largest activations, of unit length, and each caption is to be
nearer to its own picture than to the others of a batch, and the other way round (InfoNCE; van den Oord et al., 2018).
A penalty on the squares of the mean activations of each term (FLOPS; Paria et al., ICLR 2020) is in proportion to the
expected postings, and keeps terms in use by both. The encoder stays as it is, so that a feature file is enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from boc.clustering.codebook import Codebook
from boc.clustering.kmeans import Floats, lloyd
from boc.clustering.learned_head import item_rows, largest, largest_products, products
from boc.clustering.make_codebook import check_files
from boc.clustering.term_labels import CAPTIONS, WORDS, Label, content_words, distinctive, pack_labels
from boc.errors import FeatureFileError
from boc.inputs.features import FeatureFile
from boc.types import MODALITIES, Modality, Ragged
from boc.vectors import unit_rows

MODE = "learned"
SAMPLE = 5  # rows of each modality, per term, that the first directions come from
ROUNDS = 10  # of the clustering
ITEMS = 1000  # items of each modality that the first thresholds come from
BLOCK = 512  # items encoded at a time
# Budgets and the weight of the penalty were chosen among few on training photographs held out, the budgets for as many
# postings as a dictionary reads; the others are usual values, hardly compared.
Z, QUERY_Z = 8, 16
EPOCHS = 6
PICTURES = 64  # per batch
PER_PICTURE = 2  # captions
RATE = 1e-3
WARMUP = 40  # steps
TEMPERATURE = 0.05
BALANCE = 100.0  # weight of the penalty
COMMON = 0.05  # share of the items above a threshold at first
DECAYS = (0.9, 0.99)  # of Adam's means


@dataclass
class Head:
    """The parameters: ``directions`` float32 (p, d), ``thresholds`` float32 (2, 2, p) by modality and kind of row."""

    directions: Floats
    thresholds: Floats


@dataclass(frozen=True)
class Pairs:
    """Rows of the items of both modalities, and the captions of each picture that has some."""

    rows: dict[Modality, Ragged]
    captions: dict[int, NDArray[np.int64]]


class Forward:
    """The activations of some items, as far as the gradients need them."""

    def __init__(self, rows: Ragged, head: Head, modality: Modality, z: int) -> None:
        self.rows, self.modality = rows, MODALITIES.index(modality)
        found = products(rows, head.directions, head.thresholds[self.modality])
        best = largest(found, rows)
        self.kept = _kept(best, z)
        self.excess = np.where(self.kept, best, 0)
        values = np.log1p(self.excess)
        self.norms = np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-6)
        self.unit = values / self.norms
        self._found = found

    def backward(self, gradient: Floats, directions: Floats, thresholds: Floats) -> None:
        """Add the gradients of the parameters, from that of ``unit``, to ``directions`` and ``thresholds``."""
        of_values = (gradient - self.unit * (self.unit * gradient).sum(axis=1, keepdims=True)) / self.norms
        items, terms = np.nonzero(self.kept)
        flow = of_values[items, terms] / (1 + self.excess[items, terms])
        starts, lengths = self.rows.offsets[:-1], np.diff(self.rows.offsets)
        every = starts[:, None] + np.minimum(np.arange(lengths.max()), lengths[:, None] - 1)
        which = self._found[every[items], terms[:, None]].argmax(axis=1)
        rows = every[items, which]
        order = np.argsort(terms, kind="stable")
        used, firsts = np.unique(terms[order], return_index=True)
        directions[used] += np.add.reduceat(flow[order, None] * self.rows.values[rows[order]], firsts)
        np.add.at(thresholds[self.modality], (np.minimum(which, 1), terms), -flow)


def learned_terms(
    files: Sequence[FeatureFile],
    terms: int = 2048,
    *,
    seed: int = 0,
    z: int = Z,
    query_z: int = QUERY_Z,
    tell: Callable[[str], None] = lambda stage: None,
) -> Codebook:
    """Learn ``terms`` terms from the pictures of ``files`` and their captions, for ``z`` terms per picture and
    ``query_z`` per caption. FeatureFileError for files of several encoders, or with fewer than two pictures with
    captions."""
    identity = check_files(files, ())
    tell("reading pictures and captions")
    pairs = read_pairs(files)
    tell(f"clustering {terms} directions")
    head = first_head(pairs, terms, seed)
    for epoch, loss in enumerate(train(head, pairs, z=z, query_z=query_z, seed=seed), 1):
        tell(f"epoch {epoch} of {EPOCHS}: loss {loss:.3f}")
    tell("labelling")
    options = {"mode": MODE, "clusters": terms, "seed": seed, "z": z, "query_z": query_z}
    concepts = sum(len(rows.values) for rows in pairs.rows.values())
    sources = tuple(file.header.source for file in files)
    made = Codebook(head.directions, identity, sources, options, concepts, 1.0, thresholds=head.thresholds)
    return replace(made, labels=pack_labels(list(_labels(head, pairs.rows["text"], files))))


def read_pairs(files: Sequence[FeatureFile]) -> Pairs:
    """All items of the files. FeatureFileError for fewer than two pictures with captions."""
    number: dict[str, int] = {}
    captions: dict[int, list[int]] = {}
    parts: dict[Modality, list[Ragged]] = {modality: [] for modality in MODALITIES}
    for file in files:
        for modality in MODALITIES:
            for batch in file.batches(modality):
                first = sum(map(len, parts[modality]))
                parts[modality].append(item_rows(batch.embeddings))
                for place, item in enumerate(batch.items, first):
                    if modality == "image":
                        number.setdefault(item.id, place)
                    elif item.group in number:
                        captions.setdefault(number[item.group], []).append(place)
    if len(captions) < 2:
        raise FeatureFileError(
            f"{files[0].path}: {len(captions)} pictures with captions, at least 2 are needed to learn terms; "
            "give a file of pictures with captions"
        )
    rows = {modality: Ragged.concatenate(parts[modality]) for modality in MODALITIES}
    return Pairs(rows, {picture: np.array(places) for picture, places in captions.items()})


def first_head(pairs: Pairs, terms: int, seed: int) -> Head:
    """Centroids of the centred rows of both modalities, and thresholds that one item in twenty exceeds."""
    rng = np.random.default_rng(seed)
    drawn, means = [], np.zeros((len(MODALITIES), 2, next(iter(pairs.rows.values())).values.shape[1]), np.float32)
    for number, modality in enumerate(MODALITIES):
        rows = pairs.rows[modality]
        kinds = _kinds(rows)
        for kind in np.unique(kinds):
            means[number, kind] = rows.values[kinds == kind].mean(axis=0, dtype=np.float64)
        chosen = rng.permutation(len(kinds))[: SAMPLE * terms]
        drawn.append(rows.values[chosen] - means[number, kinds[chosen]])
    points = unit_rows(np.concatenate(drawn))
    enough = len(points) > terms
    directions = lloyd(points, terms, seed=seed, rounds=ROUNDS, spherical=True) if enough else points
    thresholds = means @ directions.T
    for number, modality in enumerate(MODALITIES):
        rows = pairs.rows[modality]
        few = _taken(rows, rng.permutation(len(rows))[:ITEMS])
        best = largest_products(few, directions, thresholds[number])
        thresholds[number] += np.quantile(best, 1 - COMMON, axis=0).astype(np.float32)
    return Head(directions, thresholds)


def train(head: Head, pairs: Pairs, *, z: int = Z, query_z: int = QUERY_Z, seed: int = 0) -> Iterator[float]:
    """Change the head in place; the mean loss of each epoch."""
    rng = np.random.default_rng(seed)
    pictures = np.array(sorted(pairs.captions))
    per_batch = min(PICTURES, len(pictures))
    steps = EPOCHS * (len(pictures) // per_batch)
    adam = Adam([head.directions, head.thresholds])
    for _ in range(EPOCHS):
        losses, order = [], rng.permutation(pictures)
        for start in range(0, len(order) - per_batch + 1, per_batch):
            chosen = order[start : start + per_batch]
            captions = [rng.permutation(pairs.captions[picture])[:PER_PICTURE] for picture in chosen.tolist()]
            owners = np.repeat(np.arange(len(chosen)), [len(each) for each in captions])
            loss, gradients = _step(head, pairs, chosen, np.concatenate(captions), owners, z, query_z)
            adam.step(
                gradients, RATE * min(1, (adam.steps + 1) / WARMUP) * (1 + np.cos(np.pi * adam.steps / steps)) / 2
            )
            losses.append(loss)
        yield float(np.mean(losses))


def _step(
    head: Head,
    pairs: Pairs,
    pictures: NDArray[np.int64],
    captions: NDArray[np.int64],
    owners: NDArray[np.int64],
    z: int,
    query_z: int,
) -> tuple[float, list[Floats]]:
    """The loss of a batch, and the gradients of directions and thresholds."""
    found = Forward(_taken(pairs.rows["image"], pictures), head, "image", z)
    asked = Forward(_taken(pairs.rows["text"], captions), head, "text", query_z)
    loss, slope = contrast(asked.unit @ found.unit.T / TEMPERATURE, owners)
    slope /= TEMPERATURE
    gradients: list[Floats] = [np.zeros_like(head.directions), np.zeros_like(head.thresholds)]
    for side, gradient in ((found, slope.T @ asked.unit), (asked, slope @ found.unit)):
        means = side.unit.mean(axis=0)
        loss += BALANCE * float(means @ means)
        side.backward(gradient + 2 * BALANCE / len(side.unit) * means, *gradients)
    return loss, gradients


def contrast(scores: Floats, owners: NDArray[np.int64]) -> tuple[float, Floats]:
    """Cross entropy of captions and pictures, and its gradient by ``scores`` (captions, pictures).

    Caption i belongs to picture ``owners[i]``. Its pair is compared with the other pictures and with the captions of
    others; the loss is the mean over captions of the sum of both.
    """
    every = np.arange(len(scores))
    own = scores[every, owners]
    others = scores.copy()
    others[every, owners] = -np.inf
    by_row, by_column = (np.logaddexp.reduce(others, axis=axis) for axis in (1, 0))
    row, column = by_row - own, by_column[owners] - own
    wrong_row, wrong_column = 1 / (1 + np.exp(-row)), 1 / (1 + np.exp(-column))
    gradient = wrong_row[:, None] * np.exp(others - by_row[:, None])
    gradient += np.bincount(owners, wrong_column, minlength=scores.shape[1]) * np.exp(others - by_column)
    gradient[every, owners] = -wrong_row - wrong_column
    loss = float(np.mean(np.logaddexp(0, row) + np.logaddexp(0, column)))
    return loss, (gradient / len(scores)).astype(np.float32)


class Adam:
    """Adam (Kingma & Ba, ICLR 2015) over arrays that it changes in place."""

    def __init__(self, arrays: Sequence[Floats]) -> None:
        self.arrays = arrays
        self.means = [np.zeros_like(array) for array in arrays]
        self.squares = [np.zeros_like(array) for array in arrays]
        self.steps = 0

    def step(self, gradients: Sequence[Floats], rate: float) -> None:
        """One step of length ``rate``."""
        self.steps += 1
        fast, slow = (1 - decay**self.steps for decay in DECAYS)
        for array, mean, square, gradient in zip(self.arrays, self.means, self.squares, gradients, strict=True):
            mean += (1 - DECAYS[0]) * (gradient - mean)
            square += (1 - DECAYS[1]) * (gradient * gradient - square)
            array -= (rate / fast * mean / (np.sqrt(square / slow) + 1e-8)).astype(np.float32)


def _labels(head: Head, captions: Ragged, files: Sequence[FeatureFile]) -> Iterator[Label]:
    """For each term the words that are frequent in the captions that have most of it."""
    words = [set(content_words(item.content)) for file in files for item in file.items("text")]
    background = Counter(word for caption in words for word in sorted(caption))
    best = np.zeros((0, len(head.directions)), np.float32)
    rows = np.zeros((0, len(head.directions)), np.int64)
    for start in range(0, len(captions), BLOCK):
        part = _taken(captions, np.arange(start, min(start + BLOCK, len(captions))))
        found = largest_products(part, head.directions, head.thresholds[MODALITIES.index("text")])
        numbers = np.broadcast_to(np.arange(start, start + len(part))[:, None], found.shape)
        best, rows = np.concatenate([best, found]), np.concatenate([rows, numbers])
        order = np.argsort(-best, axis=0, kind="stable")[:CAPTIONS]
        best, rows = np.take_along_axis(best, order, axis=0), np.take_along_axis(rows, order, axis=0)
    for having, which in zip(best.T, rows.T, strict=True):
        typical = [words[row] for row in which[having > 0].tolist()]
        counts = Counter(word for caption in typical for word in sorted(caption))
        yield Label(tuple(distinctive(counts, len(typical), background, len(words))[:WORDS]))


def _kept(best: Floats, z: int) -> NDArray[np.bool_]:
    """Which entries are above 0 and among the ``z`` largest of their row; ties beyond ``z`` are kept."""
    z = min(z, best.shape[1])
    least = np.partition(best, best.shape[1] - z, axis=1)[:, best.shape[1] - z, None]
    kept: NDArray[np.bool_] = (best >= least) & (best > 0)
    return kept


def _kinds(rows: Ragged) -> NDArray[np.int64]:
    """Of each row 0 if it is the first of its item, 1 otherwise; every item has a row."""
    kinds = np.ones(len(rows.values), np.int64)
    kinds[rows.offsets[:-1]] = 0
    return kinds


def _taken(rows: Ragged, chosen: NDArray[np.int64]) -> Ragged:
    """The items of these numbers."""
    lengths = np.diff(rows.offsets)[chosen]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    places = np.repeat(rows.offsets[:-1][chosen] - offsets[:-1], lengths) + np.arange(offsets[-1])
    return Ragged(rows.values[places], offsets)
