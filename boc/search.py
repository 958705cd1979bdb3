"""From feature files to indexes, and from queries to hits."""

from __future__ import annotations

import hashlib
import json
import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from boc import plugins
from boc.codecs import SurrogateCodec
from boc.errors import BackendError, BocError, BocWarning, EncoderError, FeatureFileError
from boc.garbage import collected_rarely
from boc.inputs.features import FeatureFile, FeatureFiles, embeddings
from boc.inputs.metadata import Metadata, check_filter
from boc.manifest import Manifest
from boc.prefetch import ahead
from boc.rank_fusion import reciprocal_rank_fusion
from boc.rerank.dot import align, check_metric, reorder, store
from boc.types import (
    MODALITIES,
    Embeddings,
    Filter,
    Hit,
    Identity,
    ImageRef,
    Item,
    Modality,
    Ragged,
    Rescore,
    Rows,
    Stages,
    StoredConcepts,
    TermMatrix,
    Words,
)

if TYPE_CHECKING:
    from boc.types import Encoder, Index

BATCH = 4096  # items encoded and added at a time
CONCEPT_BATCH = 256  # the same where they come with their concept sets, each some dozen times a vector
FIT_SAMPLE = 100_000
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,99}")
DEFAULT_Z = 64
DEFAULT_QUERY_Z = 128
DEFAULT_RM = 10.0
FOUND = 1000  # ids looked up at a time

_Encoded: TypeAlias = tuple[list[Item], TermMatrix, NDArray[np.float32], StoredConcepts | None]
"""What an index takes of some rows: items, term frequencies, vectors and concept sets."""

Hybrid: TypeAlias = Literal["rrf", "sum"]
HYBRIDS: tuple[Hybrid, Hybrid] = ("rrf", "sum")


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
    metadata: Metadata | None = None,
) -> Manifest:
    """The manifest of an index of all items of ``file`` under a fitted ``codec``, with their ``metadata``.

    ``concepts`` is the type that concept sets are stored as, float16 or int8; None stores none, unless the ``rerank``
    metric needs them. FeatureFileError if ``file`` has none to store.
    """
    head = file.header
    if check_metric(rerank) != "dot":
        concepts = concepts or "float16"
    if concepts is not None:
        _check_concepts(file)
    return Manifest.new(
        head.identity,
        codec.config(),
        codec.arrays(),
        rm=rm,
        dtype=head.dtype,
        source=_source(head.source, metadata),
        rerank=rerank,
        concept_dtype=concepts,
        fields=None if metadata is None else metadata.types,
    )


def build_index(
    file: FeatureFile | FeatureFiles,
    at: str,
    name: str,
    codec: SurrogateCodec,
    manifest: Manifest,
    metadata: Metadata | None = None,
) -> Iterator[int]:
    """Make index ``name`` at back end ``at`` from embeddings and a fitted codec, in place of an older one.

    Yields the number of items added, or left there by an earlier load that was killed. Nobody sees the index before
    the iterator is exhausted. ``metadata`` must be what ``manifest`` was made with.
    """
    _check_items(file, metadata)
    with collected_rarely(), plugins.backend(at).create(check_name(name), manifest, codec.arrays()) as writer:
        done = 0
        for count, batch in _encoding(file, codec, manifest, metadata, known=writer.has):
            if batch is not None:
                writer.add(*batch)
            done += count
            yield done
        writer.commit()


def append(file: FeatureFile | FeatureFiles, at: str, name: str, metadata: Metadata | None = None) -> Iterator[int]:
    """Put all items of ``file`` into index ``name``, under its own code, in place of items of the same ids.

    Yields the number of items put. EncoderError if another encoder made them; BocError if the index declares no such
    metadata; FeatureFileError if it holds concept sets and ``file`` has none.
    """
    backend = plugins.backend(at)
    with collected_rarely(), backend.edit(check_name(name)) as editor:
        index = backend.open(name)
        manifest, codec = index.manifest, SurrogateCodec.restore(index.manifest.codec, index.arrays())
        _check_same_encoder(file, manifest)
        _check_fields(manifest, metadata)
        _check_items(file, metadata)
        if manifest.concept_dtype is not None:
            _check_concepts(file)
        done = 0
        for count, batch in _encoding(file, codec, manifest, metadata):
            if batch is not None:
                editor.put(*batch)
            done += count
            yield done
        editor.commit(_digest(manifest.source, _source(file.header.source, metadata)))


