"""Read training data by number: regions of pictures, and captions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from boc.errors import EncoderError
from boc.inputs.features import FeatureFile
from boc.types import Item, Regions
from boc.vectors import Ints

from ..networks.base import pad_regions


@dataclass(frozen=True)
class CaptionPairs:
    """Picture numbers and caption numbers: ``captions[i]`` belong to picture ``pictures[i]``."""

    pictures: Ints
    captions: list[Ints]

    def __len__(self) -> int:
        return len(self.pictures)

    @property
    def owners(self) -> Ints:
        """Return the position of the picture of each caption, with captions in the order of the
        pictures."""
        return np.repeat(np.arange(len(self)), [len(c) for c in self.captions])

    def hold_out(
        self,
        held_out: int,
        seed: int,
    ) -> tuple[CaptionPairs, CaptionPairs]:
        """Hold out at most ``held_out`` random pictures with their captions. Return (rest, held
        out)."""
        order = np.random.default_rng(seed).permutation(len(self))
        return self._take(order[held_out:]), self._take(order[:held_out])

    def apart(self, pictures: Collection[int]) -> tuple[CaptionPairs, CaptionPairs]:
        """Split off ``pictures``, numbered as in ``self.pictures``. Return (rest, split off), both
        in order."""
        chosen = np.isin(self.pictures, list(pictures))
        return self._take(np.flatnonzero(~chosen)), self._take(np.flatnonzero(chosen))

    def batches(
        self,
        size: int,
        per_picture: int,
        rng: np.random.Generator,
    ) -> Iterator[tuple[Ints, Ints, Tensor]]:
        """Yield the batches of one pass in random order: picture numbers, the numbers of some
        captions per picture, and a mask (pictures, captions) of the captions that describe each
        picture."""
        order = rng.permutation(len(self))
        for start in range(0, len(order) - size + 1, size):
            chosen = order[start : start + size]
            drawn = [rng.permutation(self.captions[i])[:per_picture] for i in chosen]
            places = np.arange(size)
            owners = np.repeat(places, [len(each) for each in drawn])
            positive = torch.from_numpy(owners == places[:, None])
            yield self.pictures[chosen], np.concatenate(drawn), positive

    def _take(self, chosen: Ints) -> CaptionPairs:
        order = np.sort(chosen)
        return CaptionPairs(self.pictures[order], [self.captions[i] for i in order])


class RegionReader:
    """Reader of picture regions in a memory-mapped regions file."""

    def __init__(self, path: Path) -> None:
        with FeatureFile(path) as file:
            if file.header.kind != "regions":
                raise EncoderError(
                    f"{path}: contains {file.header.kind}, but training needs regions",
                    "extract regions with <boc extract --regions>",
                )
            self.identity = file.header.identity
            self.offsets = file.memory_map("image", "offsets")
            self.features = file.memory_map("image", "ragged/features")
            self.boxes = file.memory_map("image", "ragged/boxes")

    def __call__(
        self,
        pictures: Sequence[int] | Ints,
        keep: float = 1.0,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Read padded features (B, n, d), boxes (B, n, 4) and lengths (B,).

        Each region is kept with probability ``keep``, drawn from torch's generator, but at least
        one region per picture is kept.
        """
        regions = []
        for picture in pictures:
            rows = np.arange(self.offsets[picture], self.offsets[picture + 1])
            if keep < 1 and len(rows) > 1:
                stays = torch.rand(len(rows)).numpy() < keep
                stays[int(torch.randint(len(rows), ()))] = True
                rows = rows[stays]
            regions.append(Regions(self.features[rows], self.boxes[rows]))
        return pad_regions(regions)


def numbers_of(path: Path, ids: Collection[str]) -> list[int]:
    """Return the numbers of the pictures with these ids in a regions file. Raises EncoderError if
    the file contains no such picture."""
    with FeatureFile(path) as file:
        numbers = [number for number, item in enumerate(file.items("image")) if item.id in ids]
    if not numbers:
        raise EncoderError(
            f"{path}: does not contain the {len(ids)} pictures for validation; extract them",
        )
    return numbers


def read_pairs(path: Path, ids: set[str] | None) -> tuple[CaptionPairs, list[Item]]:
    """Read the pictures that have captions in a regions file, and their captions. With ``ids``,
    read only these pictures.

    Raises EncoderError if no picture has a caption.
    """
    with FeatureFile(path) as file:
        pictures = file.items("image")
        captions = file.items("text")
    own: dict[str, list[int]] = {item.id: [] for item in pictures if ids is None or item.id in ids}
    captions = [caption for caption in captions if caption.group in own]
    for number, caption in enumerate(captions):
        own[caption.group].append(number)
    numbers = [i for i, item in enumerate(pictures) if own.get(item.id)]
    if not numbers:
        raise EncoderError(
            f"{path}: no pictures with captions; extract them from a CSV with image,caption",
        )
    owned = [np.array(own[pictures[i].id], np.int64) for i in numbers]
    return CaptionPairs(np.array(numbers, np.int64), owned), captions
