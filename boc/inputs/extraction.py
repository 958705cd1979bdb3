"""Encode the items of a source, or extract regions from its pictures, into a feature file."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from boc.errors import CutShort, EncoderError, FeatureFileError, ImageError, SourceError, note
from boc.inputs import ocr as words
from boc.inputs.archives import FileState
from boc.inputs.feature_writer import FeatureWriter
from boc.inputs.features import FeatureFile, Header
from boc.inputs.file_facts import FACTS, content_hash, facts_of, settled_state
from boc.inputs.images import Picture, picture_file
from boc.inputs.prepare_pool import preparing, worker_count
from boc.inputs.sources import Source
from boc.plugins import Encoder, RegionSource
from boc.types import Batch, Embeddings, ImageRef, Item, Ragged, RegionBatch, Regions

PART = 256  # items per part of a feature file; a killed run loses at most the work on one part


@dataclass
class Speed:
    """Speed of a run: the number of ``images`` processed in ``seconds``."""

    images: int = 0
    seconds: float = 0.0


class Extraction:
    """Extract a source to a feature file, part by part. A killed run can be resumed with the same
    arguments.

    Pass ``regions`` for a region file, or ``encoder`` for a file of embeddings; ``precision`` is
    the precision of the encoder's computations. ``workers`` processes prepare pictures ahead of the
    encoder; with 0, this process prepares the pictures, and with None, boc chooses the number of
    processes. The same processes read the facts of the picture files, which are stored as metadata.
    With ``ocr``, they also recognise the text inside the pictures, which is the slowest step.
    ``pictures`` maps ids to pictures in memory. Items that cannot be used are listed in the file,
    each with a reason.
    """

    def __init__(
        self,
        source: Source,
        path: Path,
        *,
        encoder: Encoder | None = None,
        regions: RegionSource | None = None,
        dtype: str = "float16",
        concepts: bool = True,
        precision: str = "float32",
        workers: int | None = 0,
        ocr: bool = False,
        pictures: Mapping[str, Picture] | None = None,
    ) -> None:
        self._prepare: Callable[[ImageRef], Any]
        if encoder is not None:
            identity = encoder.identity
            self._prepare = encoder.preparer
        elif regions is not None:
            identity = regions.identity
            self._prepare = regions
        else:
            raise EncoderError(
                "nothing to extract",
                "name <--encoder> for embeddings, or <--regions> for regions",
            )
        self.source = source
        self.encoder = encoder
        self.concepts = concepts
        self.total = len(source.items)
        self.speed = Speed()
        self._cut: list[str] = []
        self.stamp = source.stamp
        self._path = path
        self._images = sum(item.modality == "image" for item in source.items)
        self.workers = worker_count(self._images) if workers is None else workers
        types = dict(source.types)
        if source.file is None:
            types |= FACTS
            if ocr:
                words.check_installed()
            self._prepare = _WithFacts(self._prepare, ocr, pictures or {})
        else:
            if ocr:
                raise SourceError(
                    f"{source.file}: contains no pictures in which to recognise text; omit ocr",
                )
            self.workers = 0
            self._prepare = self._region_file(source.file)
        self.header = replace(
            Header.of(identity, dtype, source.digest, types),
            kind="regions" if encoder is None else "embeddings",
            precision=precision,
            shard=source.shard,
        )

    def run(self) -> Iterator[int]:
        """Process the source. Yields the number of finished items, including the items of an
        earlier run."""
        self.speed = Speed()
        with FeatureWriter(self._path, self.header, self.stamp) as writer:
            yield writer.done
            began = time.perf_counter()
            left = self.source.items[writer.done :]
            images = (ImageRef(item.id, item.path) for item in left if item.modality == "image")
            with preparing(self._prepare, images, self.workers) as prepared:
                while writer.done < self.total:
                    items = self.source.items[writer.done : writer.done + PART]
                    batches, failed = self._extract(items, prepared)
                    writer.append(len(items), batches, failed)
                    if any(item.modality == "image" for item in items):
                        self.speed.seconds = time.perf_counter() - began
                    yield writer.done
            writer.finish()
        if self._cut:
            note(
                f"truncated pictures: {len(self._cut)} (such as {self._cut[0]!r}); only their "
                "readable parts were read",
                "find them with <--filter cut=true>",
            )

    def steps(self, verb: str) -> Iterator[tuple[str, int, int]]:
        """Process the source as ``run`` does, and yield the progress: a label, the number of
        finished items, and the total. Pictures come first. Because sentences take a different time
        than pictures, each modality has its own label."""
        pictures = self._images
        before = 0
        for done in self.run():
            if before < pictures:
                yield verb, min(done, pictures), pictures
            before = done
            if done > pictures:
                yield f"{verb} sentences", done - pictures, self.total - pictures

    def _region_file(self, path: Path) -> _StoredRegions:
        file = FeatureFile(path)
        if file.header.kind != "regions" or self.encoder is None:
            raise FeatureFileError(
                f"{path}: contains {file.header.kind}; an encoder can only encode regions",
            )
        # For an encoder of regions, the preparer is the region source.
        made_for = getattr(self.encoder.preparer, "identity", None)
        if made_for is None or made_for.digest != file.header.digest:
            raise FeatureFileError(
                f"{path}: the encoder was trained on other regions; extract from the pictures",
            )
        return _StoredRegions(file)

    def _extract(
        self,
        items: Sequence[Item],
        prepared: Iterator[Any],
    ) -> tuple[list[Batch | RegionBatch], list[tuple[str, str]]]:
        """Return the batches of the given items, and an (id, reason) pair for each picture that
        cannot be used."""
        pictures = []
        values = []
        failed = []
        for item in items:
            if item.modality == "image":
                self.speed.images += 1
                value = next(prepared)
                if isinstance(value, ImageError):
                    failed.append((item.id, str(value)))
                    continue
                if self.source.file is None:
                    facts, value = value
                    if "cut" in facts:
                        self._cut.append(item.id)
                    item = replace(item, fields={**item.fields, **facts})
                pictures.append(item)
                values.append(value)
        captions = [item for item in items if item.modality == "text"]
        batches: list[Batch | RegionBatch] = []
        if self.encoder is None:
            if pictures:
                features = Ragged.from_sets([each.features for each in values], self.header.dim)
                boxes = Ragged.from_sets([each.boxes for each in values], 4)
                batches.append(RegionBatch(pictures, features, boxes))
            if captions:
                batches.append(RegionBatch(captions))
            return batches, failed
        encoded = []
        if pictures:
            encoded.append((pictures, self.encoder.encode_images(values)))
        if captions:
            texts = [item.content for item in captions]
            encoded.append((captions, self.encoder.encode_texts(texts)))
        for usable, embeddings in encoded:
            if embeddings.concepts is None or not self.concepts:
                embeddings = Embeddings(embeddings.modality, embeddings.vectors)
            batches.append(Batch(usable, embeddings))
        return batches, failed


@dataclass(frozen=True)
class _WithFacts:
    """Function that reads the facts of a picture file, prepares the picture, and returns both. If
    the file changes in the meantime, everything is read again, so that the facts match the prepared
    picture. Text inside the picture is recognised only if the picture can be used."""

    prepare: Callable[[ImageRef], Any]
    ocr: bool
    pictures: Mapping[str, Picture]

    def __call__(self, image: ImageRef) -> tuple[dict[str, Any], Any]:
        with picture_file(self.pictures.get(image.id, image.path)) as path:
            return self._read(ImageRef(image.id, path))

    def _read(self, image: ImageRef) -> tuple[dict[str, Any], Any]:
        for _ in range(3):
            state: FileState = ()
            facts = {}
            # Errors are reported when the picture itself is read.
            with suppress(OSError):
                before = settled_state(image.path)
                if before:
                    facts = facts_of(image, before, content_hash(image.path))
                state = before
            with warnings.catch_warnings(record=True) as told:
                prepared = self.prepare(image)
            if any(issubclass(each.category, CutShort) for each in told):
                facts["cut"] = True
            if self.ocr:
                facts |= words.words_inside(image)
            if state == settled_state(image.path):
                return facts, prepared
        raise ImageError(
            f"{image.path}: changed while boc was reading it; try again when no other program is "
            "writing to it",
        )


class _StoredRegions:
    """Region source that reads regions from a feature file, by picture id."""

    def __init__(self, file: FeatureFile) -> None:
        self._places = {item.id: place for place, item in enumerate(file.items("image"))}
        if self._places:
            self._offsets = file.memory_map("image", "offsets")
            self._features = file.memory_map("image", "ragged/features")
            self._boxes = file.memory_map("image", "ragged/boxes")

    def __call__(self, image: ImageRef) -> Regions:
        place = self._places[image.id]
        rows = slice(self._offsets[place], self._offsets[place + 1])
        return Regions(
            self._features[rows].astype(np.float32),
            self._boxes[rows].astype(np.float32),
        )
