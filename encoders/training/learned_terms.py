"""Learn terms from pictures and their captions, with the codebook inside the training loop.

The head (``boc.codecs.learned``) starts as a codebook from spherical k-means over the rows of both
modalities, and is then trained like an encoder. An item keeps its ``z`` largest activations, scaled
to unit length; each caption should be nearer to its own picture than to the other pictures in a
batch, and each picture nearer to its captions (InfoNCE; van den Oord et al., 2018). A penalty on
the squared mean activation of each term (FLOPS; Paria et al., ICLR 2020) is proportional to the
expected number of postings, and encourages both modalities to use all terms. The encoder does not
change, so training needs only a feature file.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from boc.clustering.codebook import Codebook
from boc.clustering.kmeans import kmeans
from boc.clustering.make_codebook import check_files, sources_of
from boc.codecs.learned import item_rows, largest_products
from boc.errors import FeatureFileError
from boc.inputs.features import FeatureFile
from boc.labels import CAPTIONS, Label, content_words, pack_labels, typical_words
from boc.types import MODALITIES, Modality, Ragged
from boc.vectors import Floats, Ints, batches

from .losses import contrast

# The budgets and the penalty weight were chosen from a few values on held-out training photographs.
# With these budgets, a query reads as many postings as with a dictionary. The other values are
# conventional and were not tuned.
Z = 8
QUERY_Z = 16
SEED = 0
EPOCHS = 6


@dataclass(frozen=True)
class ItemPairs:
    """Rows of the items in both modalities, and the captions of each picture that has captions."""

    rows: dict[Modality, Ragged]
    captions: dict[int, Ints]


class Head(nn.Module):
    """Parameters of learned terms: ``directions`` float32 (p, d), and ``thresholds`` float32 (2, 2,
    p) by modality and kind of row."""

    def __init__(self, directions: Floats, thresholds: Floats) -> None:
        super().__init__()
        self.directions = nn.Parameter(torch.from_numpy(directions.copy()))
        self.thresholds = nn.Parameter(torch.from_numpy(thresholds.copy()))

    def forward(
        self,
        rows: Ragged,
        modality: Modality,
        z: int,
    ) -> Tensor:
        """Return each item's ``z`` largest activations (n, p), scaled to unit length.

        The search for the largest rows runs without gradients; only products of these rows have
        gradients.
        """
        side = MODALITIES.index(modality)
        # These are the rows of each item (n, longest); short sets repeat their last row.
        starts = rows.offsets[:-1, None]
        lengths = np.diff(rows.offsets)[:, None]
        steps = np.minimum(np.arange(lengths.max()), lengths - 1)
        places = torch.from_numpy(starts + steps)
        kinds = torch.ones(len(rows.values), dtype=torch.int64)
        kinds[places[:, 0]] = 0
        values = torch.from_numpy(rows.values)
        with torch.no_grad():
            products = values @ self.directions.T - self.thresholds[side, kinds]
            best, which = products[places].max(dim=1)
            least = best.topk(min(z, best.shape[1]), dim=1).values[:, -1:]
            items, terms = ((best >= least) & (best > 0)).nonzero(as_tuple=True)
            chosen = places[items, which[items, terms]]
        products = (values[chosen] * self.directions[terms]).sum(dim=1)
        excess = products - self.thresholds[side, kinds[chosen], terms]
        activations = torch.zeros_like(best).index_put((items, terms), torch.log1p(excess))
        return normalize(activations, eps=1e-6)


def learned_terms(
    files: Sequence[FeatureFile],
    terms: int,
    *,
    tell: Callable[[str], None],
) -> Codebook:
    """Learn ``terms`` terms from the pictures in ``files`` and their captions, for ``Z`` terms per
    picture and ``QUERY_Z`` per caption. Raises FeatureFileError for several encoders, or for fewer
    than two pictures with captions."""
    identity = check_files(files, concepts=False)
    tell("reading pictures and captions")
    pairs = read_pairs(files)
    tell(f"clustering {terms} directions")
    head = first_head(pairs, terms)
    for epoch, loss in enumerate(train(head, pairs), 1):
        tell(f"epoch {epoch} of {EPOCHS}: loss {loss:.3f}")
    tell("labelling")
    directions = head.directions.detach().numpy()
    thresholds = head.thresholds.detach().numpy()
    text = thresholds[MODALITIES.index("text")]
    return Codebook(
        directions,
        identity,
        sources_of(files),
        {"mode": "learned", "clusters": terms, "seed": SEED, "z": Z, "query_z": QUERY_Z},
        sum(len(rows.values) for rows in pairs.rows.values()),
        thresholds=thresholds,
        labels=pack_labels(list(_labels(directions, text, pairs.rows["text"], files))),
    )


def read_pairs(files: Sequence[FeatureFile]) -> ItemPairs:
    """Read all items in the files. Raises FeatureFileError for fewer than two pictures with
    captions."""
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
            f"{files[0].path}: {len(captions)} pictures with captions, but terms need at "
            "least 2; give a file of pictures with captions",
        )
    rows = {modality: Ragged.concatenate(parts[modality]) for modality in MODALITIES}
    return ItemPairs(rows, {picture: np.array(places) for picture, places in captions.items()})


def first_head(pairs: ItemPairs, terms: int) -> Head:
    """Build the initial head from the centroids of the centred rows of both modalities, with
    thresholds that one item in twenty exceeds."""
    rng = np.random.default_rng(SEED)
    drawn = []
    means = np.zeros((2, 2, pairs.rows["image"].values.shape[1]), np.float32)
    for number, modality in enumerate(MODALITIES):
        rows = pairs.rows[modality]
        kinds = np.ones(len(rows.values), np.int64)
        kinds[rows.offsets[:-1]] = 0
        for kind in np.unique(kinds):
            means[number, kind] = rows.values[kinds == kind].mean(axis=0, dtype=np.float64)
        chosen = rng.permutation(len(kinds))[: 5 * terms]
        drawn.append(rows.values[chosen] - means[number, kinds[chosen]])
    directions = kmeans(
        np.concatenate(drawn),
        terms,
        seed=SEED,
        rounds=10,
        spherical=True,
        crowd=256,
    )
    thresholds = means @ directions.T
    for number, modality in enumerate(MODALITIES):
        rows = pairs.rows[modality]
        sample = rows.take(rng.permutation(len(rows))[:1000].tolist())
        best = largest_products(sample, directions, thresholds[number])
        thresholds[number] += np.quantile(best, 0.95, axis=0).astype(np.float32)
    return Head(directions, thresholds)


def train(
    head: Head,
    pairs: ItemPairs,
    *,
    z: int = Z,
    query_z: int = QUERY_Z,
    epochs: int = EPOCHS,
    rate: float = 1e-3,
) -> Iterator[float]:
    """Train the head in place, and yield the mean loss of each epoch.

    A batch contains 64 pictures with two captions each; the learning rate rises during the first 40
    steps.
    """
    rng = np.random.default_rng(SEED)
    pictures = np.array(sorted(pairs.captions))
    per_batch = min(64, len(pictures))
    steps = epochs * (len(pictures) // per_batch)
    adam = torch.optim.Adam(
        head.parameters(),
        lr=rate,
        betas=(0.9, 0.99),
    )

    def factor(step: int) -> float:
        return min(1, (step + 1) / 40) * float(1 + np.cos(np.pi * step / steps)) / 2

    schedule = torch.optim.lr_scheduler.LambdaLR(adam, factor)
    for _ in range(epochs):
        losses = []
        order = rng.permutation(pictures)
        for start in range(0, len(order) - per_batch + 1, per_batch):
            chosen = order[start : start + per_batch].tolist()
            captions = [rng.permutation(pairs.captions[picture])[:2] for picture in chosen]
            places = np.arange(len(chosen))
            owners = np.repeat(places, [len(each) for each in captions])
            positive = torch.from_numpy(places[:, None] == owners)
            images = head(
                pairs.rows["image"].take(chosen),
                "image",
                z,
            )
            read = pairs.rows["text"].take(np.concatenate(captions).tolist())
            texts = head(read, "text", query_z)
            loss = contrast(images @ texts.T, positive, 0.05) / len(owners)
            means = images.mean(dim=0), texts.mean(dim=0)
            loss = loss + 100.0 * sum((mean**2).sum() for mean in means)
            adam.zero_grad()
            loss.backward()
            adam.step()
            schedule.step()
            losses.append(float(loss.detach()))
        yield float(np.mean(losses))


def _labels(
    directions: Floats,
    thresholds: Floats,
    captions: Ragged,
    files: Sequence[FeatureFile],
) -> Iterator[Label]:
    """Yield a label for each term, built from the captions in which the term has its largest
    values, among at most 20,000 captions."""
    words = [set(content_words(item.content)) for file in files for item in file.items("text")]
    background = Counter(word for caption in words for word in sorted(caption))
    numbers = np.sort(np.random.default_rng(SEED).permutation(len(captions))[:20_000])
    parts = [
        largest_products(
            captions.take(part.tolist()),
            directions,
            thresholds,
        )
        for part in batches(numbers, 512)
    ]
    for best in np.concatenate(parts).T:
        which = np.argsort(-best, kind="stable")[:CAPTIONS]
        typical = [words[row] for row in numbers[which[best[which] > 0]].tolist()]
        yield Label(typical_words(typical, background, len(words)))
