"""From feature files to indexes, and from queries to hits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from boc import plugins
from boc.codecs import SurrogateCodec
from boc.codecs.topz import heaviest
from boc.errors import BocError, EncoderError
from boc.inputs.metadata import check_filter
from boc.plugins import check_name
from boc.rank_fusion import reciprocal_rank_fusion
from boc.rerank.alignment import align
from boc.rerank.dot import check_metric, reorder
from boc.types import (
    Embeddings,
    Filter,
    Hit,
    ImageRef,
    Modality,
    Rescore,
    Stages,
    TermMatrix,
    Words,
)

if TYPE_CHECKING:
    from boc.plugins import Encoder, Index


Hybrid: TypeAlias = Literal["rrf", "sum"]
HYBRIDS: tuple[Hybrid, Hybrid] = ("rrf", "sum")


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
