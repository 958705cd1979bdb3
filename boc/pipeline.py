"""From feature files to indexes, and from queries to hits."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from boc import registry
from boc.codecs import SurrogateCodec
from boc.errors import BackendError, BocError, EncoderError, FeatureFileError
from boc.features import FeatureFile, FeatureFiles, embeddings
from boc.manifest import Manifest
from boc.rerank import align, check_metric, dot, reorder, store
from boc.types import MODALITIES, Embeddings, Hit, Identity, ImageRef, Item, Modality, Ragged

if TYPE_CHECKING:
    from boc.types import Encoder, Index

BATCH = 4096  # items encoded and added at a time
CONCEPT_BATCH = 256  # the same where they come with their concept sets, each some dozen times a vector
FIT_SAMPLE = 100_000
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,99}")
DEFAULT_Z = 64
DEFAULT_QUERY_Z = 128
DEFAULT_RM = 10.0


def fit_code(file: FeatureFile | FeatureFiles, codec: SurrogateCodec) -> SurrogateCodec:
    """Fit ``codec`` on vectors of an embeddings file: 100,000 of each modality, or as many as its steps want of all,
    evenly spread."""
    counts = {modality: file.count(modality) for modality in MODALITIES}
    total = sum(counts.values())
    wanted = max((step.prepare(total) for step in codec.steps if not step.frozen), default=0)
    samples = []
    for modality, count in counts.items():
        if count:
            step = math.ceil(count / max(FIT_SAMPLE, math.ceil(wanted * count / total)))
            samples.append(Embeddings(modality, file.sample(modality, step)))
    if not samples:
        raise FeatureFileError(f"{file.path}: holds no items; there is nothing to index")
    try:
        return codec.fit(*samples)
    except ValueError as error:
        raise BocError(f"this code cannot be made: {error}") from error


def new_manifest(
    file: FeatureFile | FeatureFiles,
    codec: SurrogateCodec,
    rm: float = DEFAULT_RM,
    *,
    rerank: str = "dot",
    concepts: str | None = None,
) -> Manifest:
    """The manifest of an index of all items of ``file`` under a fitted ``codec``.

    ``concepts`` is the type that concept sets are stored as, float16 or int8; None stores none, unless the ``rerank``
    metric needs them. FeatureFileError if ``file`` has none to store.
    """
    head = file.header
    if check_metric(rerank) != "dot":
        concepts = concepts or "float16"
    if concepts is not None:
        for modality in MODALITIES:
            rows = next(file.batches(modality, 1), None)
            if rows is not None and "concepts" not in rows.ragged:
                raise FeatureFileError(
                    f"{file.path}: holds no concept sets of its {modality} items; make it with boc extract --encoder "
                    "(an encoder that has them, such as tern), or leave out --concepts and --rerank"
                )
    return Manifest.new(
        head.identity,
        codec.config(),
        codec.arrays(),
        rm=rm,
        dtype=head.dtype,
        source=head.source,
        rerank=rerank,
        concept_dtype=concepts,
    )


def build_index(
    file: FeatureFile | FeatureFiles, at: str, name: str, codec: SurrogateCodec, manifest: Manifest
) -> Iterator[int]:
    """Make index ``name`` at back end ``at`` from embeddings and a fitted codec, in place of an older one.

    Yields the number of items added. Nobody sees the index before the iterator is exhausted.
    """
    arrays = codec.arrays()
    dtype = manifest.concept_dtype
    sets_wanted = dtype is not None or codec.reads_concepts
    size = CONCEPT_BATCH if sets_wanted else BATCH
    with registry.backend(at).create(check_name(name), manifest, arrays) as writer:
        done = 0
        for modality in MODALITIES:
            for rows in file.batches(modality, size, sets=sets_wanted):
                encoded = embeddings(rows, modality)
                sets = None if dtype is None or encoded.concepts is None else store(encoded.concepts, dtype)
                writer.add(rows.items, codec.encode_documents(encoded), encoded.vectors, sets)
                done += len(rows.items)
                yield done
        writer.commit()


def budgets(dim: int, z: int | None, query_z: int | None) -> tuple[int, int]:
    """Terms of a document and of a query: as asked, or the defaults as far as the 2 * dim terms of a code reach."""
    terms = 2 * dim
    for option, value in (("--z", z), ("--query-z", query_z)):
        if value is not None and not 1 <= value <= terms:
            raise BocError(f"{option} must be between 1 and {terms} (2 x {dim} components), got {value}")
    return z or min(DEFAULT_Z, terms), query_z or max(z or 0, min(DEFAULT_QUERY_Z, terms))


def check_name(name: str) -> str:
    """``name`` if every engine takes it as the name of an index; BackendError tells the rule."""
    if not NAME.fullmatch(name):
        raise BackendError(
            f"{name!r} cannot name an index; use lower-case letters, digits, - and _, a letter or digit first"
        )
    return name


class Searcher:
    """Searches one index: sentences or pictures in, hits out.

    The encoder is loaded when the first query needs it; queries that come as vectors never load torch.
    """

    def __init__(self, index: Index, encoder: Callable[[], Encoder] | None = None) -> None:
        self.index = index
        self.codec = SurrogateCodec.restore(index.manifest.codec, index.arrays())
        self._load = encoder or (lambda: registry.encoder(index.manifest.identity.spec))

    @classmethod
    def open(
        cls, name: str, at: str = "file:boc-data", *, encoder: str | None = None, device: str = "auto"
    ) -> Searcher:
        """Index ``name`` of back end ``at``. ``encoder`` says where the encoder is if it has moved."""
        index = registry.backend(at).open(check_name(name))
        spec = encoder or index.manifest.identity.spec
        return cls(index, lambda: registry.encoder(spec, device))

    @cached_property
    def encoder(self) -> Encoder:
        """The encoder the index was made with. EncoderError if its weights are others."""
        found, wanted = self._load(), self.index.manifest.identity
        if found.identity.digest != wanted.digest:
            raise EncoderError(
                f"the encoder {found.identity.spec} has other weights than the index was made with "
                f"({found.identity.digest[:12]}, not {wanted.digest[:12]}); name the right one with --encoder"
            )
        return found

    def search(
        self,
        text: str | None = None,
        image: Path | str | None = None,
        *,
        k: int = 10,
        rm: float | None = None,
        find: Modality | None = None,
        rerank: str | None = None,
    ) -> list[Hit]:
        """The k best items for a sentence or a picture, best first.

        ``rm`` * k candidates of the inverted index are scored anew by the metric ``rerank`` of ``boc.rerank`` (default
        of both: what the index was made with). ``find`` asks for pictures or sentences only (default: pictures, if
        the index has any). Where an alignment compares two pictures or two sentences, the query's concepts play the
        words: each looks for its best match in the item.
        """
        if (text is None) == (image is None):
            raise BocError("give either a sentence or a picture to search by")
        if text is not None:
            if not text.strip():
                raise BocError("the sentence is empty; write what the picture shows")
            return self.search_vectors(self.encoder.encode_texts([text]), k=k, rm=rm, find=find, rerank=rerank)[0]
        path = Path(str(image))
        prepared = self.encoder.prepare(ImageRef(path.name, path))
        encoded = self.encoder.encode_images([prepared])
        return self.search_vectors(encoded, k=k, rm=rm, find=find, rerank=rerank)[0]

    def search_vectors(
        self,
        queries: Embeddings,
        *,
        k: int = 10,
        rm: float | None = None,
        find: Modality | None = None,
        rerank: str | None = None,
    ) -> list[list[Hit]]:
        """The same for queries that are encoded already; one list a row."""
        rm = self.index.manifest.rm if rm is None else rm
        if k < 1:
            raise BocError(f"k must be at least 1, got {k}")
        if not 1 <= rm < math.inf:
            raise BocError(f"rm must be at least 1 (candidates a hit), got {rm:g}")
        target = self.target(find)
        score = self._scorer(queries, target, check_metric(rerank or self.index.manifest.rerank))
        found = self.index.search(self.codec.encode_queries(queries), math.ceil(rm * k), target)
        return [
            reorder(hits, score(i, [hit.item.id for hit in hits]), k) if hits else [] for i, hits in enumerate(found)
        ]

    def _scorer(
        self, queries: Embeddings, target: Modality, metric: str
    ) -> Callable[[int, list[str]], NDArray[np.float32]]:
        """What scores some items, by their ids, for query number i."""
        if metric == "dot":
            return lambda i, ids: dot(queries.vectors[i], self.index.vectors(ids))
        self.index.concepts([])  # refuses at once if there are none
        sets = queries.concepts
        if sets is None:
            raise BocError(f"the queries hold no concept sets, which {metric} compares; re-rank by dot")
        words = (queries.modality, target) != ("image", "text")
        return lambda i, ids: align(sets[i], self.index.concepts(ids), metric, asks_by_words=words)

    def target(self, find: Modality | None = None) -> Modality:
        """What a search finds: ``find``, or pictures if the index has any. BocError if it holds none such."""
        counts = self.index.manifest.items
        if find is None:
            return "image" if counts["image"] else "text"
        if not counts[find]:
            held = "sentences" if find == "image" else "pictures"
            raise BocError(f"the index holds {held} only; drop --find, or index a CSV of image,caption to have both")
        return find


def read_queries(path: Path, identity: Identity, item: str | None) -> Iterator[tuple[list[Item], Embeddings]]:
    """All items of an embeddings file as queries, in batches, or the one of id ``item``.

    FeatureFileError if the vectors are those of another encoder than ``identity``, or there is no such item.
    """
    with FeatureFile(path) as file:
        if file.header.kind != "embeddings":
            raise FeatureFileError(f"{path}: holds regions, not vectors; use boc extract --encoder on it first")
        if file.header.digest != identity.digest:
            raise FeatureFileError(
                f"{path}: made by {file.header.spec}, the index by {identity.spec}; use the same encoder"
            )
        found = False
        for modality in MODALITIES:
            for rows in file.batches(modality, CONCEPT_BATCH):
                chosen = [i for i, row in enumerate(rows.items) if item is None or row.id == item]
                if chosen:
                    found = True
                    sets = rows.ragged.get("concepts")
                    if sets is not None:
                        sets = Ragged.from_sets([sets[i] for i in chosen], sets.values.shape[1])
                    words = rows.words and [rows.words[i] for i in chosen]
                    asked = Embeddings(modality, rows.dense["vectors"][chosen], sets, words=words)
                    yield [rows.items[i] for i in chosen], asked
        if not found:
            raise FeatureFileError(f"{path}: no item {item!r} in it" if item else f"{path}: holds no items")
