"""Searching an index by sentences, pictures or vectors.

All searches end in ``Searcher._hits``, which makes one request of the terms of the queries and
arranges the hits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from boc import plugins
from boc.codecs import SurrogateCodec
from boc.codecs.dictionary import query_terms
from boc.codecs.frequencies import heaviest
from boc.codecs.given import TermReader
from boc.errors import BocError, EncoderError
from boc.inputs.images import picture_file
from boc.inputs.metadata import by_field, check_sort
from boc.names import Metric
from boc.paths import nfc
from boc.plugins import check_name, find_item
from boc.search.background import Background, confidences
from boc.search.hits import Hits
from boc.search.near_duplicates import select_distinct
from boc.search.options import SearchOptions, check_texts, parse_filters
from boc.search.queries import Query, QueryPart, compose
from boc.search.rank_fusion import reciprocal_rank_fusion
from boc.types import (
    Embeddings,
    Hit,
    ImageRef,
    Modality,
    Rescore,
    SearchRequest,
    Stages,
    TermMatrix,
    TextScore,
)
from boc.vectors import plain_rows

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from boc.inputs.images import Picture
    from boc.plugins import Encoder, Engine, Request
    from boc.search.options import SearchKeywords
    from boc.types import Filter


CODES = 16  # of queries, of each modality and budget, that are cached
GROWTH = 0.3  # exponent of the share of items that pass filters: a tenth takes twice as many terms
BLOCK = 256  # queries per request of a batch that several threads share
LEAST = 10  # hits that candidates are taken for at least, so that fewer hits are the first of these


class _Queries(NamedTuple):
    """Encoded queries; ``texts`` are their sentences, which a hybrid search needs. A query of
    several parts is one row, and an alignment with it is the sum over the weighted ``parts``."""

    rows: Embeddings
    texts: Sequence[str] | None = None
    parts: Sequence[tuple[Embeddings, float]] = ()

    def take(self, i: int) -> _Queries:
        return self._replace(
            rows=self.rows.take([i]),
            texts=None if self.texts is None else self.texts[i : i + 1],
        )


class Searcher:
    """Search one index by sentences, pictures or vectors.

    The encoder is loaded when the first query needs it; vectors never load torch.

    >>> searcher = boc.Searcher.open("photos")
    >>> len(searcher.search_texts(["a red box", "a yellow box"], k=5)[1])
    5
    """

    def __init__(
        self,
        index: Engine,
        encoder: Callable[[], Encoder] | None = None,
        reopen: Callable[[], Engine] | None = None,
    ) -> None:
        self.index = index
        self.codec = SurrogateCodec.restore(index.manifest.codec, index.arrays())
        self._load = plugins.encoder if encoder is None else lambda spec: encoder()
        self._reopen = reopen or (lambda: index)
        codec = self.codec  # not self: what refers to itself is closed late
        self._code = lru_cache(CODES)(
            lambda modality, budget, growth: codec.query_code(modality, growth),
        )
        self._backgrounds: dict[Modality, Background] = {}

    @classmethod
    def open(
        cls,
        name: str,
        at: str = "file:boc-data",
        *,
        encoder: str | None = None,
        device: str = "auto",
    ) -> Searcher:
        """Open index ``name`` at back end ``at``. ``encoder`` names its encoder if it has moved."""
        backend = plugins.backend(at)

        def reopen() -> Engine:
            return backend.open(check_name(name))

        searcher = cls(reopen(), None, reopen)
        first = searcher.index.manifest.identity.spec
        # An index that replaces this one may be of another encoder, which its manifest names.
        searcher._load = lambda spec: plugins.encoder(
            encoder if encoder and spec == first else spec,
            device,
        )
        return searcher

    def renew(self, *, force: bool = False) -> Searcher:
        """Return a searcher of the current index: itself if that has not changed. The encoder is
        kept if it fits.

        Every load and edit changes ``created`` or ``source`` of the manifest; a compacted index
        gives the same answers. ``force`` is for an index that could not be read, and may be
        available again without a change.
        """
        index = self._reopen()
        if not force and index.manifest == self.index.manifest:
            return self  # without fetching the codec
        searcher = Searcher(index, None, self._reopen)
        searcher._load = self._load
        if (
            "encoder" in self.__dict__
            and index.manifest.identity.digest == self.encoder.identity.digest
        ):
            searcher.encoder = self.encoder  # reused, so it is not loaded again
        return searcher

    def __repr__(self) -> str:
        manifest = self.index.manifest
        counts = f"{manifest.items['image']} pictures and {manifest.items['text']} sentences"
        return f"<Searcher of {counts}, encoder {manifest.identity.spec}>"

    def embeddings(self, id: str) -> Embeddings:
        """Return the stored vector of an item, and its concepts if there are any. KeyError for an
        unknown id."""
        item = self.index.find([id])[0]
        sets = self.index.manifest.concept_dtype is not None
        concepts = self.index.concepts([id]).to_ragged() if sets else None
        terms = None if self.codec.given is None else self.index.terms([id])
        return Embeddings(
            item.modality,
            self.index.vectors([id]).astype(np.float32),
            concepts,
            terms=terms,
        )

    @cached_property
    def encoder(self) -> Encoder:
        """The encoder of the index. EncoderError if its weights differ."""
        identity = self.index.manifest.identity
        if self.codec.given is not None:
            return TermReader(self.codec.given, identity)
        if identity.spec.startswith("vectors:"):
            raise BocError(
                "the index was made of vectors, which no encoder makes; search by --like ID of "
                "an item",
            )
        encoder = self._load(identity.spec)
        if encoder.identity.digest != identity.digest:
            raise EncoderError(
                f"the encoder {encoder.identity.spec} has other weights than the index was made "
                "with "
                f"({encoder.identity.digest[:12]}, not {identity.digest[:12]}); name the right "
                "one with --encoder",
            )
        return encoder

    def search(
        self,
        text: str | None = None,
        *,
        image: Picture | None = None,
        vector: ArrayLike | None = None,
        options: SearchOptions | None = None,
        stages: Stages | None = None,
        **keywords: Unpack[SearchKeywords],
    ) -> Hits:
        """Return the k best items for a sentence, a picture or the vector of a sentence (d,), best
        first.

        The keyword arguments are the fields of ``SearchOptions``, and override those of
        ``options``. ``stages`` gets the time of each stage.

        BocError for invalid options; EncoderError for another encoder; ImageError for an unreadable
        picture.
        """
        if sum(each is not None for each in (text, image, vector)) != 1:
            raise BocError(
                "give one of these: search('a dog'), search(image='dog.jpg') or "
                "search(vector=numbers)",
            )
        if vector is not None:
            queries = Embeddings("text", _row(vector))
            return self.search_vectors(queries, options, stages=stages, **keywords)[0]
        if image is not None:
            with picture_file(image) as path:
                return self.search_query(
                    Query((QueryPart("image", path),)),
                    options,
                    stages=stages,
                    **keywords,
                )
        if not isinstance(text, str):
            raise BocError(
                f"search takes one sentence, got {type(text).__name__}; write image= for a "
                "picture, vector= for "
                "numbers, and index.searcher.search_texts([...]) for several sentences",
            )
        return self.search_query(
            Query((QueryPart("text", text),)),
            options,
            stages=stages,
            **keywords,
        )

    def warm(self) -> None:
        """Load the encoder, if there is one, and search once, so that the first query waits for
        nothing."""
        if self.codec.given is None and not self.index.manifest.identity.spec.startswith(
            "vectors:",
        ):
            self.search("a picture", k=1, min_confidence=0)

    def search_query(
        self,
        query: Query,
        options: SearchOptions | None = None,
        *,
        encoded: Sequence[Embeddings] | None = None,
        stages: Stages | None = None,
        **keywords: Unpack[SearchKeywords],
    ) -> Hits:
        """Return the k best items for a question of several parts, best first, without the items
        that it names.

        A hybrid search counts the words of the wanted sentences. ``encoded`` are the parts, each of
        one row, if they are encoded already. BocError for an unknown id, and as ``search``.
        """
        options = self._options_of(query, options, **keywords)
        begun = perf_counter()
        query = Query(tuple(self._known(part) for part in query.parts))
        if encoded is None:
            encoded = [self._encode(part) for part in query.parts]
            begun = _took(stages, "encode_ms", begun)
        rows, parts = self._compose(query, encoded, options)
        _took(stages, "code_ms", begun)
        queries = _Queries(rows, None if query.words is None else [query.words], parts)
        hits = self._hits(
            queries,
            replace(options, k=options.k + len(query.ids)),
            stages,
            query.ids,
        )[0]
        return _sort_hits(
            [hit for hit in hits if hit.item.id not in query.ids][: options.k],
            options,
        )

    def search_texts(
        self,
        texts: Sequence[str],
        options: SearchOptions | None = None,
        *,
        stages: Stages | None = None,
        **keywords: Unpack[SearchKeywords],
    ) -> list[Hits]:
        """Search by several sentences as one batch; one list of hits per sentence."""
        texts = check_texts(texts, "search_texts")
        options = self._options(options, **keywords)
        encoder = self.encoder
        begun = perf_counter()
        encoded = encoder.encode_texts(texts)
        _took(stages, "encode_ms", begun)
        return self.search_vectors(encoded, options, texts=texts, stages=stages)

    def search_words(
        self,
        texts: Sequence[str],
        options: SearchOptions | None = None,
        **keywords: Unpack[SearchKeywords],
    ) -> list[Hits]:
        """Search by the words of several texts, without an encoder: the full-text score (BM25) over
        captions, text fields, and the words of pictures under the code ``words``. One list of hits
        per text.

        BocError for options that need vectors: rm, rerank, hybrid, query_z, min_confidence and
        collapse.
        """
        texts = check_texts(texts, "search_words")
        options = self._options(options, **keywords)
        if named := options.of_vectors:
            raise BocError(f"a search by words alone has no vectors; leave out {', '.join(named)}")
        filters = cast("tuple[Filter, ...]", options.filters)
        answers = self.index.match(texts, options.k, self.target(options.find), filters)
        return [_sort_hits(hits, options) for hits in answers]

    def search_vectors(
        self,
        queries: Embeddings,
        options: SearchOptions | None = None,
        *,
        texts: Sequence[str] | None = None,
        stages: Stages | None = None,
        **keywords: Unpack[SearchKeywords],
    ) -> list[Hits]:
        """Search by queries that are encoded already; one list of hits per row.

        ``texts`` are their sentences, which a hybrid search needs.
        """
        options = self._options(options, **keywords)
        queries = self._plain(queries)
        if texts is not None:
            check_texts(texts, "search_vectors")
            if len(texts) != len(queries):
                raise BocError(
                    f"{len(texts)} texts for {len(queries)} queries; give the sentence of each "
                    "query",
                )
        answers = self._hits(_Queries(queries, texts), options, stages)
        return [_sort_hits(hits, options) for hits in answers]

    def rank_vectors(
        self,
        queries: Embeddings,
        options: SearchOptions | None = None,
        *,
        threads: int = 1,
        **keywords: Unpack[SearchKeywords],
    ) -> tuple[NDArray[np.object_], NDArray[np.float64]]:
        """Return ids (n, m) and scores (n, m) of the hits of ``search_vectors``, best first, as
        arrays.

        Their content is not read, which takes most of the time of a batch. m is at most k; where a
        query has fewer hits than others, None and -inf follow. ``threads`` share the queries.
        BocError for an option that works on hits: hybrid, sort, min_confidence and collapse.
        """
        options = self._options(options, **keywords)
        queries = self._plain(queries)
        if named := options.on_hits:
            raise BocError(
                f"rank_vectors gives ids and scores; leave out {', '.join(named)}, or call "
                "search_vectors",
            )
        if type(threads) is not int or threads < 1:
            raise BocError(f"threads must be at least 1, got {threads!r}; 1 answers in this thread")
        n = len(queries)
        size = max(1, min(BLOCK, -(-n // threads)))

        def rank(first: int) -> tuple[NDArray[np.object_], NDArray[np.float64]]:
            some = queries if n <= size else queries.take(range(first, min(first + size, n)))
            return self.index.rank(self._request(_Queries(some), options, None))

        if n <= size:
            return rank(0)
        with ThreadPoolExecutor(threads) as pool:
            ids, scores = zip(*pool.map(rank, range(0, n, size)), strict=True)
        return np.concatenate(ids), np.concatenate(scores)

    def request(
        self,
        query: Query,
        options: SearchOptions | None = None,
        *,
        encoded: Sequence[Embeddings] | None = None,
        **keywords: Unpack[SearchKeywords],
    ) -> Request:
        """Return the HTTP request that has the hits of ``search_query`` as its answer, for other
        programs.

        BocError for options that take more than one request: items of the index as parts, hybrid
        searches, an order other than by score and confidence. BackendError if the index is not on a
        server.
        """
        options = self._options_of(query, options, **keywords)
        own = options.on_hits
        if own or query.ids:
            raise BocError(
                f"boc itself computes {own[0] if own else 'what is like an item'}; no single "
                "request does",
            )
        encoded = [self._encode(part) for part in query.parts] if encoded is None else encoded
        rows, _ = self._compose(query, encoded, options)
        return self.index.request(self._request(_Queries(rows), options, None))

    def background(self, modality: Modality) -> Background:
        """Return the background of the scores of items of a modality."""
        return self._backgrounds.setdefault(modality, Background(self.index, modality))

    def target(self, find: Modality | None = None) -> Modality:
        """Return the modality of the hits: ``find``, or pictures if there are any. BocError if it
        has no such items."""
        counts = self.index.manifest.items
        if find is None:
            return "image" if counts["image"] else "text"
        if not counts[find]:
            held = "sentences" if find == "image" else "pictures"
            raise BocError(
                f"the index holds {held} only; drop --find, or index a CSV of image,caption to "
                "have both",
            )
        return find

    def _options(
        self,
        options: SearchOptions | None,
        **keywords: Unpack[SearchKeywords],
    ) -> SearchOptions:
        """Return the options with keywords replaced, whose filters are values; BocError for a field
        that is none."""
        options = SearchOptions.of(options, **keywords)
        if options.filters != ():
            options = replace(
                options,
                filters=parse_filters(options.filters, self.index.manifest.fields),
            )
        if options.sort is not None:
            check_sort(options.sort, self.index.manifest.fields)
        return options

    def _options_of(
        self,
        query: Query,
        options: SearchOptions | None,
        **keywords: Unpack[SearchKeywords],
    ) -> SearchOptions:
        if not isinstance(query, Query):
            raise BocError(
                f"search_query takes a Query, got {type(query).__name__}; search takes a sentence",
            )
        return query.with_metric(self._options(options, **keywords))

    def _metric(self, options: SearchOptions) -> Metric:
        return "dot" if options.hybrid == "sum" else options.rerank or self.index.manifest.rerank

    def _known(self, part: QueryPart) -> QueryPart:
        """Return a part with the id of its item as the index has it."""
        if part.kind != "item":
            return part
        try:
            return replace(part, value=find_item(self.index, str(part.value)).id)
        except KeyError:
            raise BocError(
                f"the index has no item {part.value!r}; boc search prints the ids of its hits",
            ) from None

    def _encode(self, part: QueryPart) -> Embeddings:
        if part.kind == "text":
            return self.encoder.encode_texts([nfc(str(part.value))])
        if part.kind == "image":
            path = Path(part.value)
            return self.encoder.encode_images([self.encoder.prepare(ImageRef(path.name, path))])
        stored = self.embeddings(str(part.value))
        if not self.codec.reads_concepts:
            return stored
        content = self.index.find([str(part.value)])[0].content
        return replace(self._encode(QueryPart(stored.modality, content)), vectors=stored.vectors)

    def _plain(self, queries: Embeddings) -> Embeddings:
        """Return queries whose vectors and concepts are plain float32; BocError for values that are
        no numbers."""
        if not isinstance(queries, Embeddings):
            raise BocError(
                f"queries must be Embeddings, got {type(queries).__name__}; write "
                "Embeddings('text', rows)",
            )
        vectors = plain_rows(queries.vectors, self.index.manifest.identity.dim, "queries")
        concepts = queries.concepts
        if concepts is not None:
            concepts = replace(
                concepts,
                values=plain_rows(concepts.values, None, "concepts of the queries"),
            )
        if vectors is queries.vectors and concepts is None:
            return queries
        return replace(queries, vectors=vectors, concepts=concepts)

    def _compose(
        self,
        query: Query,
        encoded: Sequence[Embeddings],
        options: SearchOptions,
    ) -> tuple[Embeddings, list[tuple[Embeddings, float]]]:
        """Return the one query that the parts make, and the weighted parts that an alignment sums
        over."""
        encoded = [self._plain(each) for each in encoded]
        if [len(each) for each in encoded] != [1] * len(query.parts):
            raise BocError(
                f"encoded must be Embeddings of one row for each of {len(query.parts)} parts of "
                "the query",
            )
        if len(encoded) == 1:
            return encoded[0], []
        if self.codec.given is not None:
            raise BocError("terms of another system are one query; search by one of its parts")
        background = self.background(self.target(options.find))

        def weighted_parts(metric: Metric) -> list[tuple[Embeddings, float]]:
            pairs = zip(query.parts, encoded, strict=True)
            return [
                (one, part.weight / background.standard_deviation(one, metric))
                for part, one in pairs
            ]

        metric = self._metric(options)
        whole = compose(weighted_parts("dot"))
        return whole, [] if metric == "dot" or whole.concepts is None else weighted_parts(metric)

    def _request(
        self,
        queries: _Queries,
        options: SearchOptions,
        stages: Stages | None,
    ) -> SearchRequest:
        """Return the request to the index: the terms of the queries, candidates, and how they are
        ranked.

        ``stages`` get the terms. Without them, and under a dictionary, the index may make the terms
        itself.
        """
        rows = queries.rows
        only = self.target(options.find)
        code = None
        filters = cast("tuple[Filter, ...]", options.filters)
        metric = self._metric(options)
        planned = options.rm is None and options.query_z is None
        if options.query_z is None and options.hybrid is None and len(rows):
            growth = self._growth(only, filters) if planned and filters else 1
            code = self._code(rows.modality, self.codec.query_budget, growth)
        make = (
            partial(self._terms, rows, options.query_z)
            if code is None
            else partial(query_terms, code, rows.vectors)
        )
        terms: TermMatrix | Callable[[], TermMatrix] = make
        if code is None or stages is not None or metric != "dot":
            begun = perf_counter()
            code = None
            terms = make()
            _took(stages, "code_ms", begun)
            if stages is not None:
                stages.codes = terms
        if options.hybrid == "sum":
            words = TextScore(queries.texts or (), options.words_weight or 1.0)
            return SearchRequest(terms, options.k, only, filters, words=words)
        if self.codec.given is not None:
            if named := [name for name in options.on_hits if name != "sort"]:
                raise BocError(
                    "terms of another system have no vectors beside them; leave out "
                    f"{', '.join(named)}",
                )
            return SearchRequest(terms, options.k, only, filters)
        rescore = Rescore(metric, rows, options.k, queries.parts, plain=True)
        rm = self.index.manifest.rm if options.rm is None else options.rm
        depth = math.ceil(rm * (max(options.k, LEAST) if planned else options.k))
        return SearchRequest(terms, depth, only, filters, rescore, code=code, planned=planned)

    def _terms(self, rows: Embeddings, query_z: int | None) -> TermMatrix:
        terms = self.codec.encode_queries(rows)
        return terms if query_z is None else heaviest(terms, query_z)

    def _growth(self, find: Modality, filters: Sequence[Filter]) -> float:
        """Return how many times as many terms a query needs: the nearest of the items that pass lie
        farther from it."""
        passing = getattr(self.index, "passing", None)
        share = (
            1
            if passing is None
            else max(1, passing(find, filters)) / self.index.manifest.items[find]
        )
        return float(2 ** (GROWTH * round(math.log2(1 / share))))

    def _hits(
        self,
        queries: _Queries,
        options: SearchOptions,
        stages: Stages | None,
        without: Collection[str] = (),
    ) -> list[list[Hit]]:
        """Return the hits of each query by score. The items ``without`` take no part in
        confidences."""
        if options.hybrid is not None and queries.texts is None:
            raise BocError(
                "a hybrid search counts the words of a sentence; search by sentences, or leave "
                "hybrid out",
            )
        if options.collapse:
            return [
                self._distinct_hits(queries.take(i), options, stages)
                for i in range(len(queries.rows))
            ]
        request = self._request(queries, options, stages)
        if options.hybrid == "rrf":
            return self._fuse(queries, request, options, stages)
        answers = self.index.search(request, stages)
        if options.min_confidence is None:
            return answers
        others = (
            [[hit for hit in hits if hit.id not in without] for hits in answers]
            if without
            else answers
        )
        return self._confident(others, queries, options, stages)

    def _distinct_hits(
        self,
        query: _Queries,
        options: SearchOptions,
        stages: Stages | None,
    ) -> list[Hit]:
        plain = replace(options, collapse=False)
        near = self.background(self.target(options.find)).near
        return select_distinct(
            lambda k: self._hits(query, replace(plain, k=k), stages)[0],
            self.index,
            options.k,
            near,
        )

    def _fuse(
        self,
        queries: _Queries,
        request: SearchRequest,
        options: SearchOptions,
        stages: Stages | None,
    ) -> list[list[Hit]]:
        """Return the hits of largest reciprocal ranks among the re-ranked candidates and among the
        hits of BM25."""
        assert request.rescore is not None
        ranked = self.index.search(
            replace(request, rescore=replace(request.rescore, k=request.k)),
            stages,
        )
        begun = perf_counter()
        matched = self.index.match(
            queries.texts or (),
            request.k,
            request.modality,
            request.filters,
        )
        _took(stages, "postings_ms", begun)
        return [
            reciprocal_rank_fusion(pair, options.k) for pair in zip(ranked, matched, strict=True)
        ]

    def _confident(
        self,
        answers: Sequence[Sequence[Hit]],
        queries: _Queries,
        options: SearchOptions,
        stages: Stages | None,
    ) -> list[list[Hit]]:
        """Return the hits of at least ``options.min_confidence``, with their confidences."""
        begun = perf_counter()
        modality = self.target(options.find)
        metric = self._metric(options)
        total = self.index.manifest.items[modality]
        least = options.min_confidence or 0
        confident = []
        for i, hits in enumerate(answers):
            usual = self.background(modality).scores(queries.take(i).rows, metric, queries.parts)
            shares = confidences([hit.score for hit in hits], usual, total).tolist()
            pairs = zip(hits, shares, strict=True)
            confident.append(
                [replace(hit, confidence=share) for hit, share in pairs if share >= least],
            )
        _took(stages, "code_ms", begun)
        return confident


def _sort_hits(hits: list[Hit], options: SearchOptions) -> Hits:
    return Hits(hits if options.sort is None else by_field(hits, options.sort))


def _row(vector: ArrayLike) -> NDArray[Any]:
    try:
        row = np.asarray(vector)
    except (TypeError, ValueError, RuntimeError) as error:
        raise BocError(
            f"the vector cannot become a numpy array ({error}); give d numbers",
        ) from error
    if row.ndim != 1:
        raise BocError(
            f"a vector of shape {row.shape}; give (d,), or write searcher.search_vectors for "
            "several",
        )
    return row[None]


def _took(stages: Stages | None, name: str, begun: float) -> float:
    return begun if stages is None else stages.took(name, begun)
