"""From a source to a feature file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from boc.errors import EncoderError, FeatureFileError, ImageError
from boc.features import FeatureFile, FeatureWriter, Header, regions
from boc.sources import Source
from boc.types import Embeddings, ImageRef, Item, Ragged, Rows

if TYPE_CHECKING:
    from boc.types import Encoder, RegionSource

PART = 256  # items of a part of a feature file: what a kill can cost


class Extraction:
    """Items of a source to a feature file, part by part; made again with the same arguments it goes on.

    Give ``regions`` for a file of regions, or ``encoder`` for one of embeddings. Items that cannot be used are left
    out and named in the file with their reason.
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
    ) -> None:
        if encoder is not None:
            identity, self._read = encoder.identity, encoder.prepare
        elif regions is not None:
            identity, self._read = regions.identity, regions
        else:
            raise EncoderError("name what to extract: --encoder for embeddings, or --regions for regions")
        self.source = source
        self.encoder = encoder
        self.concepts = concepts
        self.total = len(source.items)
        kind: Literal["regions", "embeddings"] = "regions" if encoder is None else "embeddings"
        self.header = Header(kind, identity.spec, identity.digest, identity.dim, dtype, source.digest)
        self._path = path
        self._input = self._open_input()

    def run(self) -> Iterator[int]:
        """Work through the source; yields the number of items done, first those of an earlier run."""
        with FeatureWriter(self._path, self.header) as writer:
            yield writer.done
            while writer.done < self.total:
                items = self.source.items[writer.done : writer.done + PART]
                batches, failed = self._extract(items)
                writer.append(len(items), batches, failed)
                yield writer.done
            writer.finish()

    def _open_input(self) -> tuple[FeatureFile, dict[str, int]] | None:
        """The regions file that is the source, if it is one, and its row numbers by id."""
        if self.source.file is None:
            return None
        file = FeatureFile(self.source.file)
        if file.header.kind != "regions" or self.encoder is None:
            raise FeatureFileError(
                f"{self.source.file}: holds {file.header.kind}; only regions can be extracted from, with --encoder"
            )
        made_for = getattr(self.encoder, "regions", None)
        if made_for is None or made_for.identity.digest != file.header.digest:
            raise FeatureFileError(
                f"{self.source.file}: its regions are not those the encoder was trained on; extract from the pictures"
            )
        return file, {item.id: row for row, item in enumerate(file.items("image"))}

    def _extract(self, items: Sequence[Item]) -> tuple[list[Rows], list[tuple[str, str]]]:
        pictures = [item for item in items if item.modality == "image"]
        captions = [item for item in items if item.modality == "text"]
        batches, failed = self._pictures(pictures) if pictures else ([], [])
        if captions:
            batches.append(self._captions(captions))
        return batches, failed

    def _pictures(self, items: Sequence[Item]) -> tuple[list[Rows], list[tuple[str, str]]]:
        kept, prepared, failed = [], [], []
        for item in items:
            try:
                prepared.append(self._prepare(item))
                kept.append(item)
            except ImageError as error:
                failed.append((item.id, str(error)))
        if not kept:
            return [], failed
        if self.encoder is not None:
            return [self._rows(kept, self.encoder.encode_images(prepared))], failed
        width = self.header.dim
        features = Ragged.from_sets([r.features for r in prepared], width)
        boxes = Ragged.from_sets([r.boxes for r in prepared], 4)
        return [Rows(kept, ragged={"features": features, "boxes": boxes})], failed

    def _prepare(self, item: Item) -> Any:
        if self._input is not None:
            file, rows = self._input
            return regions(file.rows("image", rows[item.id], rows[item.id] + 1))[0]
        ref = ImageRef(item.id, Path(item.content))
        return self._read(ref)

    def _captions(self, items: Sequence[Item]) -> Rows:
        if self.encoder is None:
            return Rows(list(items))
        return self._rows(items, self.encoder.encode_texts([item.content for item in items]))

    def _rows(self, items: Sequence[Item], encoded: Embeddings) -> Rows:
        if encoded.concepts is None or not self.concepts:
            return Rows(list(items), {"vectors": encoded.vectors})
        ragged = {"concepts": encoded.concepts} | ({"boxes": encoded.boxes} if encoded.boxes is not None else {})
        return Rows(list(items), {"vectors": encoded.vectors}, ragged, encoded.words)