def delete(at: str, name: str, ids: Sequence[str]) -> tuple[int, list[str]]:
    """Remove items from index ``name``: how many there were, and the ids that it does not know.

    BackendError if none would be left.
    """
    backend = plugins.backend(at)
    index = backend.open(check_name(name))
    distinct = list(dict.fromkeys(ids))
    unknown = set(_unknown(index, distinct))
    known = [key for key in distinct if key not in unknown]
    if known:
        with backend.edit(name) as editor:
            for start in range(0, len(known), FOUND):
                editor.delete(known[start : start + FOUND])
            editor.commit(_digest(index.manifest.source, "without", *sorted(known)))
    return len(known), [key for key in distinct if key in unknown]


def _batches(
    file: FeatureFile | FeatureFiles, codec: SurrogateCodec, manifest: Manifest
) -> Iterator[tuple[Rows, Modality]]:
    sets = manifest.concept_dtype is not None or codec.reads_concepts
    for modality in MODALITIES:
        for rows in file.batches(modality, CONCEPT_BATCH if sets else BATCH, sets=sets):
            yield rows, modality


def _encoding(
    file: FeatureFile | FeatureFiles,
    codec: SurrogateCodec,
    manifest: Manifest,
    metadata: Metadata | None,
    known: Callable[[list[str]], bool] = lambda ids: False,
) -> Iterator[tuple[int, _Encoded | None]]:
    """Of each batch of items how many they are, and what an index takes of them; None of those that are ``known``."""

    def encoded(batch: tuple[Rows, Modality, bool]) -> tuple[int, _Encoded | None]:
        rows, modality, there = batch
        return len(rows.items), None if there else _encoded(rows, modality, codec, manifest, metadata)

    batches = _batches(file, codec, manifest)
    yield from ahead(encoded, ((rows, modality, known([item.id for item in rows.items])) for rows, modality in batches))


def _encoded(
    rows: Rows, modality: Modality, codec: SurrogateCodec, manifest: Manifest, metadata: Metadata | None
) -> _Encoded:
    encoded = embeddings(rows, modality)
    dtype = manifest.concept_dtype
    sets = None if dtype is None or encoded.concepts is None else store(encoded.concepts, dtype)
    items = rows.items if metadata is None else [replace(item, fields=metadata.of(item)) for item in rows.items]
    return items, codec.encode_documents(encoded), encoded.vectors, sets


def _source(items: str, metadata: Metadata | None) -> str:
    """Digest of a list of items with its metadata, from that of the list."""
    return items if metadata is None else _digest(items, metadata.digest)


def _digest(*parts: str) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _check_concepts(file: FeatureFile | FeatureFiles) -> None:
    for modality in MODALITIES:
        rows = next(file.batches(modality, 1), None)
        if rows is not None and "concepts" not in rows.ragged:
            raise FeatureFileError(
                f"{file.path}: holds no concept sets of its {modality} items; make it with boc extract --encoder "
                "(an encoder that has them, such as tern), or leave out --concepts and --rerank"
            )


def _check_same_encoder(file: FeatureFile | FeatureFiles, manifest: Manifest) -> None:
    found, wanted = file.header.identity, manifest.identity
    if found.digest != wanted.digest:
        raise EncoderError(f"{file.path}: made by {found.spec}, the index by {wanted.spec}; use the same encoder")


def _check_fields(manifest: Manifest, metadata: Metadata | None) -> None:
    given = {} if metadata is None else metadata.types
    odd = [f"{name}:{kind}" for name, kind in given.items() if manifest.fields.get(name) != kind]
    if odd:
        there = ", ".join(f"{name}:{kind}" for name, kind in manifest.fields.items()) or "none"
        raise BocError(
            f"the index has no metadata fields {', '.join(odd)} (it has: {there}); make it anew, or rename them"
        )


def _check_items(file: FeatureFile | FeatureFiles, metadata: Metadata | None) -> None:
    """BocError if no line of ``metadata`` is of an item, a notice if some are of none."""
    if metadata is None:
        return
    files = file.files if isinstance(file, FeatureFiles) else [file]
    items = (
        item
        for part in files
        for modality in MODALITIES
        for start in range(0, part.count(modality), BATCH)
        for item in part.items(modality, start, start + BATCH)
    )
    strange = metadata.strangers(items)
    if len(strange) == len(metadata.rows):
        raise BocError(f"no id of the metadata is that of an item (such as {strange[0]!r}); give ids of {file.path}")
    if strange:
        warnings.warn(
            BocWarning(f"{len(strange)} lines of the metadata are of no item here (such as {strange[0]!r})"),
            stacklevel=2,
        )


