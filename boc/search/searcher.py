"""Searching an index by sentences, pictures or vectors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from boc import plugins
from boc.codecs import SurrogateCodec
from boc.codecs.frequencies import heaviest
from boc.errors import BocError, EncoderError
from boc.inputs.metadata import by_field, check_filter, check_sort
from boc.names import Metric
from boc.plugins import check_name
from boc.search.arrays import ArraySearch
from boc.search.background import Background, confidences
from boc.search.options import SearchOptions
from boc.search.queries import Part, Query, compose
from boc.search.rank_fusion import reciprocal_rank_fusion
from boc.search.variety import varied
from boc.types import Embeddings, Hit, ImageRef, Modality, Rescore, Stages, TermMatrix, TextScore

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from boc.plugins import Encoder, Index, Request
    from boc.search.options import SearchKeywords


class Searcher:
    """Searches one index by sentences, pictures or vectors.

    The encoder is loaded when the first query needs it; vectors never load torch.
    """

    def __init__(
        self,
        index: Index,
        encoder: Callable[[], Encoder] | None = None,
        reopen: Callable[[], Index] | None = None,
    ) -> None:
        self.index = index
        self.codec = SurrogateCodec.restore(index.manifest.codec, index.arrays())
        self._load = plugins.encoder if encoder is None else lambda spec: encoder()
        self._reopen = reopen or (lambda: index)
        self._arrays = ArraySearch(self)
        self._backgrounds: dict[Modality, Background] = {}

    @classmethod
    def open(
        cls, name: str, at: str = "file:boc-data", *, encoder: str | None = None, device: str = "auto"
    ) -> Searcher:
        """Open index ``name`` at back end ``at``. ``encoder`` names its encoder if it has moved."""
        backend = plugins.backend(at)

        def reopen() -> Index:
            return backend.open(check_name(name))

        found = cls(reopen(), None, reopen)
        first = found.index.manifest.identity.spec
        # An index that replaces this one may be of another encoder, which its manifest names.
        found._load = lambda spec: plugins.encoder(encoder if encoder and spec == first else spec, device)
        return found

    def renewed(self, *, force: bool = False) -> Searcher:
        """A searcher of the current index; itself if the index has not changed. The encoder is kept if it still fits.

        Every load and edit changes ``created`` or ``source`` of the manifest; a compacted index gives the same answers.
        ``force`` is for an index that could not be read, and may be available again without a change.
        """
        index = self._reopen()
        if not force and index.manifest == self.index.manifest:
            return self  # without fetching the codec
        found = Searcher(index, None, self._reopen)
        found._load = self._load
        if "encoder" in self.__dict__ and index.manifest.identity.digest == self.encoder.identity.digest:
            found.encoder = self.encoder  # reused, so it is not loaded again
        return found

    def stored(self, id: str) -> Embeddings:
        """The stored vector of an item, and its concepts if stored. KeyError for an unknown id."""
        item, sets = self.index.find([id])[0], self.index.manifest.concept_dtype is not None
        concepts = self.index.concepts([id]).ragged() if sets else None
        return Embeddings(item.modality, self.index.vectors([id]).astype(np.float32), concepts)

    @cached_property
    def encoder(self) -> Encoder:
        """The encoder of the index. EncoderError if its weights differ."""
        wanted = self.index.manifest.identity
        found = self._load(wanted.spec)
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
        options: SearchOptions | None = None,
        *,
        stages: Stages | None = None,
        **keywords: Unpack[SearchKeywords],
    ) -> list[Hit]:
        """The k best items for a sentence or a picture, best first.

        The keyword arguments are the fields of ``SearchOptions``: ``search("a dog", k=5, find="text")``; they override
        those of ``options``. ``stages`` gets the time of each stage.

        BocError for invalid options; EncoderError if the encoder is not that of the index; ImageError for an unreadable
        picture.
        """
        if (text is None) == (image is None):
            raise BocError("give either a sentence or a picture to search by")
        part = Part("text", text) if image is None and text is not None else Part("image", Path(str(image)))
        return self.search_query(Query((part,)), options, stages=stages, **keywords)

    def search_query(
        self,
        query: Query,
        options: SearchOptions | None = None,
        *,
        encoded: Sequence[Embeddings] | None = None,
        stages: Stages | None = None,
        **keywords: Unpack[SearchKeywords],
    ) -> list[Hit]:
        """The k best items for a question of several parts, best first, without the items that it names.

        A hybrid search counts the words of the wanted sentences. ``encoded`` are the parts, each of one row, if they
        are encoded already. BocError for an unknown id, and as ``search``.
        """
        options, stages = query.with_metric(SearchOptions.of(options, **keywords)), stages or Stages()
        if encoded is None:
            begun = perf_counter()
            encoded = [self._encoded(part) for part in query.parts]
            stages.took("encode_ms", begun)
        wanted = replace(options, k=options.k + len(query.ids)) if query.ids else options
        begun = perf_counter()
        whole, parts = self._composed(query, encoded, options)
        stages.took("code_ms", begun)
        texts = None if query.words is None else [query.words]
        hits = self._ranked(whole, wanted, stages, texts, parts)[0]
        best = [hit for hit in hits if hit.item.id not in query.ids][: options.k]
        return best if options.sort is None else by_field(best, options.sort)

    def background(self, modality: Modality) -> Background:
        """The background of the scores of items of a modality."""
        return self._backgrounds.setdefault(modality, Background(self.index, modality))

    def _composed(
        self, query: Query, encoded: Sequence[Embeddings], options: SearchOptions
    ) -> tuple[Embeddings, list[tuple[Embeddings, float]]]:
        """The one query that the parts make, and the weighted parts that an alignment sums over."""
        if len(encoded) == 1:
            return encoded[0], []
        background = self.background(self.target(options.find))

        def weighted(metric: Metric) -> list[tuple[Embeddings, float]]:
            pairs = zip(query.parts, encoded, strict=True)
            return [(one, part.weight / background.spread(one, metric)) for part, one in pairs]

        metric = self.metric(options)
        whole = compose(weighted("dot"))
        return whole, [] if metric == "dot" or whole.concepts is None else weighted(metric)

    def _encoded(self, part: Part) -> Embeddings:
        if part.kind == "text":
            return self.encoder.encode_texts([str(part.value)])
        if part.kind == "image":
            path = Path(part.value)
            return self.encoder.encode_images([self.encoder.prepare(ImageRef(path.name, path))])
        try:
            found = self.stored(str(part.value))
        except KeyError:
            raise BocError(f"the index has no item {part.value!r}; boc search prints the ids of its hits") from None
        if not self.codec.reads_concepts:
            return found
        content = self.index.find([str(part.value)])[0].content
        return replace(self._encoded(Part(found.modality, content)), vectors=found.vectors)

    def metric(self, options: SearchOptions) -> Metric:
        """How candidates are re-ranked."""
        return "dot" if options.hybrid == "sum" else options.rerank or self.index.manifest.rerank

    def search_texts(
        self,
        texts: Sequence[str],
        options: SearchOptions | None = None,
        *,
        stages: Stages | None = None,
        **keywords: Unpack[SearchKeywords],
    ) -> list[list[Hit]]:
        """Search by several sentences as one batch; one list of hits per sentence."""
        if not all(text.strip() for text in texts):
            raise BocError("the sentence is empty; write what the picture shows")
        options, stages, encoder = SearchOptions.of(options, **keywords), stages or Stages(), self.encoder
        begun = perf_counter()
        encoded = encoder.encode_texts(texts)
        stages.took("encode_ms", begun)
        return self.search_vectors(encoded, options, texts=texts, stages=stages)

    def search_words(
        self, texts: Sequence[str], options: SearchOptions | None = None, **keywords: Unpack[SearchKeywords]
    ) -> list[list[Hit]]:
        """Search by the words of several texts, without an encoder: the full-text score (BM25) over captions, text
        fields, and the words of pictures under the code ``words``. One list of hits per text.

        BocError for options that need vectors: rm, rerank, hybrid, query_z, min_confidence, mmr and collapse.
        """
        if not all(text.strip() for text in texts):
            raise BocError("there are no words to look for; write some")
        options = SearchOptions.of(options, **keywords)
        if named := options.of_vectors:
            raise BocError(f"a search by words alone has no vectors; leave out {', '.join(named)}")
        for condition in options.filters:
            check_filter(condition, self.index.manifest.fields)
        answers = self.index.match(texts, options.k, self.target(options.find), options.filters)
        if options.sort is None:
            return answers
        check_sort(options.sort, self.index.manifest.fields)
        return [by_field(hits, options.sort) for hits in answers]

    def search_vectors(
        self,
        queries: Embeddings,
        options: SearchOptions | None = None,
        *,
        texts: Sequence[str] | None = None,
        stages: Stages | None = None,
        **keywords: Unpack[SearchKeywords],
    ) -> list[list[Hit]]:
        """Search by queries that are encoded already; one list of hits per row.

        ``texts`` are their sentences, which a hybrid search needs.
        """
        options = SearchOptions.of(options, **keywords)
        answers = self._ranked(queries, options, stages or Stages(), texts)
        return answers if options.sort is None else [by_field(hits, options.sort) for hits in answers]

    def search_arrays(
        self,
        queries: Embeddings,
        options: SearchOptions | None = None,
        *,
        threads: int = 1,
        **keywords: Unpack[SearchKeywords],
    ) -> tuple[NDArray[np.object_], NDArray[np.float32]]:
        """Search by n queries that are encoded already: ids (n, k) and scores float32 (n, k), best first.

        The hits are those of ``search_vectors``, without their content, which takes most of its time in a batch.
        Where there are fewer than k, None and -inf follow. ``threads`` share the queries. BocError for an option that
        works on hits: hybrid, sort, min_confidence, mmr and collapse.
        """
        options = SearchOptions.of(options, **keywords)
        if named := options.on_hits:
            raise BocError(f"search_arrays gives ids and scores; leave out {', '.join(named)}, or call search_vectors")
        if threads < 1:
            raise BocError(f"threads must be at least 1, got {threads}; 1 answers in this thread")
        return self._arrays(queries, options, threads)

    def _ranked(
        self,
        queries: Embeddings,
        options: SearchOptions,
        stages: Stages,
        texts: Sequence[str] | None,
        parts: Sequence[tuple[Embeddings, float]] = (),
    ) -> list[list[Hit]]:
        """The hits of each query by score; an alignment is that of weighted ``parts`` if there are any."""
        if options.sort is not None:
            check_sort(options.sort, self.index.manifest.fields)
        if options.hybrid is not None and texts is None:
            raise BocError("a hybrid search counts the words of a sentence; search by sentences, or leave hybrid out")
        if options.mmr is not None or options.collapse:
            return [self._varied(queries, i, options, stages, texts, parts) for i in range(len(queries))]
        target, filters = self.target(options.find), options.filters
        codes, depth, rescore = self.asked(queries, options, stages, parts)
        stages.codes = codes
        if options.hybrid == "sum":
            words = TextScore(texts or (), options.words_weight or 1.0)
            return self.index.search(codes, options.k, target, filters=filters, words=words, stages=stages)
        if options.hybrid == "rrf":
            ranked = self.index.search(
                codes, depth, target, filters=filters, rescore=replace(rescore, k=depth), stages=stages
            )
            begun = perf_counter()
            matched = self.index.match(texts or (), depth, target, filters)
            stages.took("postings_ms", begun)
            return [reciprocal_rank_fusion(pair, options.k) for pair in zip(ranked, matched, strict=True)]
        hits = self.index.search(codes, depth, target, filters=filters, rescore=rescore, stages=stages)
        return hits if options.min_confidence is None else self._judged(hits, queries, options, stages, parts)

    def _varied(
        self,
        queries: Embeddings,
        i: int,
        options: SearchOptions,
        stages: Stages,
        texts: Sequence[str] | None,
        parts: Sequence[tuple[Embeddings, float]],
    ) -> list[Hit]:
        """The hits of query i, chosen from more hits by maximal marginal relevance or without near-duplicates."""
        query, words = queries.take([i]), None if texts is None else texts[i : i + 1]
        plain = replace(options, mmr=None, collapse=False)

        def ask(k: int) -> list[Hit]:
            return self._ranked(query, replace(plain, k=k), stages, words, parts)[0]

        near = self.background(self.target(options.find)).near if options.collapse else None
        return varied(ask, self.index, options.k, near, options.mmr)

    def _judged(
        self,
        answers: Sequence[Sequence[Hit]],
        queries: Embeddings,
        options: SearchOptions,
        stages: Stages,
        parts: Sequence[tuple[Embeddings, float]],
    ) -> list[list[Hit]]:
        """The hits of at least ``options.min_confidence``, with their confidences."""
        begun = perf_counter()
        modality, metric = self.target(options.find), self.metric(options)
        total = self.index.manifest.items[modality]
        found = []
        for i, hits in enumerate(answers):
            usual = self.background(modality).scores(queries.take([i]), metric, parts)
            sure = confidences([hit.score for hit in hits], usual, total).tolist()
            judged = [replace(hit, confidence=share) for hit, share in zip(hits, sure, strict=True)]
            found.append([hit for hit in judged if (hit.confidence or 0) >= (options.min_confidence or 0)])
        stages.took("code_ms", begun)
        return found

    def request(
        self,
        query: Query,
        options: SearchOptions | None = None,
        *,
        encoded: Sequence[Embeddings] | None = None,
        template: bool = False,
        **keywords: Unpack[SearchKeywords],
    ) -> Request:
        """The HTTP request that has the hits of ``search_query`` as its answer, for other programs; with ``template``
        the call of the search template that is stored on the server, with its parameters.

        BocError for options that take more than one request: items of the index as parts, hybrid searches, an order
        other than by score, variety and confidence. BackendError if the index is not on a server.
        """
        options = query.with_metric(SearchOptions.of(options, **keywords))
        own = options.on_hits
        if own or query.ids:
            raise BocError(f"boc itself computes {own[0] if own else 'what is like an item'}; no single request does")
        encoded = [self._encoded(part) for part in query.parts] if encoded is None else encoded
        whole, _ = self._composed(query, encoded, options)
        codes, depth, rescore = self.asked(whole, options, Stages())
        only, filters = self.target(options.find), options.filters
        return self.index.request(codes, depth, only, filters=filters, rescore=rescore, template=template)

    def asked(
        self,
        queries: Embeddings,
        options: SearchOptions,
        stages: Stages,
        parts: Sequence[tuple[Embeddings, float]] = (),
    ) -> tuple[TermMatrix, int, Rescore]:
        """The request to an index: the terms of the queries, the number of candidates, and how they are re-ranked."""
        for condition in options.filters:
            check_filter(condition, self.index.manifest.fields)
        begun = perf_counter()
        codes = self.codec.encode_queries(queries)
        if options.query_z is not None:
            codes = heaviest(codes, options.query_z)
        stages.took("code_ms", begun)
        return codes, self.depth(options), Rescore(self.metric(options), queries, options.k, parts)

    def depth(self, options: SearchOptions) -> int:
        """The number of candidates."""
        return math.ceil((self.index.manifest.rm if options.rm is None else options.rm) * options.k)

    def target(self, find: Modality | None = None) -> Modality:
        """The modality of the hits: ``find``, or pictures if the index has any. BocError if it has no such items."""
        counts = self.index.manifest.items
        if find is None:
            return "image" if counts["image"] else "text"
        if not counts[find]:
            held = "sentences" if find == "image" else "pictures"
            raise BocError(f"the index holds {held} only; drop --find, or index a CSV of image,caption to have both")
        return find