def _unknown(index: Index, ids: Sequence[str]) -> Iterator[str]:
    """Those of some ids that are of no item."""
    for start in range(0, len(ids), FOUND):
        asked = list(ids[start : start + FOUND])
        while asked:
            try:
                index.find(asked)
                break
            except KeyError as error:
                asked.remove(error.args[0])
                yield error.args[0]


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

    def __init__(
        self,
        index: Index,
        encoder: Callable[[], Encoder] | None = None,
        reopen: Callable[[], Index] | None = None,
    ) -> None:
        self.index = index
        self.codec = SurrogateCodec.restore(index.manifest.codec, index.arrays())
        self._load = encoder or (lambda: plugins.encoder(index.manifest.identity.spec))
        self._reopen = reopen or (lambda: index)

    @classmethod
    def open(
        cls, name: str, at: str = "file:boc-data", *, encoder: str | None = None, device: str = "auto"
    ) -> Searcher:
        """Index ``name`` of back end ``at``. ``encoder`` says where the encoder is if it has moved."""
        backend = plugins.backend(at)

        def reopen() -> Index:
            return backend.open(check_name(name))

        index = reopen()
        spec = encoder or index.manifest.identity.spec
        return cls(index, lambda: plugins.encoder(spec, device), reopen)

    def renewed(self, *, force: bool = False) -> Searcher:
        """A searcher of what the index is now, with the encoder of this one; itself if the index is the same.

        Every load and edit gives the manifest another ``created`` or ``source``, and a compacted index answers as
        before. ``force`` is for one that could not be read: it may be back, and the same.
        """
        index = self._reopen()
        if not force and index.manifest == self.index.manifest:
            return self  # before the codec is fetched
        found = Searcher(index, self._load, self._reopen)
        if "encoder" in self.__dict__ and index.manifest.identity.digest == self.encoder.identity.digest:
            found.encoder = self.encoder  # need not be loaded again
        return found

    def stored(self, id: str) -> Embeddings:
        """An item as the index holds it: its vector, and its concepts if there are any. KeyError for an unknown id."""
        item, sets = self.index.find([id])[0], self.index.manifest.concept_dtype is not None
        concepts = self.index.concepts([id]).ragged() if sets else None
        return Embeddings(item.modality, self.index.vectors([id]).astype(np.float32), concepts)

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
        filters: Sequence[Filter] = (),
        hybrid: Hybrid | None = None,
        words_weight: float | None = None,
        query_z: int | None = None,
        stages: Stages | None = None,
    ) -> list[Hit]:
        """The k best items for a sentence or a picture, best first.

        ``rm`` * k candidates of the inverted index are scored anew by the metric ``rerank`` of ``boc.rerank`` (default
        of both: what the index was made with). ``find`` asks for pictures or sentences only (default: pictures, if
        the index has any), ``filters`` for items whose metadata they hold for. Where an alignment compares two
        pictures or two sentences, the query's concepts play the words: each looks for its best match in the item.

        ``hybrid`` counts the words of a sentence too: "rrf" fuses the re-scored ranking with that of the words by
        reciprocal rank; "sum" ranks, without scoring anew, by the score of the terms plus ``words_weight`` times that
        of the words. ``query_z`` keeps only so many terms of the query, the heaviest; ``stages`` is told what each
        stage of the search took.
        """
        if (text is None) == (image is None):
            raise BocError("give either a sentence or a picture to search by")
        stages = Stages() if stages is None else stages
        same: Any = {"k": k, "rm": rm, "find": find, "rerank": rerank, "filters": filters}
        same |= {"hybrid": hybrid, "words_weight": words_weight, "query_z": query_z, "stages": stages}
        if text is not None:
            return self.search_texts([text], **same)[0]
        path, encoder = Path(str(image)), self.encoder
        begun = perf_counter()
        encoded = encoder.encode_images([encoder.prepare(ImageRef(path.name, path))])
        stages.took("encode_ms", begun)
        return self.search_vectors(encoded, **same)[0]

    def search_texts(self, texts: Sequence[str], *, stages: Stages | None = None, **options: Any) -> list[list[Hit]]:
        """The same for several sentences at once, which engines answer together; one list each."""
        if not all(text.strip() for text in texts):
            raise BocError("the sentence is empty; write what the picture shows")
        stages, encoder = Stages() if stages is None else stages, self.encoder
        begun = perf_counter()
        encoded = encoder.encode_texts(texts)
        stages.took("encode_ms", begun)
        return self.search_vectors(encoded, texts=texts, stages=stages, **options)

    def search_vectors(
        self,
        queries: Embeddings,
        *,
        k: int = 10,
        rm: float | None = None,
        find: Modality | None = None,
        rerank: str | None = None,
        filters: Sequence[Filter] = (),
        hybrid: Hybrid | None = None,
        words_weight: float | None = None,
        texts: Sequence[str] | None = None,
        query_z: int | None = None,
        stages: Stages | None = None,
    ) -> list[list[Hit]]:
        """The same for queries that are encoded already; one list a row. ``texts`` are their sentences, for hybrid."""
        rm = self.index.manifest.rm if rm is None else rm
        if k < 1:
            raise BocError(f"k must be at least 1, got {k}")
        if not 1 <= rm < math.inf:
            raise BocError(f"rm must be at least 1 (candidates a hit), got {rm:g}")
        if query_z is not None and query_z < 1:
            raise BocError(f"query_z must be at least 1 (terms kept of a query), got {query_z}")
        for condition in filters:
            check_filter(condition, self.index.manifest.fields)
        words = _words(hybrid, words_weight, rerank, texts)
        target, depth = self.target(find), math.ceil(rm * k)
        metric = check_metric(rerank or self.index.manifest.rerank)
        stages = Stages() if stages is None else stages
        begun = perf_counter()
        codes = self.codec.encode_queries(queries)
        stages.codes = codes = codes if query_z is None else heaviest(codes, query_z)
        stages.took("code_ms", begun)
        if hybrid == "sum":
            return self.index.search(codes, k, target, filters=filters, words=words, stages=stages)
        if words is None:
            return self._ranked(queries, codes, depth, k, target, metric, filters, stages)
        ranked = self._ranked(queries, codes, depth, depth, target, metric, filters, stages)
        begun = perf_counter()
        matched = self.index.match(words.texts, depth, target, filters)
        stages.took("postings_ms", begun)
        return [reciprocal_rank_fusion(pair, k) for pair in zip(ranked, matched, strict=True)]

    def _ranked(
        self,
        queries: Embeddings,
        codes: TermMatrix,
        depth: int,
        k: int,
        target: Modality,
        metric: str,
        filters: Sequence[Filter],
        stages: Stages,
    ) -> list[list[Hit]]:
        """The best k of ``depth`` candidates of each query by the re-rank metric."""
        if metric == "dot":
            rescore = Rescore(queries.vectors, k)
            return self.index.search(codes, depth, target, filters=filters, rescore=rescore, stages=stages)
        score = self._aligner(queries, target, metric)
        found = self.index.search(codes, depth, target, filters=filters, stages=stages)
        stages.candidates += sum(map(len, found))
        begun = perf_counter()
        ranked = [
            reorder(hits, score(i, [hit.item.id for hit in hits]), k) if hits else [] for i, hits in enumerate(found)
        ]
        stages.took("rerank_ms", begun)
        return ranked

    def _aligner(
        self, queries: Embeddings, target: Modality, metric: str
    ) -> Callable[[int, list[str]], NDArray[np.float32]]:
        """What scores some items, by their ids, for query number i."""
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


def heaviest(terms: TermMatrix, z: int) -> TermMatrix:
    """The z largest frequencies of each row of ``terms`` (n, V), ties to the lower term."""
    row = np.repeat(np.arange(terms.shape[0]), np.diff(terms.indptr))
    order = np.lexsort((terms.indices, -terms.data, row))  # rows stay where they are
    kept = np.sort(order[np.arange(len(order)) - terms.indptr[row] < z])
    ends = np.searchsorted(kept, terms.indptr)
    return sparse.csr_array((terms.data[kept], terms.indices[kept], ends), shape=terms.shape)


def _words(
    hybrid: Hybrid | None, weight: float | None, rerank: str | None, texts: Sequence[str] | None
) -> Words | None:
    """What a hybrid search asks of the words, None for any other. BocError for options that do not go together."""
    if hybrid is None:
        if weight is not None:
            raise BocError("words_weight is for the hybrid search sum; add hybrid sum, or leave it out")
        return None
    if hybrid not in HYBRIDS:
        raise BocError(f"no hybrid search {hybrid!r}; known: {', '.join(HYBRIDS)}")
    if texts is None:
        raise BocError("a hybrid search counts the words of a sentence; search by sentences, or leave hybrid out")
    if hybrid == "rrf":
        if weight is not None:
            raise BocError("rrf fuses ranks, which have no weight; leave words_weight out, or take hybrid sum")
        return Words(texts, 1.0)
    if rerank is not None:
        raise BocError("the hybrid search sum does not score anew; leave rerank out, or take hybrid rrf")
    if weight is None or not 0 < weight < math.inf:
        raise BocError(
            f"hybrid sum needs words_weight above 0, got {weight}: how much the score of the words, some ten, counts "
            "beside that of the terms, a sum of products of frequencies"
        )
    return Words(texts, weight)


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
